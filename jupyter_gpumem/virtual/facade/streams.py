"""Streams and events. Nothing runs on them, so everything is finished at once; allocations are told apart by them.

`torch.cuda.Stream` and `torch.cuda.Event` wrap two types of the compiled part. A CPU build has stand-ins that refuse to
be made; those get what they lack, so that also classes imported before work. A CUDA build has the real types, which ask
the driver; there the classes of `torch.cuda` are replaced by the same code on top of these.
"""

from __future__ import annotations

import itertools
import time
import types
from typing import TYPE_CHECKING, Any

import torch

from .classes import is_virtual, substitute
from .selection import PRIORITIES, handle, is_high

if TYPE_CHECKING:
    from collections.abc import Callable

    from jupyter_gpumem.virtual.patches import Patches

    from .state import State

_CUDA = 1  # c10::DeviceType
_events = itertools.count(1)


class VirtualStream:
    """What a `torch.cuda.Stream` is made of."""

    stream_id: int
    device_index: int
    device_type = _CUDA

    @property
    def device(self) -> torch.device:
        """The card."""
        return torch.device("cuda", self.device_index)

    @property
    def cuda_stream(self) -> int:
        """The handle."""
        return handle(self.device_index, self.stream_id)

    @property
    def native_handle(self) -> int:
        """The handle, under its device-neutral name."""
        return self.cuda_stream

    @property
    def priority(self) -> int:
        """0, or -1 for high."""
        return -1 if is_high(self.stream_id) else 0

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """Return the lowest and the highest priority."""
        return 0, 1 - PRIORITIES

    def query(self) -> bool:
        """Return that everything is finished."""
        return True

    def is_capturing(self) -> bool:
        """Return that no CUDA graph is captured."""
        return False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, torch.cuda.Stream) and (self.stream_id, self.device_index) == (
            other.stream_id,
            other.device_index,
        )

    def __hash__(self) -> int:
        return hash((self.stream_id, self.device_index))

    def __enter__(self) -> Any:
        self.__dict__.setdefault("_entered", []).append(context := torch.cuda.StreamContext(self))
        context.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.__dict__["_entered"].pop().__exit__(*error)


class VirtualEvent:
    """What a `torch.cuda.Event` is made of."""

    cuda_event = 0
    _timing = False
    _recorded_at: float | None = None
    device: torch.device | None = None

    def query(self) -> bool:
        """Return that everything is finished."""
        return True

    def wait(self, stream: Any = None) -> None:
        """Return at once."""

    def synchronize(self) -> None:
        """Return at once."""


class Streams:
    """Makes streams and events, and keeps which stream a thread uses."""

    def __init__(self, state: State) -> None:
        self._state = state

    def install(self, patches: Patches) -> None:
        """Put everything in place."""
        for name, binding in self._bindings().items():
            patches.set(torch._C, name, binding)
        for base, parts, replace in (
            (torch._C._CudaStreamBase, _parts(VirtualStream) | self._stream_methods(), _replace_streams),
            (torch._C._CudaEventBase, _parts(VirtualEvent) | self._event_methods(), _replace_events),
        ):
            if isinstance(vars(base).get("__init__"), types.FunctionType):
                for name, part in parts.items():
                    patches.set(base, name, part)
            else:
                replace(patches, type(base.__name__, (), parts))
        substitute(patches, "Stream", _neutral("Stream"), lambda: torch.cuda.Stream)
        substitute(patches, "Event", _neutral("Event"), lambda: torch.cuda.Event)

    def _bindings(self) -> dict[str, Callable[..., Any]]:
        return {
            "_cuda_getCurrentStream": lambda index: (self._state.selection.stream(index), index, _CUDA),
            "_cuda_getDefaultStream": lambda index: (0, index, _CUDA),
            "_cuda_getStreamFromExternal": lambda pointer, index: (pointer, index, _CUDA),
            "_cuda_getCurrentRawStream": self._state.selection.handle,
            "_cuda_setStream": self._select,
            "_cuda_isCurrentStreamCapturing": lambda: False,
        }

    def _select(self, stream_id: int, device_index: int, device_type: int) -> None:
        self._state.selection.device = device_index
        self._state.selection.streams[device_index] = stream_id
        self._state.memory.set_stream(device_index, handle(device_index, stream_id))

    def _stream_methods(self) -> dict[str, Any]:
        state = self._state

        def new(
            cls: type,
            priority: int = 0,
            stream_id: int | None = None,
            device_index: int | None = None,
            device_type: int = _CUDA,
            stream_ptr: int | None = None,
        ) -> Any:
            torch.cuda.init()
            made: Any = object.__new__(cls)
            made.device_index = state.selection.device if device_index is None else device_index
            if stream_ptr is not None:
                made.stream_id = stream_ptr
            elif stream_id is None:
                made.stream_id = state.streams.take(made.device_index, high=priority < 0)
            else:
                made.stream_id = stream_id
            return made

        def synchronize(self: Any) -> None:
            state.memory.complete(self.device_index)

        return {"__new__": staticmethod(new), "__init__": _accept_anything, "synchronize": synchronize}

    def _event_methods(self) -> dict[str, Any]:
        state = self._state

        def new(
            cls: type,
            enable_timing: bool = False,
            blocking: bool = False,
            interprocess: bool = False,
            external: bool = False,
        ) -> Any:
            made: Any = object.__new__(cls)
            made._timing = enable_timing
            return made

        def record(self: Any, stream: Any = None) -> None:
            stream = torch.cuda.current_stream() if stream is None else stream
            if not self.cuda_event:
                self.cuda_event = next(_events)
                self.device = stream.device
            elif self.device != stream.device:
                raise RuntimeError(
                    f"Event device {self.device.index} does not match recording stream's device {stream.device.index}."
                )
            self._recorded_at = time.perf_counter()

        def elapsed_time(self: Any, end: Any) -> float:
            if not (self._timing and end._timing):
                raise ValueError("Both events must be created with argument 'enable_timing=True'.")
            if self._recorded_at is None or end._recorded_at is None:
                raise ValueError("Both events must be recorded before calculating elapsed time.")
            state.note("Event.elapsed_time()", "the time that passed on the host")
            return 1000 * float(end._recorded_at - self._recorded_at)

        def refuse(*_: object) -> None:
            raise RuntimeError("a virtual card's event cannot be shared with another process; use one process")

        return {
            "__new__": staticmethod(new),
            "__init__": _accept_anything,
            "record": record,
            "elapsed_time": elapsed_time,
            "ipc_handle": refuse,
            "from_ipc_handle": staticmethod(refuse),
        }


