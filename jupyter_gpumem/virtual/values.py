"""Values do not exist on the virtual device: what stands for them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from . import known, refusals
from .notes import Notes, in_distributions
from .places import place
from .storages import new_tensor

if TYPE_CHECKING:
    from .memory import VirtualMemory


class Values:
    """The kernels of the operators that give values to Python, or shapes that depend on values.

    Args:
        memory: where results of such shapes are allocated.
        notes: what was assumed.
    """

    def __init__(self, memory: VirtualMemory, notes: Notes) -> None:
        self.memory, self.notes = memory, notes

    def kernels(self) -> dict[str, Any]:
        """Return `{operator: kernel}`."""
        return {
            "_linalg_check_errors": self.check_errors,
            "_local_scalar_dense": self.scalar,
            "_nested_tensor_from_mask": self.unpadded,
            "_nested_tensor_from_mask_left_aligned": self.left_aligned,
            "equal": self.equal,
            "is_nonzero": self.flag,
            "copy_": self.copy_,
            "nonzero": self.nonzero,
            "to_padded_tensor": self.padded,
            "masked_select": self.masked_select,
            "_unique2": self.unique2,
            "unique_dim": self.unique_dim,
            "unique_consecutive": self.unique_consecutive,
            "bincount": self.bincount,
            "repeat_interleave.Tensor": self.repeat_interleave,
        }

    def scalar(self, tensor: torch.Tensor) -> Any:
        """Return the value if it is known, otherwise zero or what zeros lead to; `aten::_local_scalar_dense`.

        That is what is behind `item()`, `float()` and, by `flag`, `if`.
        """
        exact = known.exact(tensor)
        if exact is not None:
            return exact.item()
        if tensor.dtype == torch.bool:
            value: Any = False
        elif tensor.dtype.is_complex:
            value = 0j
        else:
            value = 0.0 if tensor.dtype.is_floating_point else 0
        guess = known.assumed(tensor)
        if guess is not None:
            value = guess.item()
        self.notes.add("a tensor", f"{value}")
        return value

    def flag(self, tensor: torch.Tensor) -> bool:
        """Return whether the value is not zero; `aten::is_nonzero`, which is behind `bool()` and `if`.

        In `torch.distributions` it is true: there it says that arguments are as they must be, or that rejection
        sampling is done.

        Raises:
            RuntimeError: there are several values, or none; the texts are PyTorch's.
        """
        if tensor.numel() != 1:
            many = "more than one" if tensor.numel() else "no"
            raise RuntimeError(f"Boolean value of Tensor with {many} value{'s' * (not tensor.numel())} is ambiguous")
        if known.exact(tensor) is None and in_distributions():
            self.notes.add("a check of values", "True", usual=True)
            return True
        return bool(self.scalar(tensor))

    def check_errors(self, infos: torch.Tensor, name: str, *, is_matrix: bool) -> None:
        """Raise what a matrix is refused for if its values are known; `aten::_linalg_check_errors`."""
        exact = known.exact(infos)
        if exact is not None:
            torch.ops.aten._linalg_check_errors(exact, name, is_matrix=is_matrix)

    def equal(self, one: torch.Tensor, other: torch.Tensor) -> bool:
        """Return false; `aten::equal`."""
        exact = [known.exact(tensor) if tensor.get_device() >= 0 else tensor for tensor in (one, other)]
        if exact[0] is not None and exact[1] is not None:
            return bool(torch.equal(exact[0], exact[1]))
        self.notes.add("torch.equal()", "False")
        return False

    def copy_(self, target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        """Copy nothing to the device, and zeros from it; `aten::copy_`."""
        if target.size() != source.size():  # a lazy parameter has no `shape`
            refusals.check_broadcast(target, source)
        exact = source if source.is_cpu else known.exact(source)
        if not target.is_cpu:
            if exact is None:
                known.write(target, known.assumed(source), sure=False)
            else:
                known.write(target, exact)
        elif exact is not None:
            target.copy_(exact)
        elif source.numel():
            guess = known.assumed(source)
            self.notes.add("a copy in host memory", "zeros" if guess is None else "what zeros lead to")
            target.zero_() if guess is None else target.copy_(guess)
        # Between devices only dense memory of one layout can be copied: the device's side is made so first.
        there = source if target.is_cpu else target
        alike = target.dtype == source.dtype and target.size() == source.size() and target.stride() == source.stride()
        if target.get_device() != source.get_device() and not alike and not there.is_contiguous():
            self.memory.scratch(there.get_device(), [there.numel() * there.dtype.itemsize])
        return target

    # Shapes that depend on values: the largest possible ones

    def left_aligned(self, _tensor: torch.Tensor, mask: torch.Tensor) -> bool:
        """Return whether padding is at the end of each row only; unless the mask is known, it is."""
        exact = known.exact(mask)
        return exact is None or bool((exact[:, 1:] <= exact[:, :-1]).all())

    def unpadded(self, tensor: torch.Tensor, mask: torch.Tensor, _check: bool = True) -> torch.Tensor:
        """Return a copy with its padding, where CUDA makes a nested tensor without it."""
        exact = known.exact(mask)
        if exact is None or not exact.all():
            self._bound("positions that are not padding", tensor.size(0) * tensor.size(1))
        return tensor.clone(memory_format=torch.contiguous_format)

    def padded(self, tensor: torch.Tensor, _padding: float, _size: Any = None) -> torch.Tensor:
        """Return a copy, as of a nested tensor."""
        return tensor.clone()

    def nonzero(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return as many rows as there are elements."""
        exact = known.exact(tensor)
        if exact is not None:
            return self._exact(tensor, exact.nonzero())
        count = tensor.numel()
        self._bound("nonzero()", count)
        size = (count, tensor.dim())
        return self._new(tensor, size, torch.int64, (1, max(1, count)))

    def masked_select(self, tensor: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Return as many elements as the mask has."""
        exact = known.exact(mask)
        shape = torch.broadcast_shapes(tensor.shape, mask.shape)
        if exact is not None:
            return self._new(tensor, (int(exact.expand(shape).sum()),), tensor.dtype)
        count = math.prod(shape)
        self._bound("a boolean mask", count)
        return self._new(tensor, (count,), tensor.dtype)

    def unique2(
        self,
        tensor: torch.Tensor,
        sorted: bool = True,  # noqa: A002
        return_inverse: bool = False,
        return_counts: bool = False,
    ) -> tuple[torch.Tensor, ...]:
        """Return as many values as there are elements."""
        count = tensor.numel()
        self._bound("unique()", count)
        return (
            self._new(tensor, (count,), tensor.dtype),
            self._new(tensor, tuple(tensor.shape) if return_inverse else (0,), torch.int64),
            self._new(tensor, (count if return_counts else 0,), torch.int64),
        )

    def unique_consecutive(
        self,
        tensor: torch.Tensor,
        return_inverse: bool = False,
        return_counts: bool = False,
        dim: int | None = None,
    ) -> tuple[torch.Tensor, ...]:
        """Return as many values as there are."""
        if dim is not None:
            return self.unique_dim(tensor, dim, True, return_inverse, return_counts)
        return self.unique2(tensor, True, return_inverse, return_counts)

    def unique_dim(
        self,
        tensor: torch.Tensor,
        dim: int,
        sorted: bool = True,  # noqa: A002
        return_inverse: bool = False,
        return_counts: bool = False,
    ) -> tuple[torch.Tensor, ...]:
        """Return as many slices as there are."""
        count = tensor.size(dim)
        self._bound("unique()", count)
        return (
            self._new(tensor, tuple(tensor.shape), tensor.dtype),
            self._new(tensor, (count if return_inverse else 0,), torch.int64),
            self._new(tensor, (count if return_counts else 0,), torch.int64),
        )

    def bincount(self, tensor: torch.Tensor, weights: torch.Tensor | None = None, minlength: int = 0) -> torch.Tensor:
        """Return `minlength` bins.

        Raises:
            RuntimeError: no `minlength` is given.
        """
        exact = known.exact(tensor)
        if exact is not None:
            minlength = max(minlength, int(exact.max()) + 1 if exact.numel() else 0)
        elif minlength:
            self._bound("bincount()", minlength)
        else:
            raise self._unknown("bincount()", "minlength=")
        dtype = torch.int64 if weights is None else torch.float64
        if weights is not None and weights.dtype == torch.float32:
            dtype = torch.float32
        return self._new(tensor, (minlength,), dtype)

    def repeat_interleave(self, repeats: torch.Tensor, output_size: int | None = None) -> torch.Tensor:
        """Return `output_size` indices.

        Raises:
            RuntimeError: no `output_size` is given.
        """
        exact = known.exact(repeats)
        if exact is not None:
            return self._exact(repeats, torch.repeat_interleave(exact))
        if output_size is None:
            raise self._unknown("repeat_interleave()", "output_size=")
        return self._new(repeats, (output_size,), repeats.dtype)

    def _exact(self, like: torch.Tensor, found: torch.Tensor) -> torch.Tensor:
        """Return a tensor of the device with these values."""
        result = self._new(like, tuple(found.shape), found.dtype, found.stride())
        known.write(result, found)
        return result

    def _bound(self, what: str, count: int) -> None:
        self.notes.add(f"the number of results of {what}", f"its upper bound, {count:,}")

    def _new(
        self, like: torch.Tensor, size: tuple[int, ...], dtype: torch.dtype, stride: tuple[int, ...] | None = None
    ) -> torch.Tensor:
        if stride is None:
            return like.new_empty(size, dtype=dtype)
        return new_tensor(self.memory, like.get_device(), size, stride, dtype)

    @staticmethod
    def _unknown(what: str, option: str) -> RuntimeError:
        file, line = place()
        return RuntimeError(
            f"the size of {what} depends on values, which a virtual GPU does not have, at {file}:{line}; "
            f"pass {option} or run this line on the CPU"
        )
