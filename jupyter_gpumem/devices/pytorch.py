"""The devices PyTorch manages, read through its own counters. The only module that imports torch, and never first.

While the user has not imported torch, or not initialised a device, there is nothing to read and nothing is touched.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import sys
from typing import TYPE_CHECKING, Any

from jupyter_gpumem.records import Device, DriverMemory

from .base import VIRTUAL
from .context import lost_context, touching
from .controls import AllocatorControls
from .interception import Interception, original
from .workspaces import candidates

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .base import Controls, Stats, Watcher


def loaded_torch() -> Any | None:
    """Return torch if the process has imported it (completely enough to be asked), else `None`."""
    torch = sys.modules.get("torch")
    if getattr(getattr(torch, "__spec__", None), "_initializing", False):
        return None  # another thread is importing it at this moment
    return torch if torch is not None and hasattr(torch, "_C") and hasattr(torch, "cuda") else None


_found: set[str] = set()


def torch_installed() -> bool:
    """Whether PyTorch is imported or could be. Looking takes 0.2 ms, so that it was found is remembered."""
    if "torch" in sys.modules:
        return sys.modules["torch"] is not None  # `None` blocks the import
    if "torch" in _found:
        return True
    if importlib.util.find_spec("torch") is None:
        return False
    _found.add("torch")
    return True


def explain_absence() -> str | None:
    """Return in one sentence why no device memory can be measured in this process, or `None` if it can (or may yet)."""
    lost = lost_context()
    if lost is not None:
        return lost
    torch = loaded_torch()
    if torch is None:
        if torch_installed():
            return None
        return "PyTorch is not installed in this kernel's environment; install torch and restart the kernel"
    built_for_cuda = torch.version.cuda is not None or torch.version.hip is not None
    # `device_count`, not `is_available`: it asks NVML first, which leaves later forks and CUDA_VISIBLE_DEVICES alone.
    if (
        (built_for_cuda and torch.cuda.device_count() > 0)
        or (hasattr(torch, "xpu") and torch.xpu.is_available())
        or torch.backends.mps.is_available()
    ):
        return None
    version = torch.__version__
    if not built_for_cuda:
        return f"this PyTorch ({version}) is built without GPU support"
    return f"PyTorch {version} sees no GPU; check the driver (nvidia-smi) and CUDA_VISIBLE_DEVICES"


def versions() -> dict[str, str]:
    """Return the versions of torch and of the GPU platform it was built for; empty while torch is not imported."""
    torch = loaded_torch()
    if torch is None:
        return {}
    found = {"torch": torch.__version__, "cuda": torch.version.cuda, "hip": torch.version.hip}
    return {name: str(version) for name, version in found.items() if version}


class CachingAllocator:
    """Devices under PyTorch's caching allocator: CUDA, ROCm (which PyTorch calls `cuda` too) and XPU.

    Args:
        kind: `cuda` or `xpu`; the bindings of both differ only in this prefix.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._devices: dict[int, Device] = {}
        self._raw: dict[str, Callable[..., Any]] = {}
        self._interception: Interception | None = None

    def _binding(self, name: str) -> Callable[..., Any]:
        """Return a binding of `torch._C` as it is without our own interception of it."""
        function = self._raw.get(name)
        if function is None:
            function = self._raw[name] = original(getattr(sys.modules["torch"]._C, f"_{self.kind}_{name}"))
        return function

    def _call(self, name: str, *args: Any) -> Any:
        with touching():
            return self._binding(name)(*args)

    def _module(self) -> Any | None:
        """Return `torch.cuda` or `torch.xpu` once it is initialised in this very process, else `None`."""
        module = None if lost_context() is not None else getattr(loaded_torch(), self.kind, None)
        return module if module is not None and module.is_initialized() else None

    def ready(self) -> Sequence[int]:
        module = self._module()
        if module is None:
            return ()
        count = module.device_count()
        if not hasattr(sys.modules["torch"]._C, f"_{self.kind}_hasPrimaryContext"):
            return range(count)
        # A device without a context has no memory of ours, and most calls would create one (hundreds of MiB).
        return [index for index in range(count) if self._call("hasPrimaryContext", index)]

    def count(self) -> int | None:
        module = self._module()
        return None if module is None else int(module.device_count())

    def device(self, index: int) -> Device:
        known = self._devices.get(index)
        if known is None:
            properties = sys.modules["torch"].get_device_module(self.kind).get_device_properties(index)
            uuid = getattr(properties, "uuid", None)
            bus = getattr(properties, "pci_bus_id", None)
            virtual = getattr(properties, VIRTUAL, None)
            known = self._devices[index] = Device(
                kind=self.kind,
                index=index,
                name=properties.name if virtual is None else virtual,
                total=properties.total_memory,
                # Of a card that is not there no driver can know anything: there is nothing to ask it by.
                uuid=None if uuid is None or virtual is not None else str(uuid),
                pci_bus_id=None
                if bus is None or virtual is not None
                else f"{properties.pci_domain_id:08x}:{bus:02x}:{properties.pci_device_id:02x}.0",
                virtual=virtual is not None,
            )
        return known

    def stats(self, index: int) -> Stats:
        return self._call("memoryStats", index)  # type: ignore[no-any-return]

    def reset_peaks(self, index: int) -> None:
        self._call("resetPeakMemoryStats", index)

    def memory(self, index: int) -> DriverMemory | None:
        module = self._module()
        if module is None or not hasattr(module, "mem_get_info"):
            return None
        try:
            free, total = module.mem_get_info(index)
        except RuntimeError:  # a lost context, or a platform without the call: unknown is the honest answer
            return None
        return DriverMemory(total=total, used=total - free, free=free, process=None, source="runtime")

    def _snapshot(self) -> dict[str, Any] | None:
        if self._module() is None:
            return None
        # Since torch 2.11 the copy of a long recording can be left out (pytorch/pytorch#172672); before, the argument
        # was the pool alone, and still earlier there was none.
        for arguments in ([(0, 0, False)], [None], []):
            with contextlib.suppress(TypeError, RuntimeError, AttributeError):
                snapshot = self._call("memorySnapshot", *arguments)
                return snapshot if isinstance(snapshot, dict) else None
        return None

    def segments(self, index: int) -> list[dict[str, Any]] | None:
        snapshot = self._snapshot()
        return None if snapshot is None else [s for s in snapshot["segments"] if s["device"] == index]

    def settings(self) -> dict[str, Any]:
        return dict((self._snapshot() or {}).get("allocator_settings", {}))

    def starting_text(self) -> str | None:
        return None

    def limit(self, index: int) -> int | None:
        get_fraction = getattr(self._module(), "get_per_process_memory_fraction", None)
        fraction = 1.0 if get_fraction is None else get_fraction(index)
        total = self.device(index).total
        return int(fraction * total) if fraction < 1.0 and total else None

    def owns(self, index: int, address: int, storage: object) -> bool:  # noqa: ARG002
        return True

    def workspaces(self, index: int) -> dict[int, int]:
        torch = loaded_torch()
        if torch is None or self.kind != "cuda":
            return {}
        found = candidates(self.segments(index) or [])
        tensors = _tensor_addresses(torch) if found else set()
        return {address: size for address, size in found.items() if address not in tensors}

    def watch(self, watcher: Watcher) -> Callable[[], None] | None:
        torch = sys.modules.get("torch")
        if not hasattr(getattr(torch, "_C", None), f"_{self.kind}_memoryStats"):
            return None
        for name in ("memoryStats", "resetPeakMemoryStats"):
            self._binding(name)  # now: later, someone else's wrapper may lie on top of ours
        if self._interception is None or not self._interception.serves(torch, watcher):
            self._interception = Interception(torch, self, watcher)
        return self._interception.install()

    def controls(self) -> Controls | None:
        return AllocatorControls(self.kind)


