"""Softmax of half precision numbers into single ones, which CUDA does in one kernel and other devices after a cast."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from .registry import Registry

_aten = torch.ops.aten


def install(registry: Registry) -> None:
    """Register `softmax` and `log_softmax` with a type for the result."""
    for name, kernel in (("softmax.int", _aten._softmax.default), ("log_softmax.int", _aten._log_softmax.default)):

        def run(
            data: torch.Tensor, dim: int, dtype: torch.dtype | None = None, *, kernel: object = kernel
        ) -> torch.Tensor:
            if data.dtype == torch.float16 and dtype == torch.float32:
                return kernel(data, dim, True)  # type: ignore[operator]
            cast = data if dtype is None else data.to(dtype)
            return kernel(cast, dim, False)  # type: ignore[operator]

        for key in ("AutogradPrivateUse1", "PrivateUse1"):
            registry.impl(name, run, key)
