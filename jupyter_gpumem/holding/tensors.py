"""What PyTorch's objects hold: storages, gradients, autograd graphs. PyTorch is looked up, never imported first."""

from __future__ import annotations

import contextlib
import functools
import gc
import sys
import types
from typing import TYPE_CHECKING, Any, NamedTuple

from jupyter_gpumem.devices import loaded_torch

from .classes import ByType, has, is_a, mro_of, namespace_of_class

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_UNUSABLE = (AttributeError, LookupError, NotImplementedError, RuntimeError, TypeError, ValueError)
"""What tensors of unusual layouts, freed graphs and tensors of a virtual card that is off answer questions with."""


class Location(NamedTuple):
    """A storage: the device type and PyTorch's index, where it lies, and its bytes as requested."""

    kind: str
    ordinal: int
    address: int
    nbytes: int


def ndarray_types() -> tuple[Any, ...]:
    """Return NumPy's array type, once somebody has imported it."""
    found = getattr(sys.modules.get("numpy"), "ndarray", None)
    return () if found is None else (found,)


def view_of_torch() -> Torch | None:
    """Return the view of the imported PyTorch, or `None` without one."""
    torch = loaded_torch()
    return None if torch is None else Torch(torch)


class Torch:
    """PyTorch's objects as the walk sees them. Nothing is computed, copied or synchronised."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self.tensor: type = torch.Tensor
        self.strided = torch.strided
        self.module: type = torch.nn.Module
        optim = sys.modules.get("torch.optim")
        self.optimizer: type | None = getattr(optim, "Optimizer", None)
        self._storages = (torch.UntypedStorage,)
        self._nodes: ByType[bool] = ByType()
        self._saved: ByType[tuple[str, ...]] = ByType()
        # What was saved can be asked for without unpacking it in newer versions of PyTorch only.
        self._shows_data = hasattr(getattr(torch._C._autograd, "SavedTensor", None), "data")

    @contextlib.contextmanager
    def undisturbed(self) -> Iterator[None]:
        """Let no subclass and no mode see that attributes are read."""
        with self._torch._C.DisableTorchFunction():
            yield

    def way(self, kind: type) -> Callable[[Any], Iterable[Any]] | None:
        """Return the function that lists the children of a type's objects, if it is one of PyTorch's own kinds."""
        if issubclass(kind, self.tensor):
            return self._of_tensor
        if self.is_node(kind):
            return self._of_node
        if self.is_scripted(kind):
            return of_scripted
        if self.is_saved(kind):
            return self._of_saved
        if issubclass(kind, self.module) or (self.optimizer is not None and issubclass(kind, self.optimizer)):
            return values_of
        return None

    def is_tensor(self, kind: type) -> bool:
        """Whether a type's objects are tensors."""
        return issubclass(kind, self.tensor)

    def is_storage(self, kind: type) -> bool:
        """Whether a type's objects are storages."""
        return issubclass(kind, self._storages)

    def is_scripted(self, kind: type) -> bool:
        """Whether a type's objects are modules of TorchScript, scripted or traced."""
        return issubclass(kind, self._torch.jit.ScriptModule)

    def is_saved(self, kind: type) -> bool:
        """Whether a type's objects are what autograd keeps a saved tensor in."""
        return self._shows_data and issubclass(kind, self._torch._C._autograd.SavedTensor)

    def is_node(self, kind: type) -> bool:
        """Whether a type's objects are the nodes of autograd graphs."""
        known = self._nodes.get(kind)
        if known is None:
            known = self._nodes.put(kind, has(kind, "next_functions") and has(kind, "_register_hook_dict"))
        return known

    def read(self, tensor: Any, name: str) -> Any:
        """Return an attribute of a tensor as PyTorch knows it, whatever its class does about it."""
        return getattr(self.tensor, name).__get__(tensor)

    def ask(self, tensor: Any, name: str) -> Any:
        """Return what a method of PyTorch's says of a tensor, whatever its class does about it."""
        return getattr(self.tensor, name)(tensor)

    def storage_of(self, item: Any) -> Any:
        """Return the storage of a tensor; a storage itself."""
        return item if self.is_storage(type(item)) else self.ask(item, "untyped_storage")

    def locate(self, item: Any) -> Location | None:
        """Return where the storage of a tensor (or a storage itself) lies; `None` if there is no memory behind it."""
        with contextlib.suppress(*_UNUSABLE):
            storage = self.storage_of(item)
            device = storage.device
            if device.type == "meta":
                return None
            nbytes = storage.nbytes()
            if nbytes:
                return Location(device.type, device.index or 0, storage.data_ptr(), nbytes)
        return None

    def base_of(self, tensor: Any) -> Any:
        """Return the tensor that a tensor is a view of, or `None`."""
        with self.undisturbed(), contextlib.suppress(*_UNUSABLE):
            return self.read(tensor, "_base")
        return None

    def hooks_name(self, tensor: Any, item: Any) -> str | None:
        """Return the attribute in which a tensor keeps its hooks, if an object is that dict; otherwise `None`."""
        if issubclass(type(item), dict):
            with self.undisturbed():
                for name in ("_backward_hooks", "_post_accumulate_grad_hooks"):
                    with contextlib.suppress(*_UNUSABLE):
                        if self.read(tensor, name) is item:
                            return name
        return None

    def leads_on(self, tensor: Any) -> bool:
        """Whether a tensor leads to others that Python does not see: its base, its graph, the parts of a sparse one."""
        with self.undisturbed(), contextlib.suppress(*_UNUSABLE):
            names = ("_base", "grad_fn")
            return not self.is_strided(tensor) or any(self.read(tensor, name) is not None for name in names)
        return False

    def own_references(self, item: Any) -> int:
        """Return how many references to an object are PyTorch's own, so that it lives as long as what it shows."""
        kind = type(item)
        if self.is_tensor(kind):
            return int(self._keeps_objects and self._torch._C.TensorBase._use_count(item) > 1)
        if self.is_storage(kind):
            return int(self._keeps_objects and self._torch._C._storage_Use_Count(item._cdata) > 1)
        # The node of a function that is written in Python is itself what the graph refers to.
        return int(self.is_node(kind) and (self._keeps_objects or issubclass(kind, self._torch._C._FunctionBase)))

    @functools.cached_property
    def _keeps_objects(self) -> bool:
        """Whether what C++ refers to has one more reference to its Python object; in newer versions of PyTorch."""
        owner, probe = (self._torch.empty(0, device="cpu") for _ in range(2))
        before = sys.getrefcount(probe)
        owner.grad = probe
        return sys.getrefcount(probe) > before

    def is_strided(self, tensor: Any) -> bool:
        """Whether a tensor lies in one storage, and is not made of others as a sparse one is."""
        return self.read(tensor, "layout") is self.strided

    def used_bytes(self, tensor: Any) -> int:
        """Return how many bytes of its storage a tensor uses at most."""
        return int(self.ask(tensor, "numel") * self.ask(tensor, "element_size"))

    def _of_tensor(self, tensor: Any) -> list[Any]:
        found, read = gc.get_referents(tensor), self.read
        with contextlib.suppress(*_UNUSABLE):
            found.append(read(tensor, "_base"))
        with contextlib.suppress(*_UNUSABLE):
            if read(tensor, "is_leaf") or read(tensor, "retains_grad"):
                found.append(read(tensor, "grad"))
        with contextlib.suppress(*_UNUSABLE):
            if read(tensor, "requires_grad") and (node := read(tensor, "grad_fn")) is not None:
                found.append(node)
        if not self.is_strided(tensor):
            found += self._parts(tensor)
        return found

    def _parts(self, tensor: Any) -> Iterator[Any]:
        """Yield the tensors that a sparse one is made of."""
        for name in ("_indices", "_values", "crow_indices", "ccol_indices", "col_indices", "row_indices", "values"):
            with contextlib.suppress(*_UNUSABLE):
                yield self.ask(tensor, name)

    def _of_node(self, node: Any) -> list[Any]:
        found = gc.get_referents(node)
        found += [following for following, _ in node.next_functions if following is not None]
        names = self._saved.get(type(node))
        if names is None:
            named = (name for name in dir(type(node)) if name.startswith("_raw_saved") or name == "variable")
            names = self._saved.put(type(node), tuple(named))
        for name in names:
            with contextlib.suppress(*_UNUSABLE, _PythonRanError):  # freed by a backward pass, or packed by a hook
                found += self._saved_by(node, name)
        return found

    def _of_saved(self, saved: Any) -> list[Any]:
        with contextlib.suppress(*_UNUSABLE):
            return [saved.data]
        return []

    def _saved_by(self, node: Any, name: str) -> list[Any]:
        """Return what a node keeps under a name, as it lies there: no unpacking hook is run."""
        if name == "variable" or self._shows_data:
            saved = getattr(node, name)
            parts = saved if isinstance(saved, tuple) else (saved,)
            return [part if name == "variable" else part.data for part in parts if part is not None]
        public = name.removeprefix("_raw")
        public = public if hasattr(type(node), public) else public.removeprefix("_")
        profile = sys.getprofile()
        sys.setprofile(_refuse)  # an unpacking hook could compute, copy or wait
        try:
            saved = getattr(node, public)
        finally:
            sys.setprofile(profile)
        return list(saved) if isinstance(saved, tuple) else [saved]


