"""Operators on the virtual device: one kernel for all of them, which computes shapes and takes memory, but no values.

The kernel is registered for the device's own dispatch key, so that operators on CPU tensors never meet it. What the
shape of a result is, PyTorch's own meta kernels say; for the same operator, shapes and numbers they are asked once.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch

from . import known, shapes
from .operators import MANY_DEVICES, OWN_KERNELS
from .storages import BACKEND, NATIVE, contiguous, new_tensor, resize

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from .kernels import Kernels
    from .memory import VirtualMemory

    Kernel = Callable[..., Any]

_META = torch._C.DispatchKeySet(torch._C.DispatchKey.Meta)
_META_DEVICE = torch.device("meta")
_empty_strided = torch.ops.aten.empty_strided.default
_Tensor = torch.Tensor
_NEW, _VIEW = object(), object()
_SHAPES_KEPT = 1 << 15
_ENGINE = torch.autograd.graph._engine_run_backward.__code__
_HELD, _STORAGE_HELD = 3, 2  # by autograd's buffer, the call and the Python object; by the tensor and the Python object


class _Signature:
    """What an operator's schema says about its results.

    Attributes:
        name: the operator without name space and overload.
        results: for each result `_NEW`, `_VIEW`, or the position and the name of the argument that it is.
        fresh: whether there is a new one.
        native: whether the CPU's kernel serves, because it makes views only.
        out: names of the arguments that results are written to, for an `out=` overload.
        writes: position and name of every argument that is written to.
        many: whether its tensors may be on different devices.
    """

    __slots__ = ("fresh", "many", "name", "native", "out", "results", "writes")

    def __init__(self, op: Any) -> None:
        schema = op._schema
        self.name = schema.name.rpartition("::")[2]
        arguments = [(at, arg) for at, arg in enumerate(schema.arguments) if arg.alias_info is not None]
        self.results: list[Any] = []
        for result in schema.returns:
            info = result.alias_info
            if info is None:
                self.results.append(_NEW)
            elif not info.is_write:
                self.results.append(_VIEW)
            else:
                self.results.append(
                    next((at, arg.name) for at, arg in arguments if arg.alias_info.before_set == info.before_set)
                )
        self.fresh = _NEW in self.results
        self.native = _VIEW in self.results or self.name in {"set_", "is_set_to", "as_strided_"}
        self.out = [arg.name for _, arg in arguments if arg.is_out]
        self.writes = [(at, arg.name) for at, arg in arguments if arg.alias_info.is_write]
        self.many = self.name in MANY_DEVICES


class Dispatcher:
    """The kernel of the device.

    Args:
        memory: what tensors are allocated in.
        kernels: what CUDA's kernels need while they run.
    """

    def __init__(self, memory: VirtualMemory, kernels: Kernels) -> None:
        self.memory, self.kernels = memory, kernels
        self._signatures: dict[Any, _Signature] = {}
        self._shapes: dict[Any, Any] = {}
        self._libraries: list[torch.library.Library] = []

    # Registration

    def register(self, kernels: dict[str, Kernel], *, factories: bool) -> None:
        """Put the kernels into PyTorch's dispatcher.

        Args:
            kernels: `{operator: kernel}` of those that have one of their own.
            factories: whether new tensors on `cuda` are ours even where nothing of ours sees the device's name, as in
                a function that was imported earlier: not where there are real CUDA devices.
        """
        fallback = torch.library.Library("_", "IMPL")
        self._libraries.append(fallback)
        fallback.fallback(self.run, "PrivateUse1")
        own = torch.library.Library("aten", "IMPL")
        self._libraries.append(own)
        creation: dict[str, Kernel] = {"empty.memory_format": self.empty, "empty_strided": self.empty_strided}
        kernels = kernels | {"add.Tensor": self.add}
        generic = {name: self._bound(name) for name in OWN_KERNELS if _operator(name) is not None}
        for name, kernel in (generic | creation | kernels).items():
            own.impl(name, kernel, "PrivateUse1")
        if factories:
            for name, kernel in creation.items():
                own.impl(name, kernel, "CUDA")

    def add_library(self, library: torch.library.Library) -> None:
        """Keep a library of registrations until `close`."""
        self._libraries.append(library)

    def close(self) -> None:
        """Take every kernel out of PyTorch's dispatcher."""
        while self._libraries:
            self._libraries.pop()._destroy()
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
        return new_tensor(self.memory, _index(device), size, contiguous(size, memory_format), dtype or _default())

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
        return new_tensor(self.memory, _index(device), size, stride, dtype or _default())

    def add(self, one: torch.Tensor, other: torch.Tensor, *, alpha: Any = 1) -> torch.Tensor:
        """Add; in place where autograd adds up gradients that nobody else holds; `aten::add.Tensor`.

        Autograd does so only for tensors without a Python object, which those of this device have (`InputBuffer`).
        """
        if (
            sys._getframe(1).f_code is _ENGINE
            and not torch.is_grad_enabled()
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
            signature = self._signatures[op] = _Signature(op)
        if signature.native:
            return op.redispatch(NATIVE, *args, **kwargs)
        tensors: list[torch.Tensor] = []
        key = _key(args, tensors)
        if kwargs:
            key = (key, tuple(kwargs), _key(kwargs.values(), tensors))
        index = _card(signature, tensors, kwargs)
        if signature.fresh:
            sizes = self._infer((op, key), op, args, kwargs)
        else:
            if signature.out and any(not kwargs[name].numel() for name in signature.out if name in kwargs):
                self._resize_out((op, key), op, args, kwargs)
            sizes = [_NEW] * len(signature.results)  # none is made
        results: list[Any] = []

        def make() -> None:
            at = len(results)
            where = signature.results[at]
            results.append(self._allocate(sizes[at], index) if where is _NEW else _argument(where, args, kwargs))

        self.kernels.launch(signature.name, index, sizes, args, make)
        self._follow(op, signature, args, kwargs, results)
        if len(results) == 1:
            return results[0]
        return tuple(results) if results else None

    @staticmethod
    def _follow(op: Any, signature: _Signature, args: Any, kwargs: Any, results: list[Any]) -> None:
        """Let small values be computed along."""
        if results and isinstance(results[0], _Tensor):
            first = results[0]
            if first.dtype.is_floating_point and first.numel() != 1 and len(signature.writes) <= 1:
                return  # by far the most: nothing of it is followed
        written: list[torch.Tensor] = []
        for where in signature.writes:
            argument = _argument(where, args, kwargs) if where[1] in kwargs or where[0] < len(args) else None
            if isinstance(argument, _Tensor):
                written.append(argument)
            elif isinstance(argument, (list, tuple)):
                written.extend(one for one in argument if isinstance(one, _Tensor))
        known.follow(op, signature.name, signature.out, args, kwargs, written, results)

    def _infer(self, key: Any, op: Any, args: Any, kwargs: Any) -> Any:
        try:
            found = self._shapes.get(key)
        except TypeError:  # something in it cannot be a key
            return [_shape(result) for result in self._meta(op, args, kwargs)]
        if found is None:
            if len(self._shapes) >= _SHAPES_KEPT:
                self._shapes.clear()
            found = self._shapes[key] = [_shape(result) for result in self._meta(op, args, kwargs)]
        return found

    def _meta(self, op: Any, args: Any, kwargs: Any) -> tuple[Any, ...]:
        """Return the results of the meta kernel."""
        with torch._C._AutoDispatchBelowAutograd(), torch._C._DisableTorchDispatch():
            try:
                found = op(*_on_meta(args), **_on_meta_named(kwargs))
            except NotImplementedError:
                found = shapes.without_meta(op, args, kwargs)
        found = found if isinstance(found, tuple) else (found,)
        layout = shapes.LAYOUTS.get(op)
        return layout(args, found) if layout else found

    def _resize_out(self, key: Any, op: Any, args: Any, kwargs: Any) -> None:
        makes, names = shapes.functional(op), _Signature(op).out
        read = kwargs if makes is op else {name: kwargs[name] for name in kwargs if name not in names}
        found = self._infer(key, makes, args, read)
        for name, shape in zip(names, found, strict=True):
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


def _key(values: Iterable[Any], tensors: list[torch.Tensor]) -> tuple[Any, ...]:
    """Return what decides the shapes of results, and collect the tensors on the way."""
    parts: list[Any] = []
    for value in values:
        if isinstance(value, _Tensor):
            tensors.append(value)
            parts.append((value.dtype, value.size(), value.stride(), value.get_device()))
            continue
        kind = type(value)
        if kind is list or kind is tuple:
            parts.append(_key(value, tensors))
        elif kind is int or kind is float or kind is bool:
            parts.append((kind, value))
        elif isinstance(value, torch._C.Generator):
            parts.append(None)
        else:
            parts.append(value)
    return tuple(parts)


def _card(signature: _Signature, tensors: list[torch.Tensor], kwargs: dict[str, Any]) -> int:
    """Return the index of the card that the tensors are on.

    Raises:
        RuntimeError: they are not all on one.
    """
    index = other = -1
    for tensor in tensors:
        at = tensor.get_device()
        if at >= 0:
            if index < 0:
                index = at
            elif at != index:
                other = at
    if index < 0:
        return _index(kwargs.get("device"))
    if not signature.many:
        if other >= 0:
            _refuse(f"cuda:{index}", f"cuda:{other}")
        if any(tensor.is_cpu and tensor.dim() for tensor in tensors):
            _refuse(f"cuda:{index}", "cpu")
    return index


def _refuse(first: str, second: str) -> None:
    raise RuntimeError(
        f"Expected all tensors to be on the same device, but found at least two devices, {first} and {second}!"
    )


def _argument(where: tuple[int, str], args: Any, kwargs: Any) -> Any:
    at, name = where
    return kwargs[name] if name in kwargs else args[at]


def _shape(result: Any) -> Any:
    if isinstance(result, _Tensor):
        return (tuple(result.size()), result.stride(), result.dtype)
    if isinstance(result, (list, tuple)):
        return [_shape(one) for one in result]
    return result


def _on_meta(values: Iterable[Any]) -> list[Any]:
    """Return the values with tensors of the meta device for tensors, and that device for any other."""
    found = []
    for value in values:
        if isinstance(value, _Tensor):
            found.append(
                _empty_strided.redispatch(_META, value.size(), value.stride(), dtype=value.dtype, device=_META_DEVICE)
            )
        elif isinstance(value, torch.device):
            found.append(_META_DEVICE)
        elif isinstance(value, (list, tuple)):
            found.append(_on_meta(value))
        elif isinstance(value, torch._C.Generator):
            found.append(None)
        else:
            found.append(value)
    return found


def _on_meta_named(kwargs: dict[str, Any]) -> dict[str, Any]:
    return dict(zip(kwargs, _on_meta(kwargs.values()), strict=True))


def _index(device: torch.device | None) -> int:
    if device is None or device.index is None:
        return torch.cuda.current_device() if device is not None and device.type != BACKEND else 0
    return int(device.index)


def _default() -> torch.dtype:
    return torch.get_default_dtype()
