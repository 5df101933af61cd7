"""What memory looks like when it runs out, kept by an observer that PyTorch calls before it raises."""

from __future__ import annotations

import itertools
import os
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from jupyter_gpumem.devices import counters as pick_counters
from jupyter_gpumem.devices import driver_memory, loaded_torch, lost_context, ready_devices
from jupyter_gpumem.notebook import cell_of

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterator, Mapping
    from types import FrameType

    from jupyter_gpumem.devices import Backend
    from jupyter_gpumem.records import Counters, Device, DriverMemory, OomIncident, OomText

_ATTACH = "_cuda_attach_out_of_memory_observer"
_WAITS = "jupyter_gpumem: an observer of out-of-memory errors\n"
_MOST_FRAMES = 12
_SAME = 0.01

_OURS = __name__.partition(".")[0]
_ASKING = f"{_OURS}.devices.controls"
"""Where this package itself asks PyTorch for memory: what is refused there is told by whoever asked."""

_CELL = "run_cell_async"
"""The function of IPython's that runs cells."""

_RUNNING = {"safe_execfile": "%run", "safe_run_module": "%run", "_run_with_debugger": "%debug"}
"""Functions of IPython's that run code and show its error themselves, and the magics that are known for it."""

_SHELL = frozenset({"IPython", "ipykernel", "tornado"})


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
        failed_in: `function, line` of the innermost of them that is not PyTorch's, and its cell; or `None`.
        came: how it came, if nobody shows an error of it: `handled by the code`, `raised in the thread 'loader'`.
        time: when, in seconds since 1970.
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
    failed_in: str | None = None
    came: str = ""
    time: float = 0
    problem: str | None = None


@dataclass(slots=True)
class _Observation:
    """That PyTorch calls us, which cannot be undone, what it told last, and the lists of calls that wait for that."""

    attached: list[Any] = field(default_factory=list)
    queues: list[list[Any]] = field(default_factory=list)
    last: OomState | None = None
    incident: tuple[OomState, OomIncident] | None = None
    problem: str | None = None


_observation = _Observation()


def observe() -> OomState | None:
    """Have the state kept when memory runs out, from the moment on at which CUDA is initialised; about 1 us afterwards.

    Also while torch is being imported, as soon as there is `torch.cuda`. Nothing is initialised: what waits for that is
    among the calls that PyTorch itself puts off until then (`torch.cuda._lazy_call`).

    Returns:
        What was kept so far.
    """
    cuda = sys.modules.get("torch.cuda")
    queue = getattr(cuda, "_queued_calls", None)
    if cuda is None or queue is None or lost_context() is not None:
        return _observation.last
    if getattr(cuda, "_initialized", False):
        if cuda.is_initialized():  # it is not in a forked child
            _attach()
    elif not any(call is _attach for call, _ in queue):
        queue.append((_attach, [_WAITS]))
        _observation.queues.append(queue)
    return _observation.last


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
    """Return what was kept of the latest error that was not explained."""
    return _observation.last


def forget(text: OomText | None = None, before: OomState | None = None) -> None:
    """Drop what was kept.

    Args:
        text: what the error says whose state is dropped, if it is the one that was kept; `None` for any.
        before: what was kept before it, and is the latest again.
    """
    kept = _observation.last
    if text is None or (kept is not None and belongs(kept, text)):
        _observation.last, _observation.incident = before, None


def incident(state: OomState) -> OomIncident | None:
    """Return what a state was explained by, without its error."""
    noted = _observation.incident
    return noted[1] if noted is not None and noted[0] is state else None


def note_incident(state: OomState, found: OomIncident) -> None:
    """Keep what a state was explained by, for as long as it is the latest."""
    _observation.incident = (state, found)


def belongs(state: OomState, text: OomText) -> bool:
    """Whether a state is that in which the error with this text was raised."""
    if text.requested is None or state.tried is None:
        return text.family == "allocator"
    near = abs(text.requested - state.tried) <= max(_SAME * state.tried, 1)
    return near and text.device in {None, state.device.index}


def _on_out_of_memory(index: int, tried: int, _total: int, free: int) -> None:
    """Keep the state. Called by PyTorch on the thread that allocates; an exception here would replace the user's."""
    try:
        if not _asked_here():
            _observation.last = capture("cuda", index, tried, free)
    except Exception as problem:  # noqa: BLE001 - it is reported where the error is explained
        _observation.last = None  # an older one is not the latest any more
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
        failed_in=_failed_in(),
        came=_came(),
        time=time.time(),
    )


def _stream(backend: Backend, index: int) -> int:
    current = getattr(getattr(loaded_torch(), backend.kind, None), "current_stream", None)
    stream = current(index) if current is not None else None
    return int(getattr(stream, f"{backend.kind}_stream", 0))


def _benchmark() -> bool:
    torch = loaded_torch()
    return torch is not None and bool(torch.backends.cudnn.benchmark)


def _frames() -> Iterator[FrameType]:
    """Yield the Python frames that led here, the innermost first, without this package's own."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if _package(frame.f_globals) != _OURS:
            yield frame
        frame = frame.f_back


def _package(names: Mapping[str, Any]) -> str:
    return str(names.get("__name__", "")).partition(".")[0]


def _asked_here() -> bool:
    """Whether it was this package that asked for memory, not the user's code."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_globals.get("__name__") != _ASKING:
        frame = frame.f_back
    return frame is not None


def _places() -> tuple[str, ...]:
    found = itertools.islice(_frames(), _MOST_FRAMES)
    return tuple(f"{frame.f_code.co_name}, {frame.f_code.co_filename}:{frame.f_lineno}" for frame in found)


def _failed_in() -> str | None:
    frame = next((frame for frame in _frames() if _package(frame.f_globals) != "torch"), None)
    if frame is None:
        return None
    cell = cell_of(frame.f_code.co_filename)
    return f"{frame.f_code.co_name}, line {frame.f_lineno}{'' if cell is None else f' of {cell}'}"


def _came() -> str:
    """Return how an error comes that ends no cell."""
    thread = next((one for one in threading.enumerate() if one.ident == threading.get_ident()), None)
    # The backward pass has threads of its own, which Python did not start; what fails there is raised in the caller's.
    around = _around()
    if thread is None or isinstance(thread, threading._DummyThread) or around is not None:
        magic = _RUNNING.get(around or "")
        return "handled by the code" if magic is None else f"raised in code that {magic} ran"
    task = _task()
    if task is not None:
        return f"raised in the task {task.get_name()!r}"
    if thread is not threading.main_thread():
        return f"raised in the thread {thread.name!r}"
    return "raised in a callback"


def _around() -> str | None:
    """Return the function of IPython's, of those that run code, that runs this; `None` outside of cells."""
    known = {_CELL, *_RUNNING}
    names = (frame.f_code.co_name for frame in _frames() if _package(frame.f_globals) == "IPython")
    return next((name for name in names if name in known), None)


def _task() -> asyncio.Task[Any] | None:
    """Return the user's task that runs in this thread, if one does; the shell runs its cells in one of its own."""
    module = sys.modules.get("asyncio")
    loop = module._get_running_loop() if module is not None else None
    task = module.current_task(loop) if module is not None and loop is not None else None
    names = getattr(getattr(task and task.get_coro(), "cr_frame", None), "f_globals", None) or {}
    return None if _package(names) in _SHELL else task