def _neutral(name: str) -> Callable[..., Any]:
    """Return what makes a stream or event for `torch.Stream` and `torch.Event`, whose device may be left out."""

    def make(device: Any = None, **kwargs: Any) -> Any:
        if device is not None and not is_virtual(device):
            return None
        if device is None or name == "Event":  # an event belongs to the card where it is first recorded
            return getattr(torch.cuda, name)(**kwargs)
        return torch.cuda.Stream(device=device, **kwargs)

    return make


def _accept_anything(self: Any, *args: Any, **kwargs: Any) -> None:
    """Initialise nothing: `__new__` did it."""


def _parts(made_of: type) -> dict[str, Any]:
    """Return what a class defines, to be defined by another one."""
    generated = ("__module__", "__qualname__", "__dict__", "__weakref__", "__doc__", "__annotations__")
    return {name: part for name, part in vars(made_of).items() if name not in generated}


def _on_top_of(base: type, found: type, **own: Any) -> type:
    """Return a class with the methods of `found` on top of another base.

    A method that calls its base by `super()` is bound to the old one; the new base has its own.
    """

    def usable(part: Any) -> bool:
        code = getattr(getattr(part, "__func__", part), "__code__", None)
        return code is None or "__class__" not in code.co_freevars

    taken = {name: part for name, part in _parts(found).items() if name not in vars(base) and usable(part)}
    return type(found.__name__, (base,), taken | {"__module__": found.__module__, "__doc__": found.__doc__} | own)


def _replace_streams(patches: Patches, base: type) -> None:
    make = vars(base)["__new__"].__func__

    def new(cls: type, device: Any = None, priority: int = 0, **kwargs: Any) -> Any:
        if device is not None:
            kwargs["device_index"] = torch.cuda._utils._get_device_index(device, optional=True)
        return make(cls, priority=priority, **kwargs)

    def new_external(cls: type, stream_ptr: int, device: Any = None, **kwargs: Any) -> Any:
        return new(cls, device, stream_ptr=stream_ptr, **kwargs)

    stream = _on_top_of(base, torch.cuda.Stream, __new__=staticmethod(new))
    external = _on_top_of(stream, torch.cuda.ExternalStream, __new__=staticmethod(new_external))
    for module in (torch.cuda, torch.cuda.streams):
        patches.set(module, "Stream", stream)
        patches.set(module, "ExternalStream", external)


def _replace_events(patches: Patches, base: type) -> None:
    event = _on_top_of(base, torch.cuda.Event)
    for module in (torch.cuda, torch.cuda.streams):
        patches.set(module, "Event", event)
