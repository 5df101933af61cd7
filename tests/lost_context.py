"""A CUDA context that is lost, and a watch on everything in PyTorch that would touch it."""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

TEXT = "CUDA error: device-side assert triggered"
LINE = "the CUDA context is lost (device-side assert); save what is on the CPU, then restart the kernel"

_BINDING = re.compile(r"_(cuda|xpu|accelerator)_")


@contextlib.contextmanager
def watched() -> Iterator[list[str]]:
    """Yield the names of the functions of PyTorch's that reach a device, as they are called."""
    import torch

    touched: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        for owner, wanted in ((torch._C, _BINDING.match), (torch.cuda, re.compile("[^_]").match)):
            for name, found in list(vars(owner).items()):
                if wanted(name) and callable(found) and not inspect.isclass(found):
                    patch.setattr(owner, name, _telling(found, f"{owner.__name__}.{name}", touched))
        yield touched


def _telling(found, name, touched):
    @functools.wraps(found)
    def told(*args, **kwargs):
        touched.append(name)
        return found(*args, **kwargs)

    return told
