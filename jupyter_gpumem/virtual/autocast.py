"""CUDA's automatic mixed precision on the virtual device: which operator casts what, and the cache of cast weights.

The lists are PyTorch's for CUDA (`ATen/autocast_mode.h`). The casts are memory: a cast weight lives until the outermost
`autocast` block ends, every other one as long as the graph needs it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from .recurrent import Flatten
from .storages import BACKEND

if TYPE_CHECKING:
    from collections.abc import Callable

    from .patches import Patches
    from .registry import Registry

_LOWER = (
    "_convolution.deprecated _convolution conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d.input "
    "conv_transpose3d.input convolution prelu addmm addmv addr matmul einsum mm mv linalg_vecdot linear addbmm baddbmm "
    "bmm chain_matmul linalg_multi_dot _thnn_fused_lstm_cell _thnn_fused_gru_cell lstm_cell gru_cell rnn_tanh_cell "
    "rnn_relu_cell _scaled_dot_product_flash_attention scaled_dot_product_attention"
)
_FP32 = (
    "acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow.Tensor_Scalar "
    "pow.Tensor_Tensor pow.Scalar softplus layer_norm native_layer_norm rms_norm group_norm frobenius_norm.dim "
    "nuclear_norm nuclear_norm.dim cosine_similarity poisson_nll_loss cosine_embedding_loss nll_loss nll_loss2d "
    "hinge_embedding_loss kl_div l1_loss smooth_l1_loss huber_loss mse_loss margin_ranking_loss multilabel_margin_loss "
    "soft_margin_loss triplet_margin_loss multi_margin_loss binary_cross_entropy_with_logits dist pdist cdist renorm "
    "logsumexp upsample_nearest1d _upsample_nearest_exact1d upsample_nearest2d _upsample_nearest_exact2d "
    "upsample_nearest3d _upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d _upsample_bilinear2d_aa "
    "upsample_trilinear3d upsample_bicubic2d _upsample_bicubic2d_aa"
)
_FP32_BY_DTYPE = (
    "prod prod.dim_int softmax.int log_softmax.int cumprod cumsum linalg_vector_norm linalg_matrix_norm "
    "linalg_matrix_norm.str_ord sum sum.dim_IntList"
)
_NORMS = {"norm.Scalar": "norm.ScalarOpt_dtype", "norm.ScalarOpt_dim": "norm.ScalarOpt_dim_dtype"}
_PROMOTE = "addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add"
_REFUSED = "binary_cross_entropy"

_KEY = "AutocastPrivateUse1"
_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)
_LOW = (torch.float16, torch.bfloat16)


class Autocast:
    """The rules, registered for the device's autocast key.

    Args:
        patches: where PyTorch's functions are replaced that name a device's autocast state.
    """

    def __init__(self, patches: Patches) -> None:
        self.patches = patches
        self._cache: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def install(self, registry: Registry) -> None:
        """Register the rules."""
        registry.pass_through(_KEY)
        for names, rule in (
            (_LOWER, self._lower),
            (_FP32, self._fp32),
            (_FP32_BY_DTYPE, self._fp32_by_dtype),
            (_PROMOTE, self._promote),
            (_REFUSED, self._refuse),
        ):
            for name in names.split():
                op = operator(name)
                if op is not None:
                    registry.impl(name, rule(op), _KEY)
        for name, other in _NORMS.items():
            registry.impl(name, self._norm(operator(name), operator(other)), _KEY)
        registry.impl("_cudnn_rnn", self._recurrent, _KEY)
        self._rename()

    def clear(self) -> None:
        """Forget the cast weights; done at the end of the outermost `autocast` block."""
        self._cache.clear()

    # The rules

    def _lower(self, op: Any) -> Callable[..., Any]:
        cast = self._cast

        def kernel(*args: Any, **kwargs: Any) -> Any:
            with torch._C._ExcludeDispatchKeyGuard(_KEYS):
                dtype = torch._C.get_autocast_dtype(BACKEND)
                return op(*cast(args, dtype), **_named(cast, kwargs, dtype))

        return kernel

    def _fp32(self, op: Any) -> Callable[..., Any]:
        cast = self._cast

        def kernel(*args: Any, **kwargs: Any) -> Any:
            with torch._C._ExcludeDispatchKeyGuard(_KEYS):
                return op(*cast(args, torch.float32), **_named(cast, kwargs, torch.float32))

        return kernel

    def _fp32_by_dtype(self, op: Any) -> Callable[..., Any]:
        def kernel(*args: Any, **kwargs: Any) -> Any:
            with torch._C._ExcludeDispatchKeyGuard(_KEYS):
                if args[0].dtype in _LOW and kwargs.get("dtype") is None and not _given(op, args, "dtype"):
                    kwargs["dtype"] = torch.float32
                    at = _position(op, "dtype")
                    if at is not None and len(args) > at:
                        args = args[:at]
                return op(*args, **kwargs)

        return kernel

    def _recurrent(
        self, data: torch.Tensor, weight: Any, stride: int, flat: Any, hx: Any, cx: Any, *args: Any, **kwargs: Any
    ) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(_KEYS):
            # PyTorch casts for cuDNN to half precision, whatever type is asked for (`AutocastRNN.cpp`).
            dtype = torch.float16
            if weight[0].dtype not in (dtype, torch.float64):
                weight, flat = list(Flatten.apply(dtype, *weight)), None
                storage = weight[0].untyped_storage()
                count = storage.nbytes() // weight[0].dtype.itemsize
                flat = weight[0].detach().as_strided((count,), (1,), 0)
            data, hx, cx = self._cast([data, hx, cx], dtype)
            return torch.ops.aten._cudnn_rnn(data, weight, stride, flat, hx, cx, *args, **kwargs)

    @staticmethod
    def _norm(op: Any, with_dtype: Any) -> Callable[..., Any]:
        def kernel(*args: Any, **kwargs: Any) -> Any:
            with torch._C._ExcludeDispatchKeyGuard(_KEYS):
                if args[0].dtype not in _LOW:
                    return op(*args, **kwargs)
                if op._overloadname == "Scalar":
                    return with_dtype(args[0], args[1] if len(args) > 1 else kwargs.get("p", 2), dtype=torch.float32)
                return with_dtype(*args, **kwargs, dtype=torch.float32)

        return kernel

    def _promote(self, op: Any) -> Callable[..., Any]:
        def kernel(*args: Any, **kwargs: Any) -> Any:
            with torch._C._ExcludeDispatchKeyGuard(_KEYS):
                widest = torch._C.get_autocast_dtype(BACKEND)
                if any(tensor.dtype == torch.float32 for tensor in _tensors((args, tuple(kwargs.values())))):
                    widest = torch.float32
                return op(*self._cast(args, widest), **_named(self._cast, kwargs, widest))

        return kernel

    @staticmethod
    def _refuse(op: Any) -> Callable[..., Any]:  # noqa: ARG004
        def kernel(*_args: Any, **_kwargs: Any) -> Any:
            raise RuntimeError(
                "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast; use "
                "torch.nn.functional.binary_cross_entropy_with_logits or torch.nn.BCEWithLogitsLoss"
            )

        return kernel

    def _cast(self, values: Any, dtype: torch.dtype) -> list[Any]:
        """Return the values with every floating point tensor of the device in that type, as `cached_cast` does.

        The last comes first: PyTorch casts in the arguments of a call, which its compiler evaluates from the right.
        """
        found = []
        for value in reversed(list(values)):
            if isinstance(value, torch.Tensor):
                found.append(self._cast_one(value, dtype))
            elif isinstance(value, (list, tuple)):
                found.append(self._cast(value, dtype))
            else:
                found.append(value)
        return found[::-1]

    def _cast_one(self, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        if (
            tensor.dtype == dtype
            or not tensor.dtype.is_floating_point
            or tensor.dtype == torch.float64
            or tensor.get_device() < 0
        ):
            return tensor
        if (
            dtype in _LOW
            and tensor.dtype == torch.float32
            and tensor.requires_grad
            and tensor.is_leaf
            and not tensor._is_view()
            and torch.is_autocast_cache_enabled()
        ):
            key = id(tensor)
            kept = self._cache.get(key)
            if kept is None:
                # The tensor is kept too, so that nothing else can come to have its id.
                kept = self._cache[key] = (tensor, tensor.to(dtype))
            return kept[1]
        return tensor.to(dtype)

    # Where PyTorch names a device

    def _rename(self) -> None:
        one, many = torch._C, self.patches.set
        for name in ("is_autocast_enabled", "get_autocast_dtype", "set_autocast_enabled", "set_autocast_dtype"):
            many(torch, name, _for_cuda(getattr(one, name)))
        many(torch, "is_autocast_enabled", _enabled)
        many(torch, "set_autocast_enabled", _set_enabled)
        many(torch, "get_autocast_gpu_dtype", lambda: one.get_autocast_dtype(BACKEND))
        many(torch, "set_autocast_gpu_dtype", lambda dtype: one.set_autocast_dtype(BACKEND, dtype))
        plain = torch.clear_autocast_cache

        def clear_autocast_cache() -> None:
            self.clear()
            plain()

        many(torch, "clear_autocast_cache", clear_autocast_cache)


def operator(name: str) -> Any:
    """Return the operator `name.overload` of PyTorch, or `None` where this version has none such."""
    base, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, base, None), overload or "default", None)


def _for_cuda(function: Callable[..., Any]) -> Callable[..., Any]:
    def translated(device: str, *args: Any) -> Any:
        return function(BACKEND if device == "cuda" else device, *args)

    return translated


def _enabled(device: str = "cuda") -> bool:
    return bool(torch._C.is_autocast_enabled(BACKEND if device == "cuda" else device))


def _set_enabled(*args: Any) -> None:
    device, enabled = args if len(args) > 1 else ("cuda", args[0])
    torch._C.set_autocast_enabled(BACKEND if device == "cuda" else device, enabled)


def _named(cast: Callable[..., list[Any]], kwargs: dict[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    return dict(zip(kwargs, cast(kwargs.values(), dtype), strict=True)) if kwargs else kwargs


def _tensors(values: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found.extend(_tensors(value))
    return found


def _position(op: Any, name: str) -> int | None:
    for at, argument in enumerate(op._schema.arguments):
        if argument.name == name and not argument.kwarg_only:
            return at
    return None


def _given(op: Any, args: Any, name: str) -> bool:
    at = _position(op, name)
    return at is not None and len(args) > at and args[at] is not None
