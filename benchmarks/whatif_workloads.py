"""What `whatif_gpu.py` records: training, generation, and what is hard about replaying them.

Each workload is given the module `torch` and returns a word on how it went. All depend on the seed alone.
"""

from __future__ import annotations

import functools
import os
import random

from predict_cases import CASES

SEED = int(os.environ.get("WHATIF_SEED", "0"))
"""Another seed gives other lengths, sizes and orders: recordings that nothing was fitted to."""


def step(torch, model, optimizer, batch) -> None:
    with torch.autocast("cuda", torch.bfloat16):
        loss = model(batch).float().pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def encoder(torch, layers=4 + SEED, width=768):
    layer = torch.nn.TransformerEncoderLayer(width, 12, 4 * width, batch_first=True, dropout=0.0)
    return torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).cuda()


def lengths(torch, count, low=128, high=4096):
    generator = torch.Generator().manual_seed(7 + SEED)
    return [int(n) for n in torch.randint(low, high, (count,), generator=generator)]


def cnn(torch) -> str:
    import torchvision

    model = torchvision.models.resnet50().cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    sizes = [160, 224, 192, 256, 128, 224, 288, 160]
    for size in sizes[SEED:] + sizes[:SEED]:
        step(torch, model, optimizer, torch.randn(24 + 4 * SEED, 3, size, size, device="cuda"))
    return "ok"


def transformer(torch) -> str:
    model = encoder(torch)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(8):
        step(torch, model, optimizer, torch.randn(4 + SEED, 1024 + 256 * SEED, 768, device="cuda"))
    return "ok"


def varlen(torch, steps=40, empty_every=0) -> str:
    model = encoder(torch)
    optimizer = torch.optim.AdamW(model.parameters())
    for number, length in enumerate(lengths(torch, steps)):
        step(torch, model, optimizer, torch.randn(2, length, 768, device="cuda"))
        if empty_every and number % empty_every == empty_every - 1:
            torch.cuda.empty_cache()
    return "ok"


def emptying(torch) -> str:
    return varlen(torch, empty_every=5)


def generate(torch) -> str:
    """Decode with a cache that grows by concatenation."""
    width, layers, batch = 1024, 8, 16 + 4 * SEED
    weights = [torch.randn(width, 4 * width, device="cuda", dtype=torch.bfloat16) for _ in range(layers)]
    caches = [torch.randn(batch, 64, width, device="cuda", dtype=torch.bfloat16) for _ in range(layers)]
    with torch.no_grad():
        x = torch.randn(batch, 1, width, device="cuda", dtype=torch.bfloat16)
        for _ in range(160 + 24 * SEED):
            for number, weight in enumerate(weights):
                caches[number] = torch.cat([caches[number], x], dim=1)
                scores = torch.softmax(x @ caches[number].transpose(1, 2), dim=-1)
                x = x + scores @ caches[number]
                x = x + torch.relu(x @ weight) @ weight.t() / width
                x = x / x.norm(dim=-1, keepdim=True)
    return "ok"


def oom(torch) -> str:
    """Ask for too much now and then, and go on with less, as batch-size searches do."""
    model = encoder(torch, layers=2)
    optimizer = torch.optim.AdamW(model.parameters())
    failed = 0
    for number, length in enumerate(lengths(torch, 20)):
        batch = None
        try:
            batch = torch.empty(2**42 if number % 5 == 4 else 2 * length * 768, device="cuda")
            step(torch, model, optimizer, batch.view(2, length, 768).normal_())
        except torch.OutOfMemoryError:
            failed += 1
            optimizer.zero_grad()
    return f"{failed} failed requests"


def streams(torch) -> str:
    """Two streams that use each other's memory."""
    rng = random.Random(3 + SEED)
    side, kept = torch.cuda.Stream(), []
    for _ in range(1500):
        x = torch.empty(rng.choice((3_000, 70_000, 900_000, 5_000_000, 30_000_000)), device="cuda")
        with torch.cuda.stream(side):
            y = torch.empty(rng.choice((10_000, 400_000, 7_000_000)), device="cuda")
            x.record_stream(side)
            y.fill_(1)
            x[: y.numel()].add_(1)
        kept.append(rng.choice((x, y)))
        if len(kept) > 40:
            kept.pop(rng.randrange(40))
    return "ok"


def change(torch) -> str:
    """Settings that change in the middle: nothing in a trace tells when."""
    varlen(torch, steps=15)
    set_settings = getattr(torch._C, "_accelerator_setAllocatorSettings", None)
    (set_settings or torch.cuda.memory._set_allocator_settings)("expandable_segments:True")
    return varlen(torch, steps=15)


WORKLOADS = {
    function.__name__: function for function in (cnn, generate, varlen, transformer, emptying, oom, streams, change)
}


def program(case, torch) -> str:  # noqa: ARG001 - it has torch itself
    return f"{sum(1 for _ in case.function())} steps"


PROGRAMS = {case.name: functools.partial(program, case) for case in CASES.values()}
"""The programs of `predict_cases`: nothing in the model of the driver's addresses was chosen on any of them."""
