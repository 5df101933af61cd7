"""What acts on PyTorch's caching allocator: settings, cache, raw memory, cap. Only what a user asked for comes here.

All of it refuses once the CUDA context is lost, with an `UnavailableError`.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import sys
from typing import TYPE_CHECKING, Any

from jupyter_gpumem.errors import UnavailableError

from .context import check_context, touching

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

SETTERS = ("_accelerator_setAllocatorSettings", "_cuda_cudaCachingAllocator_set_allocator_settings")
"""PyTorch's bindings that change the settings: of 2.10 and later, and of those before."""


class AllocatorControls:
    """Acts on the allocators of one device type.

    Args:
        kind: `cuda` or `xpu`.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def _module(self) -> Any:
        check_context()
        return getattr(sys.modules["torch"], self.kind)

    def _function(self, home: Any, *names: str) -> Callable[..., Any]:
        """Return the first function that this PyTorch has.

        Raises:
            UnavailableError: it has none of them.
        """
        for name in names:
            # Looked up at every call: a recording that runs wants to see it.
            function = getattr(home, name, None)
            if function is not None:
                return touching()(function)  # type: ignore[no-any-return]
        version = sys.modules["torch"].__version__
        raise UnavailableError(f"PyTorch {version} has no {names[0]} for {self.kind}; a later one may")

    def apply_settings(self, text: str) -> None:
        self._function(sys.modules["torch"]._C, *SETTERS)(text)

    def settings_text(self, values: Mapping[str, Any]) -> str | None:
        get_settings = getattr(sys.modules["torch"]._C, "_accelerator_getAllocatorSettings", None)
        if get_settings is not None:  # torch 2.12
            with touching():
                return str(get_settings())
        text = values.get("PYTORCH_CUDA_ALLOC_CONF")
        return text if isinstance(text, str) else None

    def empty_cache(self) -> None:
        self._function(self._module(), "empty_cache")()

    def clear_workspaces(self) -> None:
        self._function(sys.modules["torch"]._C, f"_{self.kind}_clearCublasWorkspaces")()

    def stream(self, index: int) -> int:
        stream = self._module().current_stream(index)
        return int(stream.cuda_stream if self.kind == "cuda" else stream.sycl_queue)

    def allocate(self, index: int, size: int, owned: list[int]) -> None:
        allocate = self._function(self._module(), "caching_allocator_alloc")
        with contextlib.suppress(sys.modules["torch"].OutOfMemoryError):
            owned.append(int(allocate(size, index)))

    def free(self, address: int) -> None:
        self._function(self._module(), "caching_allocator_delete")(address)

    def set_fraction(self, index: int, fraction: float) -> None:
        self._function(self._module(), "set_per_process_memory_fraction")(fraction, index)

    def shares_memory(self) -> bool:
        with contextlib.suppress(AttributeError):  # private, and not there in every PyTorch
            if len(sys.modules["torch"].multiprocessing.reductions.shared_cache):
                return True
        return bool(multiprocessing.active_children())
