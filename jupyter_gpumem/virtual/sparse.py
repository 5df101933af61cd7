"""Sparse tensors on the virtual device, indices and values as on a real one: of embeddings' gradients, and of graphs.

PyTorch's own code for sparse tensors in host memory makes and reads them, as it touches no data. What adds them to
dense parameters takes no memory of note. cuSPARSE's workspaces for products are not known.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch

from jupyter_gpumem.errors import UnavailableError

from .places import place
from .storages import BACKEND

if TYPE_CHECKING:
    from .dispatch import Dispatcher

_aten = torch.ops.aten
_CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.SparseCPU)
_READERS = (
    *("_indices", "_values", "indices", "values", "_nnz", "sparse_dim", "dense_dim", "is_coalesced", "_dimI", "_dimV"),
    "_coalesced_",
    *("_sparse_coo_tensor_with_dims_and_tensors", "_sparse_coo_tensor_with_dims"),
)

_MAKERS = (
    *("_to_sparse", "_to_sparse.sparse_dim", "_to_sparse_csr", "_to_sparse_csc", "_to_sparse_bsr", "_to_sparse_bsc"),
    *("quantize_per_tensor", "quantize_per_tensor.tensor_qparams", "quantize_per_tensor_dynamic"),
    "quantize_per_channel",
)
"""What makes a sparse tensor of a dense one, or a quantized one: neither is modelled."""


def install(dispatcher: Dispatcher) -> None:
    """Register them."""
    registry = dispatcher.registry
    registry.fallback(_refuse, "SparsePrivateUse1")
    for kind, key in (("compressed sparse", "SparseCsrPrivateUse1"), ("quantized", "QuantizedPrivateUse1")):
        registry.fallback(functools.partial(_refuse, kind=kind), key)
    for name in _MAKERS:
        registry.impl(name, functools.partial(_refuse, name, kind="sparse or quantized"), "PrivateUse1")
    for name in _READERS:
        registry.impl(name, _reader(getattr(_aten, name).default), "SparsePrivateUse1")
    registry.impl("add_.Tensor", lambda dense, _sparse, **_: dense, "SparsePrivateUse1")
    registry.impl("detach", _copy, "SparsePrivateUse1")
    registry.impl("clone", lambda tensor, **_: _copy(tensor, values=_values(tensor).clone()), "SparsePrivateUse1")
    registry.impl("zero_", lambda tensor: tensor, "SparsePrivateUse1")
    registry.impl("_to_dense", _dense, "SparsePrivateUse1")
    registry.impl("_coalesce", _coalesced, "SparsePrivateUse1")
    registry.impl("transpose.int", _transposed, "SparsePrivateUse1")
    registry.impl("mm", _product, "SparsePrivateUse1")
    registry.impl("addmm", lambda _, one, other, **__: _product(one, other), "SparsePrivateUse1")

    def bag_backward(*args: Any, **kwargs: Any) -> torch.Tensor:
        if not args[9]:
            return dispatcher.run(_aten._embedding_bag_backward.default, *args, **kwargs)
        grad, indices, rows = args[0], args[1], args[6]
        values = grad.new_empty((indices.numel(), grad.size(-1)))
        return _new((rows, grad.size(-1)), indices.reshape(1, -1), values)

    def embedding_backward(grad: torch.Tensor, indices: torch.Tensor, rows: int, *_: Any) -> torch.Tensor:
        return _new((rows, grad.size(-1)), indices.reshape(1, -1), grad.reshape(-1, grad.size(-1)))

    registry.impl("_embedding_bag_backward", bag_backward, "PrivateUse1")
    registry.impl("embedding_sparse_backward", embedding_backward, "PrivateUse1")


def _new(size: tuple[int, ...], indices: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    make = _aten._sparse_coo_tensor_with_dims_and_tensors.default
    device = torch.device(BACKEND, values.get_device())
    return make.redispatch(
        _CPU,
        *(indices.size(0), len(size) - indices.size(0), list(size), indices, values),
        dtype=values.dtype,
        layout=torch.sparse_coo,
        device=device,
    )


def _values(tensor: torch.Tensor) -> torch.Tensor:
    return _aten._values.default.redispatch(_CPU, tensor)


def _copy(tensor: torch.Tensor, values: torch.Tensor | None = None) -> torch.Tensor:
    return _new(tuple(tensor.size()), _indices(tensor), _values(tensor) if values is None else values)


def _indices(tensor: torch.Tensor) -> torch.Tensor:
    return _aten._indices.default.redispatch(_CPU, tensor)


def _dense(tensor: torch.Tensor, dtype: torch.dtype | None = None, **_: Any) -> torch.Tensor:
    return _values(tensor).new_zeros(tuple(tensor.size()), dtype=dtype)


def _coalesced(tensor: torch.Tensor) -> torch.Tensor:
    """Return it with each index once: as many as there may be."""
    found = _new(tuple(tensor.size()), _indices(tensor).clone(), _values(tensor).clone())
    return _aten._coalesced_.default.redispatch(_CPU, found, True)


def _transposed(tensor: torch.Tensor, one: int, other: int) -> torch.Tensor:
    size = list(tensor.size())
    size[one], size[other] = size[other], size[one]
    return _new(tuple(size), _indices(tensor).clone(), _values(tensor).clone())


def _product(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return a dense product of a sparse and a dense matrix.

    Raises:
        RuntimeError: their sizes do not fit; the text is PyTorch's.
    """
    if other.is_sparse:
        _refuse("A product")
    if one.size(1) != other.size(0):
        raise RuntimeError(f"mm: Argument #3 (dense): Expected dim 0 size {one.size(1)}, got {other.size(0)}")
    return other.new_empty((one.size(0), other.size(1)))


def _reader(op: Any) -> Any:
    return lambda *args, **kwargs: op.redispatch(_CPU, *args, **kwargs)


def _refuse(op: Any, *_args: Any, kind: str = "sparse", **_kwargs: Any) -> Any:
    file, line = place()
    raise UnavailableError(
        f"{op} of a {kind} tensor is not known to a virtual GPU, at {file}:{line}; run this line on the CPU"
    )
