"""What memory looks like when it runs out, kept by an observer that PyTorch calls before it raises."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from jupyter_gpumem.devices import counters as pick_counters
from jupyter_gpumem.devices import driver_memory, loaded_torch, lost_context, ready_devices

if TYPE_CHECKING:
    from jupyter_gpumem.devices import Backend
    from jupyter_gpumem.records import Counters, Device, DriverMemory

_ATTACH = "_cuda_attach_out_of_memory_observer"
_WAITS = "jupyter_gpumem: an observer of out-of-memory errors\n"
_MOST_FRAMES = 12


@dataclass(frozen=True, slots=True)
class OomState:
    """A device when memory ran out: numbers and names only.

    Attributes:
        device: which.
        tried: bytes of the segment that was asked for, or `None` if this was seen only afterwards.
        free: bytes the driver had left.
        counters, driver, limit, segments, settings: as the back end gives them.
        stream: handle of the stream of the request.
        benchmark: whether cuDNN searched for algorithms.
        places: `function, file:line` of the Python code, the innermost first.
        problem: why something could not be read, or `None`.
    """

    device: Device
    tried: int | None
    free: int | None
    counters: Counters
    driver: DriverMemory | None
    limit: int | None
    segments: list[dict[str, Any]] | None
    settings: dict[str, Any]
    stream: int = 0
    benchmark: bool = False
    places: tuple[str, ...] = ()
    problem: str | None = None


@dataclass(slots=True)
class _Observation:
    """That PyTorch calls us, which cannot be undone, what it told last, and the lists of calls that wait for that."""

    attached: list[Any] = field(default_factory=list)
    queues: list[list[Any]] = field(default_factory=list)
    last: OomState | None = None
    problem: str | None = None


_observation = _Observation()


def observe() -> None:
    """Have the state kept when memory runs out, from the moment on at which CUDA is initialised; about 1 us afterwards.

    Also while torch is being imported, as soon as there is `torch.cuda`. Nothing is initialised: what waits for that is
    among the calls that PyTorch itself puts off until then (`torch.cuda._lazy_call`).
    """
    cuda = sys.modules.get("torch.cuda")
    queue = getattr(cuda, "_queued_calls", None)
    if cuda is None or queue is None or lost_context() is not None:
        return
    if getattr(cuda, "_initialized", False):
        if cuda.is_initialized():  # it is not in a forked child
            _attach()
    elif not any(call is _attach for call, _ in queue):
        queue.append((_attach, [_WAITS]))
        _observation.queues.append(queue)


def stop_waiting() -> None:
    """Take back what waits for CUDA to be initialised."""
    current = getattr(sys.modules.get("torch.cuda"), "_queued_calls", None) or []
    for queue in (*_observation.queues, current):
        queue[:] = [entry for entry in queue if entry[0] is not _attach]
    _observation.queues.clear()


def _attach() -> None:
    """Have PyTorch call us, once for each allocator."""
    attach = getattr(sys.modules["torch"]._C, _ATTACH, None)
    # A virtual GPU has a binding of its own, and each process has its own allocators.
    mark = (os.getpid(), getattr(attach, "__self__", attach))
    if attach is not None and not any(mark[0] == pid and mark[1] is owner for pid, owner in _observation.attached):
        attach(_on_out_of_memory)
        _observation.attached.append(mark)


def last_state() -> OomState | None:
    """Return what was kept last."""
    return _observation.last


def forget() -> None:
    """Drop what was kept."""
    _observation.last = None


def _on_out_of_memory(index: int, tried: int, _total: int, free: int) -> None:
    """Keep the state. Called by PyTorch on the thread that allocates; an exception here would replace the user's."""
    try:
        _observation.last = capture("cuda", index, tried, free)
    except Exception as problem:  # noqa: BLE001 - it is reported where the error is explained
        _observation.problem = f"{type(problem).__name__}: {problem}"


def problem() -> str | None:
    """Return why the state could not be kept, once."""
    text, _observation.problem = _observation.problem, None
    return text


def capture(kind: str, index: int, tried: int | None = None, free: int | None = None) -> OomState | None:
    """Return the state of a device now; `None` if it is not in use. Needs no device memory; 2 ms for 2,000 blocks."""
    backend = next((found for found, number in ready_devices() if found.kind == kind and number == index), None)
    if backend is None:
        return None
    driver = driver_memory(backend, index)
    return OomState(
        device=backend.device(index),
        tried=tried,
        free=free if free is not None else driver.free if driver is not None else None,
        counters=pick_counters(backend.stats(index)),
        driver=driver,
        limit=backend.limit(index),
        segments=backend.segments(index),
        settings=backend.settings(),
        stream=_stream(backend, index),
        benchmark=_benchmark(),
        places=_places(),
    )


def _stream(backend: Backend, index: int) -> int:
    current = getattr(getattr(loaded_torch(), backend.kind, None), "current_stream", None)
    stream = current(index) if current is not None else None
    return int(getattr(stream, f"{backend.kind}_stream", 0))


def _benchmark() -> bool:
    torch = loaded_torch()
    return torch is not None and bool(torch.backends.cudnn.benchmark)


def _places() -> tuple[str, ...]:
    places: list[str] = []
    frame = sys._getframe(2)
    ours = __name__.partition(".")[0]
    while frame is not None and len(places) < _MOST_FRAMES:
        if str(frame.f_globals.get("__name__", "")).partition(".")[0] != ours:
            places.append(f"{frame.f_code.co_name}, {frame.f_code.co_filename}:{frame.f_lineno}")
        if frame.f_back is None:
            break
        frame = frame.f_back
    return tuple(places)
