"""The card as NVIDIA's driver sees it, through NVML (`nvidia-ml-py`).

The driver numbers cards its own way: it knows neither `CUDA_VISIBLE_DEVICES` nor CUDA's fastest-first order
(gpuopenanalytics/pynvml#28), so a card is only ever found by UUID or PCI bus id. Where that fails the answer is `None`:
a missing number is better than another card's.
"""

from __future__ import annotations

import contextlib
import os
import threading
from typing import Any

import psutil

from jupyter_gpumem.records import Device, DriverMemory

_INITIAL_PID_NAMESPACE = "pid:[4026531836]"  # Linux: PROC_PID_INIT_INO
_SAME_CARD = 0.03  # PyTorch's total and the driver's differ by what the driver keeps back, 0.4 % on an H200


class NvmlDriver:
    """NVIDIA's driver. Starts NVML at the first question and remembers if there is none."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._nvml: Any | None = None
        self._failed = False
        self._handles: dict[Device, Any] = {}
        self._own: dict[Device, tuple[int, int, int | None]] = {}

    def memory(self, device: Device) -> DriverMemory | None:
        nvml = self._started()
        handle = self._handle(nvml, device) if nvml else None
        if nvml is None or handle is None:
            return None
        try:
            total, used, free = _levels(nvml, handle)
            return DriverMemory(total, used, free, self._own_bytes(nvml, device, handle, used), "nvml")
        except nvml.NVMLError:
            return None

    def cards(self) -> tuple[tuple[Device, DriverMemory], ...]:
        nvml = self._started()
        if nvml is None:
            return ()
        found = []
        for index in range(nvml.nvmlDeviceGetCount()):
            with contextlib.suppress(nvml.NVMLError):  # one card in trouble does not hide the others
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                total, used, free = _levels(nvml, handle)
                memory = DriverMemory(total, used, free, _own_bytes(nvml, handle), "nvml")
                name, uuid = _text(nvml.nvmlDeviceGetName(handle)), _text(nvml.nvmlDeviceGetUUID(handle))
                found.append((Device("GPU", index, name, memory.total, uuid), memory))
        return tuple(found)

    def _started(self) -> Any | None:
        if self._nvml is None and not self._failed:
            with self._lock:
                self._nvml = _start()
                self._failed = self._nvml is None
        return self._nvml

    def _own_bytes(self, nvml: Any, device: Device, handle: Any, used: int) -> int | None:
        """Return this process's bytes, listed anew when those in use on the card, or the process by a fork, changed.

        The list costs twice what the levels cost. What stays unseen is that we took exactly what others gave back.
        """
        known = self._own.get(device)
        if known is None or known[:2] != (os.getpid(), used):
            known = self._own[device] = (os.getpid(), used, _own_bytes(nvml, handle))
        return known[2]

    def _handle(self, nvml: Any, device: Device) -> Any | None:
        if device not in self._handles:
            self._handles[device] = _find(nvml, device)
        return self._handles[device]


def _start() -> Any | None:
    """Return `pynvml` with NVML started, or `None` without library, driver or permission."""
    try:
        import pynvml
    except (ImportError, OSError):
        return None
    try:
        pynvml.nvmlInit()
    except (OSError, pynvml.NVMLError):
        return None
    return pynvml


def _find(nvml: Any, device: Device) -> Any | None:
    """Return the handle of the very card, or MIG slice, that `device` is; `None` if nothing matches beyond doubt."""
    lookups = []
    if device.uuid:
        bare = device.uuid.removeprefix("GPU-").removeprefix("MIG-")
        lookups = [(nvml.nvmlDeviceGetHandleByUUID, f"{prefix}-{bare}") for prefix in ("GPU", "MIG")]
    if device.pci_bus_id:
        lookups.append((nvml.nvmlDeviceGetHandleByPciBusId, device.pci_bus_id))
    for lookup, key in lookups:
        try:
            handle = lookup(key.encode())
            total = nvml.nvmlDeviceGetMemoryInfo(handle).total
        except nvml.NVMLError:
            continue
        # A MIG slice can lead to its parent card: the sizes tell.
        if device.total is None or abs(total - device.total) <= _SAME_CARD * total:
            return handle
    return None


def _levels(nvml: Any, handle: Any) -> tuple[int, int, int]:
    """Return a card's total, used and free bytes."""
    try:  # the first version of the call counts what the driver keeps for itself as used
        info = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
    except (nvml.NVMLError, AttributeError):
        info = nvml.nvmlDeviceGetMemoryInfo(handle)
    return info.used + info.free, info.used, info.free


def _own_bytes(nvml: Any, handle: Any) -> int | None:
    """Return this process's bytes on the card, 0 if it is not there, `None` where process ids cannot be trusted.

    From inside a container the driver may list the host's process ids, among which ours means somebody else
    (NVIDIA/nvidia-docker#1483); under WDDM the bytes themselves are missing.
    """
    try:
        listed = {p.pid: p.usedGpuMemory for p in nvml.nvmlDeviceGetComputeRunningProcesses(handle)}
    except nvml.NVMLError:
        return None
    if not _sees_real_pids() and not all(map(psutil.pid_exists, listed)):
        return None
    if os.getpid() in listed:
        own: int | None = listed[os.getpid()]
        return own
    return 0 if _sees_real_pids() else None


def _sees_real_pids() -> bool:
    """Whether this process lives in the machine's first pid namespace, where the driver's ids are the real ones."""
    try:
        return os.readlink("/proc/self/ns/pid") == _INITIAL_PID_NAMESPACE
    except OSError:  # no /proc: Windows has one namespace; other systems have no NVML
        return os.name == "nt"


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
