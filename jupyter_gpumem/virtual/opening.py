"""`gm.virtual_gpu`: there to be imported everywhere; what it needs is looked for when a card is wanted."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING

from jupyter_gpumem.allocator.environment import starting_settings
from jupyter_gpumem.arguments import check_text
from jupyter_gpumem.devices import torch_installed
from jupyter_gpumem.errors import UnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jupyter_gpumem.allocator.settings import AllocatorSettings

    from .session import VirtualGpu


@contextlib.contextmanager
def virtual_gpu(gpu: str = "A100-80GB", settings: AllocatorSettings | str | None = None) -> Iterator[VirtualGpu]:
    """Have a virtual GPU inside a `with` block.

    Args:
        gpu: the card, several or a size: `A100-80GB`, `2xA100-40GB`, `24GiB`.
        settings: PyTorch's allocator settings, as it writes them: `expandable_segments:True`; by default those that the
            environment gives (`PYTORCH_CUDA_ALLOC_CONF`), as on a real card. An empty text: PyTorch's defaults.

    Raises:
        InvalidValueError: the card is not known, or the settings, also those of the environment, are not understood.
        UnavailableError: one is on already, PyTorch is not installed, or it cannot have one here.
    """
    check_text("gpu", gpu, "A100-80GB")
    check_installed()
    from . import session

    started = session.start(gpu, starting_settings() if settings is None else settings)
    try:
        yield started
    finally:
        if not sys.is_finalizing():  # a generator's block may end when modules are gone, and all else with them
            session.stop()


def check_installed() -> None:
    """Refuse where there is no PyTorch.

    Raises:
        UnavailableError: it is not installed.
    """
    if not torch_installed():
        raise UnavailableError("a virtual GPU needs PyTorch, which is not installed here; install torch and try again")
