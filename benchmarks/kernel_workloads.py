"""Operators whose memory inside the kernel is calibrated: each at several sizes, types and layouts.

`workloads` yields a part's name, a function and its inputs. These are made beforehand, so that only the function's own
operators are seen. Where `backward` runs, so do the operators of the gradient.
"""

from __future__ import annotations

import itertools

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
HALVES = FLOATS[1:]
EXTENTS = ((37,), (1000, 257), (64, 12, 128, 128), (8192, 1000), (4, 50257), (2_000_003,))


def rand(*shape, dtype=torch.float32, grad=False):
    return torch.randn(*shape, device="cuda", dtype=dtype).requires_grad_(grad)


def ints(high, *shape, dtype=torch.int64):
    return torch.randint(0, high, shape, device="cuda", dtype=dtype)


def backward(function):
    """Let a function's result flow back to the inputs that require gradients."""

    def run(*inputs):
        result = function(*inputs)
        result = result[0] if isinstance(result, tuple) else result
        result.backward(torch.ones_like(result))

    return run


def workloads():
    """Yield everything. The caller clears the inputs' gradients, or the next run adds to them.

    cuDNN's recurrent layers are not among them: under a dispatch mode their backward pass does not end (torch 2.11).
    """
    for part in (
        *(pointwise, orders, indexing, embeddings, normalisation, losses, convolutions, attention),
        *(products, reductions, counting, transforms, resampling, optimizers, precision),
    ):
        for function, inputs in part():
            yield part.__name__, function, inputs


def pointwise():
    for shape, dtype in itertools.product(EXTENTS, FLOATS):
        x = rand(*shape, dtype=dtype, grad=True)
        for function in (torch.exp, F.gelu, F.silu, lambda t: F.dropout(t, 0.1)):
            yield backward(function), [x]
        yield backward(lambda t: F.softmax(t, -1)), [x]
        yield backward(lambda t: F.log_softmax(t, -1)), [x]
        yield backward(lambda t: F.softmax(t, -1, dtype=torch.float32)), [x]
        yield lambda t: torch.cat([t, t]), [x.detach()]
        yield lambda t: torch.where(t > 0, t, 0.0), [x.detach()]
    x = rand(64, 12, 128, 128, grad=True)
    yield backward(lambda t: F.softmax(t, 1)), [x]
    yield backward(lambda t: F.softmax(t.transpose(1, 3), -1)), [x]


