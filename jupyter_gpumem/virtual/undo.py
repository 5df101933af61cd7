"""What there is before code runs on trial, and its exact return: names, objects, tensors, settings, random numbers.

Nothing is copied that need not be. Tensors that are moved to the device keep what they were in another Python object,
and get it back; only the values of CPU tensors and NumPy arrays are copied beforehand, as far as host memory allows.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from typing import TYPE_CHECKING, Any

import psutil
import torch

from jupyter_gpumem.units import GiB, MiB

from . import opened
from .containers import Contents
from .opened import OpenFiles
from .ownership import is_users, modules_of_the_user
from .replaced import Replaced
from .settings import Settings
from .storages import BACKEND, new_storage
from .tensor_states import TensorState, hooks_of, version

if TYPE_CHECKING:
    import types
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from .memory import VirtualMemory
    from .patches import Patches

_PART_OF_HOST, _MOST = 0.25, 4 * GiB
"""So much of the free host memory may be taken for copies of values, and no more than this."""

_MOST_OF_A_FILE = 256 * MiB
"""The values of a larger file that an array is mapped from are not read to be copied: that would take long."""

_raw_device = torch._C.TensorBase.device.__get__


class Undo:
    """What there is, to be restored any number of times.

    Args:
        reaches: the dicts whose names code may bind, and other objects that it can reach.
        cards: how many virtual cards there are.
        patches: where the one function that has to be watched meanwhile is replaced.
        names: the names that the code uses itself; their objects are remembered first.

    Attributes:
        tensors: all tensors of the process that are kept.
        optimizers: all optimizers.
        open_files: files that are open.
        notes: what cannot be put back whatever happens, a sentence each.
        unwatched: variables that the code does not name, and that hold too much for all of it to be remembered.
    """

    def __init__(self, reaches: Iterable[Any], cards: int, patches: Patches, names: Iterable[str] = ()) -> None:
        tensors, others, files = _alive()
        self.optimizers = [item for item in others if isinstance(item, torch.optim.Optimizer)]
        self._contents = Contents(
            reaches,
            names,
            modules_of_the_user(),
            [
                *others,
                *(part for one in self.optimizers for part in (*one.param_groups, *one.state.values())),
                *_global_hooks(),
                *(hooks for tensor in tensors.values() for hooks in hooks_of(tensor) if hooks),
                sys.path,
                sys.argv,
                sys.meta_path,
                sys.path_hooks,
                gc.callbacks,
                torch._tensor_str.PRINT_OPTS,
            ],
        )
        for tensor in filter(_plain_tensor, self._contents.tensors):
            tensors.setdefault(id(tensor), tensor)
        for tensor in list(tensors.values()):
            if tensor.is_leaf and tensor.grad is not None:
                tensors.setdefault(id(tensor.grad), tensor.grad)
        # Tensors of a card that there was once can do no harm, and nothing can be done with them.
        self.tensors = [
            tensor
            for tensor in tensors.values()
            if _raw_device(tensor).type != BACKEND or _raw_device(tensor).index < cards
        ]
        self._states = [TensorState(tensor) for tensor in self.tensors]
        self._swaps = _Swaps(self.tensors, patches)
        self._values = _Values(self.tensors, self._contents.arrays)
        self._replaced = Replaced()
        self._settings = Settings()
        self.open_files = OpenFiles(self._contents.files, files)
        self.notes, self.unwatched = self._contents.notes, self._contents.unwatched

    def exchange(self, instead: Mapping[int, Any]) -> None:
        """Put other functions in the place of some, by their ids, wherever code has them; until `restore`."""
        self._contents.exchange(instead)

    def before_import(self) -> tuple[Any, Any, Any]:
        """Return what `after_import` needs, for a module that is about to be imported."""
        return self._contents.look(), self._replaced.look(), self._settings.look()

    def after_import(self, before: tuple[Any, Any, Any], modules: Sequence[types.ModuleType]) -> None:
        """Have what was changed since be what there was, and have these modules, which are new, put back as well."""
        contents, replaced, settings = before
        self._contents.keep_changes(contents)
        self._replaced.keep_changes(replaced)
        self._settings.keep_changes(settings)
        self._contents.add([module for module in modules if is_users(module.__name__)])
        self._replaced.add([module for module in modules if not is_users(module.__name__)])

    def restore(self) -> list[str]:
        """Put everything back; returns a sentence for each thing that was changed and cannot be."""
        self._swaps.undo()
        notes = [note for state in self._states if (note := state.restore()) is not None]
        notes += self._values.restore(self._states)
        for state in self._states:
            state.restore_rest()
        notes += self._contents.restore()
        self._replaced.restore()
        self._settings.restore()
        return list(dict.fromkeys(notes))

    def stand_in(self, memory: VirtualMemory, kind: str = "cuda") -> None:
        """Put virtual tensors in the place of those on real devices, until `restore`.

        Args:
            memory: where they are allocated.
            kind: PyTorch's type of the real devices.
        """
        storages: dict[int, torch.UntypedStorage] = {}
        real = [tensor for tensor in self.tensors if _raw_device(tensor).type == kind]
        grads = [tensor.grad if tensor.is_leaf else None for tensor in real]
        for tensor in real:
            storage = tensor.untyped_storage()
            key = storage._cdata
            index = min(_raw_device(tensor).index or 0, len(memory.cards) - 1)
            if key not in storages:
                storages[key] = new_storage(memory, index, storage.nbytes())
            twin = torch.empty(0, dtype=tensor.dtype, device=f"cuda:{index}")
            with torch.no_grad():
                twin.set_(storages[key], tensor.storage_offset(), tensor.size(), tensor.stride())
            torch._C._swap_tensor_impl(tensor, twin.requires_grad_(tensor.requires_grad))
        for tensor, grad in zip(real, grads, strict=True):
            if grad is not None:
                tensor.grad = grad

    def close(self) -> None:
        """Let go of everything."""
        self._states.clear()
        self.tensors.clear()


class _Swaps:
    """Which tensors were exchanged for others, so that it can be turned back.

    Only exchanges that concern what was there before are kept: a tensor that is moved there and back ten times does
    not keep ten copies.
    """

    def __init__(self, tensors: Iterable[torch.Tensor], patches: Patches) -> None:
        self._before = frozenset(map(id, tensors))
        self._holders = set(self._before)
        self._made: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._plain: Callable[[torch.Tensor, torch.Tensor], None] = torch._C._swap_tensor_impl
        patches.set(torch._C, "_swap_tensor_impl", self._swap)

    def _swap(self, one: torch.Tensor, other: torch.Tensor) -> None:
        self._plain(one, other)
        holders = self._holders
        mine, yours = id(one) in holders, id(other) in holders
        if mine or yours:
            self._made.append((one, other))  # which keeps both alive, and their ids theirs
            for tensor, holds in ((one, yours), (other, mine)):
                (holders.add if holds else holders.discard)(id(tensor))

    def undo(self) -> None:
        """Turn every exchange back."""
        while self._made:
            self._plain(*self._made.pop())
        self._holders = set(self._before)


class _Values:
    """The values of CPU tensors and of NumPy arrays; the smallest first, as far as memory allows.

    They are compared afterwards, because not every write counts: batch normalization does not tell of its own, nor does
    what writes through `.data` or a NumPy array.
    """

    def __init__(self, tensors: Iterable[torch.Tensor], arrays: Iterable[Any]) -> None:
        room = min(int(_PART_OF_HOST * psutil.virtual_memory().available), _MOST)
        storages = {}
        for tensor in tensors:
            if _on_host(tensor):
                storage = tensor.untyped_storage()
                storages[storage._cdata] = storage
        self._copies: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}
        for key, storage in sorted(storages.items(), key=lambda item: item[1].nbytes()):
            room -= storage.nbytes()
            if room < 0:
                break
            self._copies[key] = (storage, storage.clone())
        self._arrays = []
        for array in sorted(arrays, key=lambda array: array.nbytes):
            if array.flags.writeable and not (_is_mapped(array) and array.nbytes > _MOST_OF_A_FILE):
                room -= array.nbytes
                if room >= 0:
                    self._arrays.append((array, array.copy()))

    def restore(self, states: Iterable[TensorState]) -> list[str]:
        """Write the values back of all that was written to."""
        lost, written = 0, set()
        for state in states:
            now = version(state.tensor)
            if (now is not None and now == state.version) or not _on_host(state.tensor):
                continue
            key = state.tensor.untyped_storage()._cdata
            written.add(key)
            lost += now is not None and key not in self._copies
        for key, (storage, values) in self._copies.items():
            if storage.nbytes() != values.nbytes():
                storage.resize_(values.nbytes())
            if key in written or not _same_bytes(storage, values):
                storage.copy_(values)
        for array, values in self._arrays:
            if not (_is_mapped(array) and array.tobytes() == values.tobytes()):  # else its file would be written anew
                array[...] = values
        return [f"{lost} CPU tensors, too large to be copied before, were written to in place"] if lost else []


def _is_mapped(array: Any) -> bool:
    return type(array).__name__ == "memmap"


def _on_host(tensor: torch.Tensor) -> bool:
    return bool(_raw_device(tensor).type == "cpu" and tensor.layout == torch.strided)


def _same_bytes(one: torch.UntypedStorage, other: torch.UntypedStorage) -> bool:
    pointers = ctypes.c_void_p(one.data_ptr()), ctypes.c_void_p(other.data_ptr())
    # Many times as fast as comparing with PyTorch.
    return not ctypes.CDLL(None).memcmp(*pointers, ctypes.c_size_t(other.nbytes()))


def _alive() -> tuple[dict[int, torch.Tensor], list[Any], list[Any]]:
    """Return the tensors of this process by id, its modules, optimizers and the like, and its files."""
    tensors: dict[int, torch.Tensor] = {}
    others: list[Any] = []
    files: list[Any] = []
    kinds: dict[type, int] = dict.fromkeys(opened.KINDS, 3)
    owners = (torch.nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler, torch.amp.GradScaler)
    for item in gc.get_objects():
        kind = type(item)
        found = kinds.get(kind)
        if found is None:
            found = kinds[kind] = 1 if issubclass(kind, torch.Tensor) else 2 if issubclass(kind, owners) else 0
        if found == 1 and _plain_tensor(item):
            tensors[id(item)] = item
        elif found == 2:
            others.append(item)
        elif found == 3:
            files.append(item)
    return tensors, others, files


def _plain_tensor(tensor: torch.Tensor) -> bool:
    return (
        type(tensor) in {torch.Tensor, torch.nn.Parameter, torch.nn.Buffer}
        or type(tensor).__torch_dispatch__ is torch._C._disabled_torch_dispatch_impl
    )


def _global_hooks() -> list[dict[Any, Any]]:
    """Return where PyTorch keeps the hooks of all modules and optimizers."""
    return [
        value
        for owner in (sys.modules["torch.nn.modules.module"], sys.modules["torch.optim.optimizer"])
        for name, value in vars(owner).items()
        if name.startswith("_global_") and isinstance(value, dict)
    ]
