"""Operators on the virtual device: one kernel for all of them, which computes shapes and takes memory, but no values.

The kernel is registered for the device's own dispatch key, so that operators on CPU tensors never meet it. What the
shape of a result is, PyTorch's own meta kernels say; for the same operator, shapes and numbers they are asked once.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch

from . import known, refusals, shapes
from .calls import NEW, Signature, card_of, given, index_of, key_of, on_meta, on_meta_named, shape_of
from .operators import OWN_KERNELS
from .registry import Registry
from .storages import NATIVE, contiguous, new_tensor, resize

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .kernels import Kernels
    from .memory import VirtualMemory

    Kernel = Callable[..., Any]

_Tensor = torch.Tensor
_WINDOWS = ("kaiser_window", "kaiser_window.periodic", "kaiser_window.beta")
_TRIANGLES = ("tril_indices", "triu_indices")
_SHAPES_KEPT = 1 << 15
_ENGINE = torch.autograd.graph._engine_run_backward.__code__
_CALLER = 2  # frames from a kernel to who called its operator: one of the registry's is between
_HELD, _STORAGE_HELD = 3, 2  # by autograd's buffer, the call and the Python object; by the tensor and the Python object


class Dispatcher:
    """The kernel of the device.

    Args:
        memory: what tensors are allocated in.
        kernels: what CUDA's kernels need while they run.

    Attributes:
        registry: where kernels are registered.
    """

    def __init__(self, memory: VirtualMemory, kernels: Kernels) -> None:
        self.memory, self.kernels = memory, kernels
        self._signatures: dict[Any, Signature] = {}
        self._shapes: dict[Any, Any] = {}
        self.registry = Registry()

    # Registration

    def register(self, kernels: dict[str, Kernel], *, factories: bool) -> None:
        """Put the kernels into PyTorch's dispatcher.

        Args:
            kernels: `{operator: kernel}` of those that have one of their own.
            factories: whether new tensors on `cuda` are ours even where nothing of ours sees the device's name, as in
                a function that was imported earlier: not where there are real CUDA devices.
        """
        own = self.registry
        own.fallback(self.run, "PrivateUse1")
        creation: dict[str, Kernel] = {"empty.memory_format": self.empty, "empty_strided": self.empty_strided}
        kernels = kernels | {"add.Tensor": self.add} | dict.fromkeys(_WINDOWS, self.window)
        generic = {name: self._bound(name) for name in OWN_KERNELS if _operator(name) is not None}
        for name, kernel in (generic | creation | kernels).items():
            own.impl(name, kernel, "PrivateUse1")
        if factories:
            for name, kernel in (creation | {name: self._bound(name) for name in _TRIANGLES}).items():
                own.impl(name, kernel, "CUDA")

    def close(self) -> None:
        """Let every kernel refuse from now on."""
        self.registry.close()
        self._shapes.clear()

    def _bound(self, name: str) -> Kernel:
        op = _operator(name)
        return lambda *args, **kwargs: self.run(op, *args, **kwargs)

    # Creation

    def empty(
        self,
        size: Sequence[int],
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
        memory_format: Any = None,
        **_: Any,
    ) -> torch.Tensor:
        """Return a tensor; `aten::empty.memory_format`."""
        __tracebackhide__ = True
        dtype = dtype or _default()
        refusals.check_size(size, dtype)
        return new_tensor(self.memory, index_of(device), size, contiguous(size, memory_format), dtype)

    def empty_strided(
        self,
        size: Sequence[int],
        stride: Sequence[int],
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
        **_: Any,
    ) -> torch.Tensor:
        """Return a tensor; `aten::empty_strided`."""
        __tracebackhide__ = True
        dtype = dtype or _default()
        refusals.check_size(size, dtype)
        return new_tensor(self.memory, index_of(device), size, stride, dtype)

    def window(self, length: int, *_: Any, **options: Any) -> torch.Tensor:
        """Return a tensor of that length; `aten::kaiser_window`, which PyTorch computes by a kernel of the device."""
        __tracebackhide__ = True
        return self.empty([length], **options)

    def add(self, one: torch.Tensor, other: Any, *, alpha: Any = 1) -> torch.Tensor:
        """Add; in place where autograd adds up gradients that nobody else holds; `aten::add.Tensor`.

        Autograd does so only for tensors without a Python object, which those of this device have (`InputBuffer`).
        """
        if (
            sys._getframe(_CALLER).f_code is _ENGINE
            and not torch.is_grad_enabled()
            and isinstance(other, _Tensor)  # not a number in a formula of autograd's
            and one._use_count() == _HELD
            and one.dtype == other.dtype
            and one.size() == other.size()
            and _dense(one)
        ):
            storage = one.untyped_storage()
            if torch._C._storage_Use_Count(storage._cdata) == _STORAGE_HELD:
                return self.run(torch.ops.aten.add_.Tensor, one, other)
        return self.run(torch.ops.aten.add.Tensor, one, other, alpha=alpha)

    # Any operator

    def run(self, op: Any, *args: Any, **kwargs: Any) -> Any:
        """Do what an operator does to shapes and memory, and return its results.

        Raises:
            RuntimeError: tensors of several devices are mixed, or the operator is not possible; texts are PyTorch's.
            torch.OutOfMemoryError: the card is full.
        """
        __tracebackhide__ = True
        signature = self._signatures.get(op)
        if signature is None:
            refusals.check_kind(op)
            signature = self._signatures[op] = Signature(op)
        if signature.native:
            return op.redispatch(NATIVE, *args, **kwargs)
        tensors: list[torch.Tensor] = []
        key = key_of(args, tensors)
        if kwargs:
            key = (key, tuple(kwargs), key_of(kwargs.values(), tensors))
            refusals.check_generator(kwargs.get("generator"), "cuda")
        index = card_of(signature, tensors, kwargs)
        if signature.fresh:
            sizes = self._infer((op, key), op, signature, args, kwargs)
        else:
            if signature.check is not None:
                self._infer((op, key, "check"), None, signature, args, kwargs)
            if signature.out and any(not kwargs[name].numel() for name in signature.out if name in kwargs):
                self._resize_out((op, key), op, signature, args, kwargs)
            sizes = [NEW] * len(signature.results)  # none is made
        results: list[Any] = []

        def make() -> None:
            at = len(results)
            where = signature.results[at]
            results.append(self._allocate(sizes[at], index) if where is NEW else given(where, args, kwargs))

        self.kernels.launch(signature.name, index, sizes, args, make)
        self._follow(op, signature, args, kwargs, results)
        if len(results) == 1:
            return results[0]
        return tuple(results) if results else None

    @staticmethod
    def _follow(op: Any, signature: Signature, args: Any, kwargs: Any, results: list[Any]) -> None:
        """Let small values be computed along."""
        if results and isinstance(results[0], _Tensor):
            first = results[0]
            if first.dtype.is_floating_point and first.numel() != 1 and len(signature.writes) <= 1:
                return  # by far the most: nothing of it is followed
        written: list[torch.Tensor] = []
        for where in signature.writes:
            argument = given(where, args, kwargs) if where[1] in kwargs or where[0] < len(args) else None
            if isinstance(argument, _Tensor):
                written.append(argument)
            elif isinstance(argument, (list, tuple)):
                written.extend(one for one in argument if isinstance(one, _Tensor))
        known.follow(op, signature.name, signature.out, args, kwargs, written, results)

    def _infer(self, key: Any, op: Any, signature: Signature, args: Any, kwargs: Any) -> Any:
        __tracebackhide__ = True
        try:
            found = self._shapes.get(key)
        except TypeError:  # something in it cannot be a key
            return self._results(op, signature, args, kwargs)
        if found is None:
            if len(self._shapes) >= _SHAPES_KEPT:
                self._shapes.clear()
            found = self._shapes[key] = self._results(op, signature, args, kwargs)
        return found

    def _results(self, op: Any, signature: Signature, args: Any, kwargs: Any) -> list[Any]:
        """Return the shapes of an operator's results; without an operator only check the arguments."""
        __tracebackhide__ = True
        if signature.check is not None:
            signature.check(args)
        if op is None:
            return []
        return [shape_of(result) for result in self._meta(op, args, kwargs)]

    def _meta(self, op: Any, args: Any, kwargs: Any) -> tuple[Any, ...]:
        """Return the results of the meta kernel."""
        __tracebackhide__ = True
        with torch._C._AutoDispatchBelowAutograd(), torch._C._DisableTorchDispatch():
            try:
                found = op(*on_meta(args), **on_meta_named(kwargs))
            except NotImplementedError:
                found = shapes.without_meta(op, args, kwargs)
            except (RuntimeError, IndexError, ValueError) as error:
                raise shapes.text_of(error, op, args, kwargs) from None
        found = found if isinstance(found, tuple) else (found,)
        layout = shapes.LAYOUTS.get(op)
        return layout(args, found) if layout else found

    def _resize_out(self, key: Any, op: Any, signature: Signature, args: Any, kwargs: Any) -> None:
        makes = shapes.functional(op)
        read = kwargs if makes is op else {name: kwargs[name] for name in kwargs if name not in signature.out}
        found = self._infer(key, makes, signature, args, read)
        for name, shape in zip(signature.out, found, strict=True):
            size, stride, _ = shape
            if tuple(kwargs[name].size()) != tuple(size):
                resize(self.memory, kwargs[name], size, stride)

    def _allocate(self, shape: Any, index: int) -> Any:
        __tracebackhide__ = True
        if type(shape) is list:
            return [self._allocate(one, index) for one in shape]
        if type(shape) is tuple:
            size, stride, dtype = shape
            return new_tensor(self.memory, index, size, stride, dtype)
        return shape.make() if type(shape) is shapes.OnHost else shape


def _dense(tensor: torch.Tensor) -> bool:
    """Whether the elements fill a piece of memory, in any order."""
    step = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.size(), strict=True)):
        if size == 1:
            continue
        if stride != step:
            return False
        step *= size
    return True


def _operator(name: str) -> Any:
    """Return the operator `name.overload` of PyTorch, or `None` where this version has none such."""
    base, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, base, None), overload or "default", None)


def _default() -> torch.dtype:
    return torch.get_default_dtype()