def orders():
    for shape, dtype in itertools.product((*EXTENTS, (2048, 100), (100, 4096)), (*FLOATS, torch.int64)):
        x = ints(1000, *shape) if dtype == torch.int64 else rand(*shape, dtype=dtype)
        for dim in {0, len(shape) - 1}:
            yield lambda t, d=dim: torch.sort(t, d), [x]
            yield lambda t, d=dim: torch.sort(t, dim=d, stable=True, descending=True), [x]
            yield lambda t, d=dim: torch.argsort(t, d), [x]
            yield lambda t, d=dim: torch.topk(t, min(10, t.size(d)), d), [x]
            yield lambda t, d=dim: torch.cumsum(t, d), [x]
            yield lambda t, d=dim: torch.cumprod(t, d), [x]
            yield lambda t, d=dim: torch.median(t, d), [x]
            yield lambda t, d=dim: torch.kthvalue(t, 3, d), [x]
            if dtype != torch.int64:
                yield lambda t, d=dim: torch.logcumsumexp(t, d), [x]
                yield backward(lambda t, d=dim: torch.sort(t, d)), [x.clone().requires_grad_()]
                yield backward(lambda t, d=dim: torch.topk(t, min(10, t.size(d)), d)), [x.clone().requires_grad_()]
                yield backward(lambda t, d=dim: torch.cumsum(t, d)), [x.clone().requires_grad_()]
    for count in (1000, 100_000, 5_000_000):
        yield lambda n=count: torch.randperm(n, device="cuda"), []
        yield torch.unique, [ints(count // 3, count)]
        yield lambda t: torch.unique(t, return_inverse=True, return_counts=True), [ints(count // 3, count)]
        yield torch.unique_consecutive, [ints(count // 3, count)]
        yield torch.nonzero, [rand(count) > 0]
        yield lambda t: torch.masked_select(t, t > 0), [rand(count)]
        yield lambda t: t[t > 0], [rand(count)]
        yield torch.median, [rand(count)]
        yield lambda t: torch.searchsorted(t.sort().values, t), [rand(count)]


def indexing():
    for rows, width, picked in ((1000, 64, 300), (50_000, 128, 20_000), (100_000, 256, 400_000)):
        for dtype in FLOATS:
            x, where = rand(rows, width, dtype=dtype, grad=True), ints(rows, picked)
            spread, source = where[:, None].expand(picked, width), rand(picked, width, dtype=dtype)
            yield backward(lambda t, i: t[i]), [x, where]
            yield backward(lambda t, i: t.index_select(0, i)), [x, where]
            yield backward(lambda t, i: t.gather(0, i)), [x, spread]
            plain = x.detach()
            yield lambda t, i, s: t.index_put((i,), s), [plain, where, source]
            yield lambda t, i, s: t.index_put((i,), s, accumulate=True), [plain, where, source]
            yield lambda t, i, s: t.scatter(0, i, s), [plain, spread, source]
            yield lambda t, i, s: t.scatter_add(0, i, s), [plain, spread, source]
            yield lambda t, i, s: t.scatter_reduce(0, i, s, "amax"), [plain, spread, source]
            yield lambda t, i, s: t.index_add(0, i, s), [plain, where, source]
            yield lambda t, i, s: t.index_copy(0, i, s), [plain, where, source]
            yield backward(lambda t, i: t[i % len(t), i % t.size(1)]), [x, where]
            yield lambda t: t.masked_fill(t > 0, 0.0), [plain]


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


def products():
    for dtype, (m, k, n) in itertools.product(
        FLOATS,
        ((64, 64, 64), (2048, 768, 3072), (4096, 4096, 4096), (2044, 768, 50257), (32, 2048, 1000), (13, 8192, 512)),
    ):
        a, b, bias = (
            rand(m, k, dtype=dtype, grad=True),
            rand(n, k, dtype=dtype, grad=True),
            rand(n, dtype=dtype, grad=True),
        )
        yield backward(F.linear), [a, b, bias]
        yield backward(F.linear), [a, b]
        yield torch.mm, [a.detach(), b.detach().t()]
        yield torch.addmm, [rand(m, n, dtype=dtype), a.detach(), b.detach().t()]
        yield torch.mv, [a.detach(), b[0].detach()]
        yield torch._addmm_activation, [bias.detach(), a.detach(), b.detach().t()]
    for dtype, (batch, m, k, n) in itertools.product(FLOATS, ((48, 512, 64, 512), (8192, 9, 64, 9), (16, 1, 1024, 64))):
        a, b = rand(batch, m, k, dtype=dtype, grad=True), rand(batch, k, n, dtype=dtype, grad=True)
        yield backward(torch.bmm), [a, b]
        yield (
            backward(lambda a, b: a @ b),
            [
                a.detach().view(batch // 4, 4, m, k).requires_grad_(),
                b.detach().view(batch // 4, 4, k, n).requires_grad_(),
            ],
        )
        yield torch.baddbmm, [rand(batch, m, n, dtype=dtype), a.detach(), b.detach()]
        yield backward(lambda a, b: torch.einsum("bmk,bkn->bnm", a, b)), [a, b]
    yield torch.cdist, [rand(500, 64), rand(4000, 64)]
    yield backward(torch.cdist), [rand(500, 64, grad=True), rand(400, 64, grad=True)]
    yield lambda a, b: torch.cdist(a, b, p=1.0), [rand(500, 64), rand(4000, 64)]


def reductions():
    for shape, dtype in itertools.product((*EXTENTS, (50_000_000,), (3, 10_000_000), (10_000_000, 3)), FLOATS):
        x = rand(*shape, dtype=dtype)
        for function in (
            torch.sum,
            torch.mean,
            torch.amax,
            torch.argmax,
            torch.std,
            torch.var_mean,
            torch.linalg.vector_norm,
            torch.all,
            torch.prod,
        ):
            yield function, [x]
        yield lambda t: t.sum(dtype=torch.float64), [x]
        yield lambda t: t.norm(p=1), [x]
        for dim in {0, len(shape) - 1}:
            for function in (torch.sum, torch.amax, torch.argmax, torch.var, torch.max, torch.logsumexp):
                yield lambda t, f=function, d=dim: f(t, d), [x]
    weights = [rand(*shape) for shape in ((1000, 1000), (10,), (50257, 768), (3, 3, 64, 64))] * 5
    yield torch._foreach_norm, [weights]
    yield nn.utils.get_total_norm, [weights]


def counting():
    for count in (1000, 1_000_000, 20_000_000):
        yield torch.bincount, [ints(100, count)]
        yield lambda t: torch.histc(t, 100), [rand(count)]
        yield lambda t: F.one_hot(t, 10), [ints(10, count)]
    for rows, width in ((32, 100), (64, 32000), (1, 1_000_000)):
        p = rand(rows, width).softmax(-1)
        yield lambda t: torch.multinomial(t, 1), [p]
        yield lambda t: torch.multinomial(t, 10), [p]
        yield lambda t: torch.multinomial(t, 10, replacement=True), [p]


def transforms():
    for shape in ((64, 4096), (16, 3, 224, 224), (1_000_003,)):
        yield torch.fft.rfft, [rand(*shape)]
        yield torch.fft.fftn, [rand(*shape)]
        yield torch.fft.fft, [rand(*shape).to(torch.complex64)]
        yield lambda t: torch.fft.irfft(torch.fft.rfft(t)), [rand(*shape)]
    for batch, size in ((1, 64), (1, 2000), (64, 32), (16, 256)):
        x = rand(batch, size, size)
        symmetric = x @ x.transpose(1, 2) + size * torch.eye(size, device="cuda")
        for function in (torch.linalg.qr, torch.linalg.inv, torch.linalg.det, torch.linalg.lu_factor):
            yield function, [x]
        yield torch.linalg.solve, [x, rand(batch, size, 8)]
        yield torch.linalg.cholesky, [symmetric]
        if size <= 256:
            yield torch.linalg.svd, [x]
            yield torch.linalg.eigh, [symmetric]


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


SHAPES = ((1000, 1000), (10,), (4096, 1024), (64, 64, 3, 3), (7,)) * 8


def optimizers():
    from torch import optim

    kinds = {
        optim.AdamW: ({}, {"foreach": False}, {"fused": True}, {"amsgrad": True}),
        optim.Adam: ({"weight_decay": 0.1}, {"foreach": False}, {"fused": True}, {"capturable": True}),
        optim.SGD: (
            {},
            {"momentum": 0.9},
            {"momentum": 0.9, "foreach": False},
            {"momentum": 0.9, "fused": True},
            {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
        ),
        optim.RMSprop: ({"momentum": 0.9}, {"foreach": False}, {"centered": True}),
        optim.Adagrad: ({}, {"foreach": False}, {"fused": True}),
        optim.Adafactor: ({}, {"foreach": False}),
        optim.Adamax: ({},),
        optim.NAdam: ({},),
        optim.RAdam: ({},),
        optim.Adadelta: ({},),
        optim.Muon: ({},),
    }
    for dtype, (kind, variants) in itertools.product((torch.float32, torch.bfloat16), kinds.items()):
        for options in variants:
            shapes = [s for s in SHAPES if len(s) == 2] if kind is optim.Muon else SHAPES
            parameters = [nn.Parameter(rand(*shape, dtype=dtype)) for shape in shapes]
            for parameter in parameters:
                parameter.grad = torch.randn_like(parameter)
            optimizer = kind(parameters, lr=0.01, **options)
            yield optimizer.step, []
            yield optimizer.step, []
    for foreach in (True, False):
        yield lambda ps, f=foreach: nn.utils.clip_grad_norm_(ps, 1.0, foreach=f), [parameters]


def precision():
    parameters = [nn.Parameter(rand(*shape)) for shape in SHAPES]
    for fused in (False, True):
        scaler, optimizer = torch.amp.GradScaler("cuda"), torch.optim.AdamW(parameters, fused=fused)

        def step(scaler=scaler, optimizer=optimizer):
            loss = sum(p.float().sum() for p in parameters)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()

        yield step, []
        yield step, []
    for dtype in HALVES:
        linear, x = nn.Linear(1024, 4096, device="cuda"), rand(512, 1024, grad=True)

        def cast(t, linear=linear, dtype=dtype):
            with torch.autocast("cuda", dtype):
                return F.layer_norm(linear(t), (4096,)).softmax(-1)

        yield backward(cast), [x]
        yield lambda t, d=dtype: t.to(d), [rand(1000, 1000)]