class _PythonRanError(Exception):
    """A Python function was about to run where none may."""


def _refuse(_frame: object, event: str, _value: object) -> None:
    """Stop a Python function before it begins. As a profile function of this thread."""
    if event == "call":
        raise _PythonRanError


def attributes_of(item: Any) -> dict[str, Any] | None:
    """Return the dict in which an object keeps its attributes, whatever its class does about them; `None` without.

    A class may have a property of its own in the place of `__dict__`, as proxies do: that one is passed over.
    """
    for kind in mro_of(type(item)):
        way: Any = (namespace_of_class(kind) or {}).get("__dict__")
        if is_a(way, (types.GetSetDescriptorType, types.MemberDescriptorType)):
            found = way.__get__(item)
            return found if type(found) is dict else None
    return None


def values_of(item: Any) -> list[Any]:
    """Return the values of an object's attributes."""
    return list((attributes_of(item) or {}).values())


def of_scripted(module: Any) -> list[Any]:
    """Return the values of a scripted or traced module's attributes, and what it keeps in C++."""
    return [*values_of(module), *(value for _, value in scripted(module))]


def scripted(module: Any) -> list[tuple[str, Any]]:
    """Return the parameters and buffers that a scripted or traced module keeps in C++, and its parts, by their names.

    C++ lists them: no code of the module runs, and nothing is computed or copied.
    """
    names, about = attributes_of(module) or {}, sys.modules["torch"]._C
    core, found = names.get("_c"), []
    if type(core) is about.ScriptModule:
        found = [*about.ParameterDict(core).items(), *about.BufferDict(core).items()]
    parts = (attributes_of(names.get("_modules")) or {}).get("_python_modules")
    return [*found, *(parts.items() if type(parts) is dict else ())]
