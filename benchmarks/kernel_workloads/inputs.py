"""Inputs of workloads, and their backward passes."""

from __future__ import annotations

import torch

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