class MpsAllocator:
    """Apple's GPU: PyTorch keeps two levels for it and no peak, no count and no snapshot."""

    kind = "mps"

    def _module(self) -> Any | None:
        torch = loaded_torch()
        return torch.mps if torch is not None and torch.backends.mps.is_available() else None

    def ready(self) -> Sequence[int]:
        return () if self._module() is None else (0,)

    def count(self) -> int | None:
        return len(self.ready())

    def device(self, index: int) -> Device:
        module = self._module()
        return Device("mps", index, "Apple GPU", None if module is None else int(module.recommended_max_memory()))

    def stats(self, index: int) -> Stats:  # noqa: ARG002 - there is one device
        module = self._module()
        if module is None:
            return {}
        return {
            "allocated_bytes": {"all": {"current": module.current_allocated_memory()}},
            "reserved_bytes": {"all": {"current": module.driver_allocated_memory()}},
        }

    def reset_peaks(self, index: int) -> None:
        """Do nothing: there is no peak."""

    def memory(self, index: int) -> DriverMemory | None:  # noqa: ARG002
        return None

    def segments(self, index: int) -> list[dict[str, Any]] | None:  # noqa: ARG002
        return None

    def settings(self) -> dict[str, Any]:
        return {}

    def starting_text(self) -> None:
        return None

    def limit(self, index: int) -> int | None:  # noqa: ARG002
        return None

    def owns(self, index: int, address: int, storage: object) -> bool:  # noqa: ARG002
        return True

    def workspaces(self, index: int) -> dict[int, int]:  # noqa: ARG002
        return {}

    def watch(self, watcher: Watcher) -> None:
        """Do nothing: there is no counter that a user could reset."""

    def controls(self) -> None:
        """Return nothing: MPS has one setting, an environment variable, and no memory without a tensor."""


def _tensor_addresses(torch: Any) -> set[int]:
    """Return the storage addresses of the tensors Python can see, without touching lazy proxies or subclasses."""
    plain = (torch.Tensor, torch.nn.Parameter)
    found = set()
    for item in gc.get_objects():
        if type(item) in plain:
            with contextlib.suppress(RuntimeError, NotImplementedError):  # sparse and other storage-less layouts
                found.add(item.untyped_storage().data_ptr())
    return found
