"""What networks consist of: embeddings, norms, losses, convolutions, attention, resampling."""

from __future__ import annotations

import itertools

import torch
from torch.nn import functional as F  # noqa: N812

from .inputs import FLOATS, backward, ints, rand

IMAGES = (  # batch, channels in, out, size, kernel, stride, groups: those of common networks
    *((32, 3, 64, 224, 7, 2, 1), (32, 64, 64, 56, 1, 1, 1), (32, 64, 64, 56, 3, 1, 1), (32, 64, 256, 56, 1, 1, 1)),
    *(
        (32, 128, 128, 56, 3, 2, 1),
        (32, 256, 512, 56, 1, 2, 1),
        (32, 256, 256, 14, 3, 1, 1),
        (32, 512, 512, 7, 3, 1, 1),
    ),
    *((32, 1024, 2048, 14, 1, 2, 1), (64, 64, 64, 56, 3, 1, 1), (64, 256, 256, 14, 3, 1, 1), (8, 3, 32, 256, 3, 1, 1)),
    *((8, 32, 32, 256, 3, 1, 1), (8, 64, 64, 256, 3, 1, 1), (8, 128, 64, 128, 3, 1, 1), (8, 512, 256, 32, 3, 1, 1)),
    *(
        (8, 512, 1024, 16, 3, 1, 1),
        (32, 128, 128, 64, 3, 1, 1),
        (32, 256, 256, 16, 3, 1, 1),
        (32, 3, 768, 224, 16, 16, 1),
    ),
    *(
        (32, 3, 96, 224, 4, 4, 1),
        (32, 96, 96, 56, 7, 1, 96),
        (32, 384, 384, 14, 7, 1, 384),
        (32, 240, 240, 28, 5, 2, 240),
    ),
    *((64, 16, 16, 112, 3, 1, 16), (128, 3, 64, 64, 4, 2, 1), (128, 64, 128, 32, 4, 2, 1), (1, 3, 16, 33, 3, 1, 1)),
)


def embeddings():
    for rows, width, count in (
        (1000, 64, 500),
        (5000, 512, 8192),
        (32000, 1024, 4096),
        (50257, 768, 4096),
        (400_000, 64, 65536),
    ):
        for dtype in FLOATS:
            weight, where = rand(rows, width, dtype=dtype, grad=True), ints(rows, count)
            yield backward(F.embedding), [where, weight]
            yield backward(lambda i, w: F.embedding(i.view(4, -1), w, padding_idx=0)), [where, weight]
            offsets = torch.arange(0, count, 4, device="cuda")
            for mode in ("sum", "mean", "max"):
                yield backward(lambda i, w, o, m=mode: F.embedding_bag(i, w, o, mode=m)), [where, weight, offsets]
            yield backward(lambda i, w, o: F.embedding_bag(i, w, o, mode="sum", sparse=True)), [where, weight, offsets]


def normalisation():
    for dtype, (batch, channels, size) in itertools.product(FLOATS, ((8, 64, 32), (32, 256, 14), (16, 128, 64))):
        x = rand(batch, channels, size, size, dtype=dtype, grad=True)
        last = x.detach().to(memory_format=torch.channels_last).requires_grad_()
        for image, parameters in itertools.product((x, last), (dtype, torch.float32)):
            weight, bias = (rand(channels, dtype=parameters, grad=True) for _ in "wb")
            mean, var = torch.zeros(channels, device="cuda"), torch.ones(channels, device="cuda")
            for training in (True, False):
                yield (
                    backward(lambda t, w, b, m, v, on=training: F.batch_norm(t, m, v, w, b, on)),
                    [image, weight, bias, mean, var],
                )
            if parameters == dtype:
                yield backward(lambda t, w, b: F.group_norm(t, 32, w, b)), [image, weight, bias]
                yield backward(F.instance_norm), [image]
    for dtype, rows, width in itertools.product(FLOATS, (100, 8192, 50_000), (256, 768, 1024)):
        x, weight, bias = (
            rand(rows, width, dtype=dtype, grad=True),
            *(rand(width, dtype=dtype, grad=True) for _ in "wb"),
        )
        yield backward(lambda t, w, b, n=width: F.layer_norm(t, (n,), w, b)), [x, weight, bias]
        yield backward(lambda t, w, n=width: F.rms_norm(t, (n,), w)), [x, weight]
        yield backward(lambda t: F.normalize(t, dim=-1)), [x]


def losses():
    for dtype, (rows, classes) in itertools.product(FLOATS, ((64, 10), (4096, 1000), (2044, 50257))):
        x, labels = rand(rows, classes, dtype=dtype, grad=True), ints(classes, rows)
        yield backward(F.cross_entropy), [x, labels]
        yield backward(lambda t, i: F.cross_entropy(t, i, label_smoothing=0.1)), [x, labels]
        yield backward(lambda t, i: F.cross_entropy(t, i, ignore_index=0, reduction="sum")), [x, labels]
        yield backward(lambda t: F.mse_loss(t, t.detach())), [x]
        yield backward(lambda t: F.smooth_l1_loss(t, t.detach())), [x]
        yield backward(lambda t: F.binary_cross_entropy_with_logits(t, torch.ones_like(t))), [x]
        yield backward(lambda t: F.kl_div(t.log_softmax(-1), t.detach().softmax(-1), reduction="batchmean")), [x]
    pictures = rand(8, 21, 256, 256, grad=True)
    yield backward(F.cross_entropy), [pictures, ints(21, 8, 256, 256)]


