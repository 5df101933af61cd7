"""Work that makes CUDA and its libraries take what they keep: one small use of each."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

TYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def stages():
    """Yield a name and a function for each, in an order that lets each add its own."""
    yield "torch.cuda.init", torch.cuda.init
    yield "a context: one tensor", partial(rand, 1)
    yield "a kernel", lambda: rand(1000).add_(1)
    for name, dtype in TYPES.items():
        yield f"mm {name}", partial(product, (512, 512), dtype)
        yield f"bmm {name}", partial(product, (4, 64, 64), dtype)
        yield f"linear with bias {name}, no grad", partial(infer, nn.Linear(512, 512), (64, 512), dtype)
        yield f"linear with bias {name}, backward", partial(train, nn.Linear(512, 512), (64, 512), dtype)
        yield f"attention {name}", partial(attention, dtype)
        yield f"convolution {name}", partial(train, nn.Conv2d(64, 64, 3), (8, 64, 56, 56), dtype)
        yield f"LSTM {name}", partial(train, nn.LSTM(256, 256), (16, 8, 256), dtype)
    yield "mm on another stream", product_on_a_stream
    yield "fused AdamW", fused_step
    yield "sort", lambda: rand(100_000).sort()
    yield "fft", lambda: torch.fft.rfft(rand(64, 4096))
    yield "cholesky", lambda: torch.linalg.cholesky(torch.eye(64, device="cuda"))
    yield "svd", lambda: torch.linalg.svd(torch.eye(64, device="cuda"))
    yield "clearing cuBLAS' workspaces", torch._C._cuda_clearCublasWorkspaces


def rand(*shape, dtype=torch.float32):
    return torch.randn(*shape, device="cuda", dtype=dtype)


def product(shape, dtype) -> None:
    torch.matmul(rand(*shape, dtype=dtype), rand(*shape, dtype=dtype))


def product_on_a_stream() -> None:
    with torch.cuda.stream(torch.cuda.Stream()):
        product((512, 512), torch.float32)


def infer(layer, shape, dtype) -> None:
    with torch.no_grad():
        layer.to("cuda", dtype)(rand(*shape, dtype=dtype))
    layer.cpu()


def train(layer, shape, dtype) -> None:
    """With the backward pass in autograd's own thread, as users' are."""
    result = layer.to("cuda", dtype)(rand(*shape, dtype=dtype).requires_grad_())
    (result[0] if isinstance(result, tuple) else result).float().sum().backward()
    layer.zero_grad()
    layer.cpu()


def attention(dtype) -> None:
    q = rand(2, 8, 256, 64, dtype=dtype).requires_grad_()
    F.scaled_dot_product_attention(q, q, q).float().sum().backward()


def fused_step() -> None:
    parameter = nn.Parameter(rand(9))
    parameter.grad = torch.ones_like(parameter)
    torch.optim.AdamW([parameter], fused=True).step()
