"""`cuda` means the virtual device wherever users write it; what they read is in `appearance`.

Nothing here is a mode: functions that take a device are replaced by ones that translate it, so that everything else
costs what it cost before, and every thread sees the same.
"""

from __future__ import annotations

import functools
import importlib
import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import node
from torch.jit import _builtins as builtins
from torch.jit import _recursive

from . import appearance, refusals
from .storages import BACKEND, NATIVE, devices

if TYPE_CHECKING:
    from collections.abc import Callable

    from .memory import VirtualMemory
    from .patches import Patches

_raw_device = torch._C.TensorBase.device.__get__
_on_cpu = torch._C.TensorBase.is_cpu.__get__
_to_copy = torch.ops.aten._to_copy.default
_SUBCLASSES = {"_make_wrapper_subclass": (7, "device"), "_make_subclass": (99, "device_for_backend_keys")}
"""What makes tensors of subclasses, with the position and the name of the argument that is their device."""
_OTHERS = ("empty_like", "full_like", "normal", "ones_like", "rand_like", "randint_like", "randn_like", "zeros_like")
"""Functions that take a device, and are none of those that a default device is for."""
_OTHER_METHODS = ("new_empty", "new_empty_strided", "new_full", "new_ones", "new_tensor", "new_zeros")


class Translation:
    """The replacements.

    Args:
        memory: the cards' memory.
        patches: where they are made.
    """

    def __init__(self, memory: VirtualMemory, patches: Patches) -> None:
        self.memory, self.patches = memory, patches
        self.inside = devices(len(memory.cards))
        self.shown = tuple(torch.device("cuda", index) for index in range(len(memory.cards)))
        self.pinned: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()
        self._factories: dict[Callable[..., Any], Callable[..., Any]] = {}
        self._others: set[str | torch.device] = set()
        self._on = False

    def install(self) -> None:
        """Make all replacements."""
        # What is imported while they are in place may keep them, and this is imported by every optimizer.
        importlib.import_module("torch._dynamo")
        self._on = True
        for name in (
            "_make_functions",
            "_make_moves",
            "_make_methods",
            "_make_subclasses",
            "_make_contexts",
        ):
            getattr(self, name)()
        appearance.of_tensors(self.inside, self.shown, self.patches)
        appearance.of_storages(self.device, self.memory, self.shown, self.patches)

    def close(self) -> None:
        """Let replacements that somebody has kept be without effect."""
        self._on = False

    def device(self, device: Any) -> Any:
        """Return what PyTorch is to be given for what the user wrote; anything that is not CUDA stays as it is.

        Raises:
            RuntimeError: there is no such card; the text is CUDA's.
        """
        if not self._on or not isinstance(device, (str, int, torch.device)):
            return device
        if isinstance(device, int):
            index: int | None = device
        elif device in self._others:
            return device
        else:
            parsed = device if isinstance(device, torch.device) else torch.device(device)
            if parsed.type != "cuda":
                self._others.add(device)
                return device
            index = parsed.index
        torch.cuda.init()
        if index is None:
            index = torch.cuda.current_device()
        if not 0 <= index < len(self.inside):
            raise torch.AcceleratorError("CUDA error: invalid device ordinal")
        return self.inside[index]

    def _make_functions(self) -> None:
        from torch.utils._device import _device_constructors

        # TorchScript knows PyTorch's functions by their identity, from a table that it makes once.
        builtins._get_builtin_table()
        constructors = set(_device_constructors())
        for owner in (torch, torch.fft, torch.nested):
            for name, function in list(vars(owner).items()):
                if not name.startswith("_") and callable(function) and _hashable(function) and function in constructors:
                    self.patches.set(owner, name, self._factory(function))
        for name in _OTHERS:
            self.patches.set(torch, name, self._factory(getattr(torch, name)))
        self._keep_known()

    def _keep_known(self) -> None:
        """Let TorchScript and `torch.fx` know the functions that are replaced, which they do by their identity."""
        plain_find = builtins._find_builtin

        def find_builtin(function: Any) -> Any:
            return plain_find(self._factories.get(function, function) if _hashable(function) else function)

        for module in (builtins, _recursive):
            self.patches.set(module, "_find_builtin", find_builtin)
        plain_module, likes = node._find_module_of_method, {self._factories[getattr(torch, name)] for name in _OTHERS}

        def find_module(method: Any) -> str:
            return "torch" if _hashable(method) and method in likes else str(plain_module(method))

        self.patches.set(node, "_find_module_of_method", find_module)

    def _factory(self, function: Callable[..., Any]) -> Callable[..., Any]:
        translate = self.device

        @functools.wraps(function)
        def make(*args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            if kwargs:
                if kwargs.get("device") is not None:
                    kwargs["device"] = translate(kwargs["device"])
                if kwargs.pop("pin_memory", False):
                    return self._pin(function(*args, **kwargs))
                if kwargs.get("generator") is not None:
                    made = function(*args, **kwargs)
                    refusals.check_generator(kwargs["generator"], made.device.type)
                    return made
            return function(*args, **kwargs)

        self._factories[make] = function
        return make

    def _make_moves(self) -> None:
        translate, tensor = self.device, torch.Tensor
        plain_to, plain_type = tensor.to, tensor.type

        @functools.wraps(plain_to)
        def to(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
            __tracebackhide__ = True
            if args and isinstance(args[0], (str, torch.device, int)) and not isinstance(args[0], bool):
                args = (translate(args[0]), *args[1:])
            elif kwargs.get("device") is not None:
                kwargs["device"] = translate(kwargs["device"])
            return plain_to(self, *args, **kwargs)

        @functools.wraps(tensor.cuda)
        def cuda(
            self: torch.Tensor,
            device: Any = None,
            non_blocking: bool = False,
            memory_format: Any = torch.preserve_format,
        ) -> torch.Tensor:
            __tracebackhide__ = True
            where = translate("cuda" if device is None else device)
            return plain_to(self, where, non_blocking=non_blocking, memory_format=memory_format)

        @functools.wraps(plain_type)
        def type_(self: torch.Tensor, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
            if dtype is None:
                return plain_type(self).replace(f"torch.{BACKEND}.", "torch.cuda.")
            name = _type_name(dtype)
            found = plain_type(self, name.replace("torch.cuda.", "torch.") if name else dtype, *args, **kwargs)
            return found.to(translate("cuda")) if name.startswith("torch.cuda.") else found

        self.patches.set(tensor, "to", to)
        self.patches.set(tensor, "cuda", cuda)
        lazy = torch.nn.parameter.UninitializedTensorMixin
        self.patches.set(lazy, "_allowed_methods", [*lazy._allowed_methods, to, cuda])
        self.patches.set(tensor, "type", type_)

    def _make_methods(self) -> None:
        tensor = torch.Tensor
        for name in _OTHER_METHODS:
            self.patches.set(tensor, name, self._factory(getattr(tensor, name)))
        plain_numpy = tensor.numpy

        @functools.wraps(plain_numpy)
        def numpy(self: torch.Tensor, *, force: bool = False) -> Any:
            if not force and not _on_cpu(self) and _raw_device(self).type == BACKEND:
                raise TypeError(
                    f"can't convert {self.device} device type tensor to numpy. "
                    "Use Tensor.cpu() to copy the tensor to host memory first."
                )
            return plain_numpy(self, force=force)

        self.patches.set(tensor, "numpy", numpy)
        self.patches.set(tensor, "pin_memory", lambda tensor, _device=None: self._pinned_copy(tensor))
        self.patches.set(tensor, "is_pinned", lambda tensor, _device=None: self._is_pinned(tensor))
        plain_record = tensor.record_stream

        def record_stream(tensor: torch.Tensor, stream: Any) -> None:
            if _raw_device(tensor).type != BACKEND:
                plain_record(tensor, stream)
                return
            storage, index = tensor.untyped_storage(), tensor.get_device()
            if self.memory.owns(index, storage.data_ptr(), storage):
                self.memory.record_stream(index, storage.data_ptr(), stream.cuda_stream)

        self.patches.set(tensor, "record_stream", record_stream)

    def copied(self, tensor: torch.Tensor, **options: Any) -> torch.Tensor:
        """Return a copy of another type or on another device; `aten::_to_copy`, of a tensor of the virtual device.

        On the host it is pinned where the copy does not block, as CUDA's is; there is no allocator for that here.
        """
        __tracebackhide__ = True
        pinned = options.pop("pin_memory", None) or options.get("non_blocking")
        options["non_blocking"] = False
        made = _to_copy.redispatch(NATIVE, tensor, **options)
        return self._pin(made) if pinned and made.is_cpu else made

    def _pin(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.layout == torch.strided:  # a sparse one has no storage
            self.pinned.add(tensor.untyped_storage())
        return tensor

    def _is_pinned(self, tensor: torch.Tensor) -> bool:
        return tensor.is_cpu and tensor.layout == torch.strided and tensor.untyped_storage() in self.pinned

    def _pinned_copy(self, tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_cpu:
            raise RuntimeError(f"cannot pin '{tensor.type()}' only dense CPU tensors can be pinned")
        return tensor if self._is_pinned(tensor) else self._pin(tensor.clone())

    def _make_subclasses(self) -> None:
        """Let tensors of subclasses be of the virtual device inside: autograd takes streams from what they are."""
        for name, (at, argument) in _SUBCLASSES.items():
            self.patches.set(
                torch.Tensor, name, staticmethod(self._subclass(getattr(torch.Tensor, name), at, argument))
            )

    def _subclass(self, plain: Callable[..., Any], at: int, argument: str) -> Callable[..., Any]:
        @functools.wraps(plain)
        def make(*args: Any, **kwargs: Any) -> Any:
            if kwargs.get(argument) is not None:
                kwargs[argument] = self.device(kwargs[argument])
            elif len(args) > at and args[at] is not None:
                args = (*args[:at], self.device(args[at]), *args[at + 1 :])
            return plain(*args, **kwargs)

        return make

    def _make_contexts(self) -> None:
        from torch.utils._device import DeviceContext, _device_constructors

        plain_type = torch.set_default_tensor_type

        @functools.wraps(plain_type)
        def set_default_tensor_type(kind: Any) -> None:
            name = _type_name(kind)
            plain_type(name.replace("torch.cuda.", "torch."))
            torch.set_default_device("cuda" if name.startswith("torch.cuda.") else None)

        self.patches.set(torch, "set_default_tensor_type", set_default_tensor_type)

        translate = self.device

        def torch_function(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            if func in _device_constructors() and kwargs.get("device") is None:
                kwargs["device"] = translate(self.device)
            return func(*args, **kwargs)

        self.patches.set(DeviceContext, "__torch_function__", torch_function)


def _type_name(kind: Any) -> str:
    """Return the name of an old tensor type such as `torch.cuda.FloatTensor`; of anything else nothing."""
    return kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__name__}" if isinstance(kind, type) else ""


def _hashable(value: Any) -> bool:
    return type(value).__hash__ is not None