def convolutions():
    for dtype, layout in itertools.product(FLOATS, (torch.contiguous_format, torch.channels_last)):
        for batch, inputs, outputs, size, kernel, stride, groups in IMAGES:
            x = rand(batch, inputs, size, size, dtype=dtype).to(memory_format=layout).requires_grad_()
            w = rand(outputs, inputs // groups, kernel, kernel, dtype=dtype).to(memory_format=layout).requires_grad_()
            padding = kernel // 2 if kernel != stride else 0
            b = rand(outputs, dtype=dtype, grad=True)
            run = lambda t, w, b=None, s=stride, p=padding, g=groups: F.conv2d(t, w, b, s, p, groups=g)  # noqa: E731
            yield backward(run), [x, w]
            yield backward(run), [x.detach(), w, b]
        for channels, size in ((64, 16), (256, 16), (512, 4), (64, 128)):
            x = rand(8, channels, size, size, dtype=dtype).to(memory_format=layout).requires_grad_()
            for kernel, padding in ((2, 0), (4, 1)):
                w = rand(channels, channels // 2, kernel, kernel, dtype=dtype, grad=True)
                yield backward(lambda t, w, p=padding: F.conv_transpose2d(t, w, None, 2, p)), [x, w]
    for dtype in FLOATS:
        for channels, length, dilation in ((64, 16000, 1), (128, 16000, 8), (128, 16000, 128), (256, 256, 1)):
            x, w = (
                rand(8, channels, length, dtype=dtype, grad=True),
                rand(2 * channels, channels, 3, dtype=dtype, grad=True),
            )
            yield backward(lambda t, w, d=dilation: F.conv1d(t, w, None, 1, d, d)), [x, w]
            w = rand(2 * channels, channels, 1, dtype=dtype, grad=True)
            yield backward(F.conv1d), [x, w]
        for inputs, outputs, size in ((3, 64, 112), (64, 128, 56), (128, 256, 28)):
            x = rand(4, inputs, 16, size, size, dtype=dtype, grad=True)
            w = rand(outputs, inputs, 3, 3, 3, dtype=dtype, grad=True)
            yield backward(lambda t, w: F.conv3d(t, w, None, 1, 1)), [x, w]


def attention():
    shapes = (
        (4, 12, 512, 512, 64),
        (2, 16, 1024, 1024, 64),
        (16, 16, 1, 513, 64),
        (32, 12, 197, 197, 64),
        (2, 8, 256, 256, 256),
        (4, 8, 256, 77, 40),
    )
    for dtype, (batch, heads, queries, keys, size) in itertools.product(FLOATS, shapes):
        q = rand(batch, heads, queries, size, dtype=dtype, grad=True)
        k, v = (rand(batch, heads, keys, size, dtype=dtype, grad=True) for _ in "kv")
        spread = [rand(batch, t.size(2), heads, size, dtype=dtype).transpose(1, 2).requires_grad_() for t in (q, k, v)]
        flags = torch.ones(queries, keys, device="cuda", dtype=torch.bool).tril()
        added = torch.zeros(batch, 1, queries, keys, device="cuda", dtype=dtype)
        run = F.scaled_dot_product_attention
        for given in ([q, k, v], spread):
            yield backward(run), given
            yield torch.no_grad()(run), given
            yield backward(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, dropout_p=0.1)), given
            yield backward(lambda q, k, v, m=flags: F.scaled_dot_product_attention(q, k, v, m)), given
            yield backward(lambda q, k, v, m=added: F.scaled_dot_product_attention(q, k, v, m)), given
            if queries == keys:
                yield backward(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True)), given


def resampling():
    for dtype, (batch, channels, size) in itertools.product(FLOATS, ((8, 64, 64), (32, 256, 14), (32, 64, 112))):
        x = rand(batch, channels, size, size, dtype=dtype, grad=True)
        for image in (x, x.detach().to(memory_format=torch.channels_last).requires_grad_()):
            yield backward(lambda t: F.max_pool2d(t, 3, 2, 1)), [image]
            yield backward(lambda t: F.max_pool2d(t, 2)), [image]
            yield backward(lambda t: F.avg_pool2d(t, 2)), [image]
            yield backward(lambda t: F.adaptive_avg_pool2d(t, 1)), [image]
            yield backward(lambda t: F.adaptive_avg_pool2d(t, 7)), [image]
            yield backward(lambda t: F.adaptive_max_pool2d(t, 7)), [image]
            yield backward(lambda t: F.interpolate(t, scale_factor=2.0)), [image]
            yield backward(lambda t: F.interpolate(t, scale_factor=2.0, mode="bilinear")), [image]
            yield backward(lambda t: F.pad(t, (1, 1, 1, 1), mode="reflect")), [image]
            yield backward(lambda t: F.pixel_shuffle(t, 2)), [image]
            yield backward(lambda t: F.unfold(t, 3)), [image]
    x = rand(4, 64, 16, 56, 56, grad=True)
    yield backward(lambda t: F.max_pool3d(t, 2)), [x]
    grid = rand(8, 64, 64, 2)
    yield backward(lambda t, g: F.grid_sample(t, g, align_corners=False)), [rand(8, 64, 64, 64, grad=True), grid]
