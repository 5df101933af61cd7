"""What memory is taken for: every allocation of a run, with its part and its place in the user's code.

An allocation is first what it is made for (a forward pass, a kernel's temporary); it becomes a parameter, a gradient or
optimizer state when PyTorch makes it one. So the parts at any moment add up to what is allocated, to the byte.
"""

from __future__ import annotations

import sys
import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._device import _device_constructors

from .places import line_in
from .tapes import (
    ACTIVATIONS,
    BACKWARD,
    BEFORE,
    ELSEWHERE,
    EMPTIED,
    FORWARD,
    GRADIENTS,
    OTHER,
    PARAMETERS,
    STATE,
    STEP,
    TEMPORARIES,
    WORKSPACES,
    Tape,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import CodeType

    from .patches import Patches
    from .session import VirtualGpu

_raw_data = torch._C.TensorBase.data


class Parts:
    """Watches a virtual GPU while a trial runs.

    Args:
        gpu: the virtual GPU.
        moved: where its trial has put what was there before, as `VirtualGpu.trial` says.
        tensors: the tensors that were there before.
        optimizers: the optimizers that were there before.
        code: the file name of the user's code, or the code of the function.
        patches: where functions are replaced for as long as it watches.

    Attributes:
        tapes: one for each card.
        reserved: the most that was reserved on each; unlike the counter, nobody resets it.
    """

    def __init__(
        self,
        gpu: VirtualGpu,
        moved: list[dict[int, int]],
        tensors: Iterable[torch.Tensor],
        optimizers: Iterable[torch.optim.Optimizer],
        code: str | CodeType,
        patches: Patches,
    ) -> None:
        self._memory, self._code = gpu.memory, code
        self.tapes = [Tape() for _ in gpu.cards]
        self._live: list[dict[int, int]] = [{} for _ in gpu.cards]
        self._allocated = [0] * len(gpu.cards)
        self.reserved = [0] * len(gpu.cards)
        self._parameters: dict[int, weakref.ref[torch.Tensor]] = {}
        self._modules = self._steps = self._kernels = self._created = 0
        self._library: str | None = None
        self._begin(gpu, moved)
        self._mark_all(tensors, optimizers)
        self._watch(gpu, patches)

    # What was there before

    def _begin(self, gpu: VirtualGpu, moved: list[dict[int, int]]) -> None:
        libraries = {(key[1], address): key[0] for key, address in gpu.kernels.workspaces.items()}
        for device, addresses in enumerate(moved):
            tape, allocator = self.tapes[device], gpu.memory.allocators[device]
            for old, new in addresses.items():
                block = allocator.blocks[new]
                number = self._note(device, new, block.requested, block.size)
                self._live[device][old] = number
                tape.phases[number] = BEFORE
                tape.lines[number] = 0
                if library := libraries.get((device, new)):
                    tape.libraries[number], tape.parts[number] = library, WORKSPACES
            self._allocated[device], self.reserved[device] = allocator.total.size, allocator.reserved

    def _mark_all(self, tensors: Iterable[torch.Tensor], optimizers: Iterable[torch.optim.Optimizer]) -> None:
        with torch._C.DisableTorchFunction():  # parameters that have no shape yet refuse
            tensors = list(tensors)
            there = [tensor for tensor in tensors if tensor.get_device() >= 0]
            made = [tensor for tensor in there if tensor.is_leaf]
            returned = [tensor for tensor in there if not (tensor.is_leaf or tensor._is_view())]
        for some, part in ((made, OTHER), (returned, ACTIVATIONS)):  # what a graph holds as well belongs to that
            for tensor in some:
                self._mark(tensor, part)
        for tensor in tensors:
            if isinstance(tensor, torch.nn.Parameter):
                self._add_parameter(tensor)
        for optimizer in optimizers:
            self._mark_state(optimizer)
        self._mark_gradients()

    # What is watched

    def _watch(self, gpu: VirtualGpu, patches: Patches) -> None:
        memory, kernels = gpu.memory, gpu.kernels
        memory.observers.append(self._observe)
        patches.on_undo(lambda: memory.observers.remove(self._observe))
        patches.set(memory, "scratch", self._counting(memory.scratch, "_kernels"))
        self._watch_kernels(kernels, patches)
        for allocator, tape in zip(memory.allocators, self.tapes, strict=True):
            patches.set(allocator, "empty_cache", self._taped(allocator.empty_cache, tape))
        for handle in (
            register_module_forward_pre_hook(lambda _module, _args: self._enter("_modules")),
            register_module_forward_hook(lambda _module, _args, _result: self._leave("_modules"), always_call=True),
            register_optimizer_step_pre_hook(self._before_step),
            register_optimizer_step_post_hook(self._after_step),
        ):
            patches.on_undo(handle.remove)
        self._watch_creation(patches)
        self._watch_parameters(patches)
        self._watch_backward(patches)

    def _watch_kernels(self, kernels: Any, patches: Patches) -> None:
        """Tell what kernels and libraries take from the results that are made among it."""
        take, launch = kernels._take, self._counting(kernels.launch, "_kernels")

        def named_take(library: str, index: int, size: int) -> None:
            self._library = library
            try:
                take(library, index, size)
            finally:
                self._library = None

        def counted_launch(*args: Any) -> None:
            __tracebackhide__ = True
            *others, make = args

            def result() -> None:
                inside, self._kernels = self._kernels, 0
                try:
                    make()
                finally:
                    self._kernels = inside

            launch(*others, result)

        patches.set(kernels, "_take", named_take)
        patches.set(kernels, "launch", counted_launch)

    def _watch_creation(self, patches: Patches) -> None:
        """Tell tensors that the user makes, or brings from the host, from those that operators return."""
        tensor = torch.Tensor
        for name in sorted({function.__name__ for function in _device_constructors()} & vars(torch).keys()):
            patches.set(torch, name, self._counting(getattr(torch, name), "_created"))
        for name in ("new_empty", "new_empty_strided", "new_full", "new_ones", "new_tensor", "new_zeros"):
            patches.set(tensor, name, self._counting(getattr(tensor, name), "_created"))
        lazy = torch.nn.parameter.UninitializedTensorMixin
        for name in ("to", "cuda"):
            plain = getattr(tensor, name)
            counted = self._counting(plain, "_created")

            def move(one: torch.Tensor, *args: Any, _plain: Any = plain, _counted: Any = counted, **kwargs: Any) -> Any:
                __tracebackhide__ = True
                return (_plain if one.get_device() >= 0 else _counted)(one, *args, **kwargs)

            patches.set(tensor, name, move)
            patches.set(lazy, "_allowed_methods", [*lazy._allowed_methods, move])

    def _watch_parameters(self, patches: Patches) -> None:
        parameter, tensor = torch.nn.Parameter, torch.Tensor
        new, data, swap = parameter.__new__, tensor.data, torch._C._swap_tensor_impl

        def make(cls: Any, *args: Any, **kwargs: Any) -> Any:
            made = new(cls, *args, **kwargs)
            self._add_parameter(made)
            return made

        def set_data(owner: torch.Tensor, value: torch.Tensor) -> None:
            data.__set__(owner, value)
            if isinstance(owner, parameter):
                self._add_parameter(owner)

        def swapped(one: torch.Tensor, other: torch.Tensor) -> None:
            swap(one, other)
            for each in (one, other):
                if isinstance(each, parameter):
                    self._add_parameter(each)

        patches.set(parameter, "__new__", staticmethod(make))
        patches.set(tensor, "data", property(_raw_data.__get__, set_data))
        patches.set(torch._C, "_swap_tensor_impl", swapped)

    def _watch_backward(self, patches: Patches) -> None:
        plain = torch.autograd.graph._engine_run_backward

        def run_backward(*args: Any, **kwargs: Any) -> Any:
            try:
                return plain(*args, **kwargs)
            finally:
                self._mark_gradients()

        patches.set(torch.autograd.graph, "_engine_run_backward", run_backward)
        patches.set(torch.autograd, "_engine_run_backward", run_backward)

    def _counting(self, function: Callable[..., Any], counter: str) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            self._enter(counter)
            try:
                return function(*args, **kwargs)
            finally:
                self._leave(counter)

        return counted

    @staticmethod
    def _taped(empty_cache: Callable[[], None], tape: Tape) -> Callable[[], None]:
        def emptied() -> None:
            tape.events.append(EMPTIED)
            empty_cache()

        return emptied

    def _enter(self, counter: str) -> None:
        setattr(self, counter, getattr(self, counter) + 1)

    def _leave(self, counter: str) -> None:
        setattr(self, counter, getattr(self, counter) - 1)

    def _before_step(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                self._add_parameter(parameter)
        self._mark_gradients()
        self._enter("_steps")

    def _after_step(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        self._leave("_steps")
        self._mark_state(optimizer)

    # What is noted

    def _observe(self, kind: str, device: int, address: int, size: int) -> None:
        """Note an allocation or a free; the memory's lock is held."""
        allocator = self._memory._allocators[device]  # as it is: what waits comes to us later
        total = allocator.total.size
        self.reserved[device] = max(self.reserved[device], allocator.reserved)
        held, self._allocated[device] = total - self._allocated[device], total
        if kind == "alloc":
            number = self._note(device, address, size, held)
            if self._library is not None:
                self.tapes[device].libraries[number] = self._library
        elif kind == "free":
            number = self._live[device].pop(address, 0)
            if number:
                self.tapes[device].events.append(-number)

    def _note(self, device: int, address: int, size: int, held: int) -> int:
        tape = self.tapes[device]
        number = len(tape.sizes)
        part, phase = self._purpose()
        tape.sizes.append(size)
        tape.held.append(held)
        tape.streams.append(self._memory.current_stream(device))
        tape.parts.append(part)
        tape.phases.append(phase)
        tape.lines.append(self._line())
        tape.events.append(number)
        self._live[device][address] = number
        return number

    def _purpose(self) -> tuple[str, str]:
        """Return the part that an allocation belongs to here and now, and what is going on."""
        backward = torch._C._current_graph_task_id() != -1
        phase = BACKWARD if backward else FORWARD if self._modules else STEP if self._steps else ELSEWHERE
        if self._kernels:
            return WORKSPACES, phase
        if self._modules or backward:
            return ACTIVATIONS, phase
        if self._steps:
            return TEMPORARIES, phase
        return (OTHER if self._created else ACTIVATIONS), phase

    def _line(self) -> int:
        """Return the innermost line of the user's code."""
        if isinstance(self._code, str):
            return line_in(self._code)
        frame: Any = sys._getframe(2)
        while frame is not None and frame.f_code is not self._code:
            frame = frame.f_back
        return 0 if frame is None else int(frame.f_lineno)

    def _mark(self, tensor: Any, part: str) -> None:
        if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.strided:
            return
        index = tensor.get_device()  # unlike the device, the same under every mode
        if 0 <= index < len(self.tapes):
            with torch._C.DisableTorchFunction():  # parameters that have no shape yet refuse
                storage = tensor.untyped_storage()
            number = self._live[index].get(storage.data_ptr())
            if number is not None and self._memory.owns(index, storage.data_ptr(), storage):
                self.tapes[index].parts[number] = part

    def _add_parameter(self, parameter: torch.Tensor) -> None:
        self._parameters[id(parameter)] = weakref.ref(parameter)
        self._mark(parameter, PARAMETERS)

    def _mark_gradients(self) -> None:
        for key, reference in list(self._parameters.items()):
            parameter = reference()
            if parameter is None:
                del self._parameters[key]
            elif parameter.is_leaf and parameter.grad is not None:
                self._mark(parameter.grad, GRADIENTS)

    def _mark_state(self, optimizer: Any) -> None:
        for state in optimizer.state.values():
            for value in state.values() if isinstance(state, dict) else ():
                for one in value if isinstance(value, (list, tuple)) else (value,):
                    self._mark(one, STATE)
