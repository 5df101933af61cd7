"""Operators on tensors: of single elements, orders, places, products, sums, transforms."""

from __future__ import annotations

import itertools

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from .inputs import EXTENTS, FLOATS, backward, ints, rand


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
