"""What each operator takes from the allocator while it runs, on a real GPU.

A dispatch mode sees operators, the allocator's recording sees blocks; both count alike, so that the blocks between two
counts are those of one operator: its results and what its kernels need for themselves.
"""

from __future__ import annotations

import gzip
import json
from dataclasses import asdict, dataclass

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_SHORT = {"float": "f", "bfloat": "bf", "complex": "c", "int": "i", "uint": "u", "bool": "b"}
_ENTRIES = 1_000_000
_LISTED = 6  # tensors of a list, one by one


@dataclass(frozen=True)
class Call:
    """One operator.

    Attributes:
        op: name space, name and overload.
        args: its arguments, tensors as in "f32[8,512]" with strides if they are not contiguous.
        outs: what it returned, in the same form.
        before, after, peak: bytes allocated before, after, and at most inside.
        events: bytes asked for (+) and given back (-), in order, with the others' between this and the last call first.
        between: how many of the events came before this call.
    """

    op: str
    args: list
    outs: list
    before: int
    after: int
    peak: int
    events: list[int]
    between: int


class OperatorLog(TorchDispatchMode):
    """Logs every operator of this thread. For all of a backward pass, autograd must not use threads of its own.

    Ask for `calls()` afterwards.
    """

    def __enter__(self):
        torch.cuda.init()
        self._calls, self._device = [], torch.cuda.current_device()
        torch.cuda.memory._record_memory_history("all", context=None, max_entries=_ENTRIES)
        self._start = self._counts()[0]
        self._multithreading = torch.autograd.set_multithreading_enabled(mode=False)
        self._multithreading.__enter__()
        return super().__enter__()

    def __exit__(self, *exception):
        super().__exit__(*exception)
        self._multithreading.__exit__(*exception)
        self._trace = [
            event
            for event in torch.cuda.memory._snapshot()["device_traces"][self._device]
            if event["action"] in {"alloc", "free_requested"}
        ]
        torch.cuda.memory._record_memory_history(None)

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        given = [describe(a) for a in args] + [f"{name}={describe(value)}" for name, value in kwargs.items()]
        torch._C._cuda_resetPeakMemoryStats(self._device)
        begin, before, _ = self._counts()
        returned = operator(*args, **kwargs)
        end, after, peak = self._counts()
        outs = returned if isinstance(returned, (tuple, list)) and len(returned) <= _LISTED else [returned]
        self._calls.append((str(operator), given, [describe(o) for o in outs], before, after, peak, begin, end))
        return returned

    def _counts(self):
        """Return how many blocks were asked for or given back so far, and the bytes allocated now and at most."""
        stats = torch._C._cuda_memoryStats(self._device)
        blocks, allocated = stats["allocation"]["all"], stats["allocated_bytes"]["all"]
        return blocks["allocated"] + blocks["freed"], allocated["current"], allocated["peak"]

    def calls(self) -> list[Call]:
        """Return what happened, in order."""
        signed = [event["size"] if event["action"] == "alloc" else -event["size"] for event in self._trace]
        found, position = [], self._start
        for op, args, outs, before, after, peak, begin, end in self._calls:
            events = signed[position - self._start : end - self._start]
            found.append(Call(op, args, outs, before, after, peak, events, begin - position))
            position = end
        return found

    def write(self, path) -> None:
        """Save the calls as one JSON object a line, compressed."""
        with gzip.open(path, "wt", encoding="utf-8") as file:
            file.writelines(json.dumps(asdict(call), separators=(",", ":")) + "\n" for call in self.calls())


def read_calls(path) -> list[Call]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [Call(**json.loads(line)) for line in file]


def describe(value) -> str:
    """Return an argument or a result in short: a tensor by type, sizes and, if they say something, strides."""
    if isinstance(value, torch.Tensor):
        return tensor_text(value)
    if isinstance(value, (list, tuple)) and any(isinstance(v, torch.Tensor) for v in value):
        tensors = [v for v in value if isinstance(v, torch.Tensor)]
        sizes = [t.numel() for t in tensors]
        listed = (
            ",".join(map(tensor_text, tensors))
            if len(tensors) <= _LISTED
            else f"{sum(sizes)} elements, {max(sizes)} most"
        )
        return f"{len(tensors)} tensors({tensors[0].device.type} {type_text(tensors[0].dtype)}: {listed})"
    return str(value)


def tensor_text(tensor) -> str:
    layout = str(tensor.layout).removeprefix("torch.")
    sizes = ",".join(map(str, tensor.shape))
    device = "" if tensor.device.type == "cuda" else f"@{tensor.device.type}"
    if layout != "strided":
        return f"{type_text(tensor.dtype)}[{sizes}]{layout}{device}"
    strides = "" if tensor.is_contiguous() else f"/{','.join(map(str, tensor.stride()))}"
    return f"{type_text(tensor.dtype)}[{sizes}]{strides}{device}"


def type_text(dtype) -> str:
    name = str(dtype).removeprefix("torch.")
    kind = name.rstrip("0123456789")
    return _SHORT.get(kind, kind) + name[len(kind) :]
