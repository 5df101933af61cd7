"""What programs do on a virtual H200, in short."""

from __future__ import annotations

import pytest

from jupyter_gpumem.units import MiB

torch = pytest.importorskip("torch")

WORKSPACES = 65 * MiB  # on an H200: cuBLAS forwards and backwards 32 MiB each, cuBLASLt 1 MiB


def allocated() -> int:
    return torch.cuda.memory_allocated()


def randn(*size, **options):
    return torch.randn(*size, device="cuda", **options)
