"""Scaled dot-product attention on the virtual device: the kernel that a real card of that generation takes.

PyTorch chooses among four, and what they keep differs by the whole matrix of scores. The rules are those of
`sdp_utils.cpp` (torch 2.11 to 2.13, cuDNN 9.15 and later): of a kernel's rules the ones that dense tensors can break.
"""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .cards import Card
    from .registry import Registry

_aten = torch.ops.aten
_LOW = (torch.float16, torch.bfloat16)
_NAMES = ("math", "flash", "efficient", "cudnn")


def install(cards: Sequence[Card], registry: Registry) -> None:
    """Register the choice, for `F.scaled_dot_product_attention` as for the modules that call it from C++."""

    def kind_of(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> str:
        card = cards[query.get_device()]
        return choose(card, query, key, value, attn_mask, dropout_p, is_causal=is_causal, gqa=enable_gqa)

    def attention(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        kind = kind_of(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa=enable_gqa)
        mask = _additive(attn_mask, query)
        run: Callable[..., torch.Tensor] = _KERNELS[kind]
        return run(query, key, value, mask, dropout_p, is_causal, scale, enable_gqa)

    def choice(*args: Any, **kwargs: Any) -> int:
        return _NAMES.index(kind_of(*args, **kwargs))

    for key in ("AutogradPrivateUse1", "PrivateUse1"):
        registry.impl("scaled_dot_product_attention", attention, key)
    registry.impl("_fused_sdp_choice", choice, "PrivateUse1")


def choose(
    card: Card,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    dropout: float,
    *,
    is_causal: bool,
    gqa: bool,
) -> str:
    """Return `cudnn`, `flash`, `efficient` or `math`: what PyTorch takes on that card.

    Raises:
        RuntimeError: the user has disabled every kernel that could do it; the text is PyTorch's.
    """
    if query.dim() == key.dim() == value.dim() == 4 and all(query.shape) and all(key.shape):
        order = ["flash", "efficient"]
        if card.capability in {(9, 0), (10, 0), (10, 3)} and os.environ.get("TORCH_CUDNN_SDPA_DEPRIORITIZED") != "1":
            order.insert(0, "cudnn")
        rows = all(tensor.stride(-1) == 1 or tensor.size(-1) == 1 for tensor in (query, key, value))
        for kind in order:
            allowed, fits = _RULES[kind]
            if allowed() and rows and fits(card, query, key, value, mask, dropout, is_causal, gqa):
                return kind
    if not torch._C._get_math_sdp_enabled():
        raise RuntimeError("No available kernel. Aborting execution.")
    return "math"


def _fits_cudnn(card: Card, q: Any, k: Any, v: Any, mask: Any, dropout: float, _causal: bool, gqa: bool) -> bool:
    limit = 256 if card.capability == (9, 0) else 128
    if card.capability[0] == 10 and q.size(3) == 192 and v.size(3) == 128:
        limit = 192
    return bool(
        _one_dtype(_LOW, q, k, v)
        and _same_heads(q, k, v, gqa=gqa)
        and max(q.size(3), v.size(3)) <= limit
        and q.size(3) % 8 == 0
        and v.size(3) % 8 == 0
        and k.size(2) > 1
        and not (q.size(2) == 1 and dropout)
        and not torch.are_deterministic_algorithms_enabled()
        and (mask is None or mask.dim() in {2, 4})
    )


def _fits_flash(card: Card, q: Any, k: Any, v: Any, mask: Any, dropout: float, causal: bool, gqa: bool) -> bool:
    learns = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (q, k, v))
    consumer = card.capability in {(8, 6), (8, 9), (12, 0), (12, 1)}
    width = q.size(3)
    return bool(
        card.capability >= (8, 0)
        and mask is None
        and _one_dtype(_LOW, q, k, v)
        and _same_heads(q, k, v, gqa=gqa)
        and width == k.size(3) == v.size(3) <= 256
        and not (causal and q.size(2) != k.size(2))
        and not (learns and consumer and (192 < width <= 224 or (width > 224 and dropout > 0)))
    )


def _fits_efficient(card: Card, q: Any, k: Any, v: Any, _mask: Any, _dropout: float, _causal: bool, gqa: bool) -> bool:
    modern = card.capability >= (8, 0)
    half = q.dtype in _LOW
    tensor_cores = modern or (card.capability >= (7, 0) and half)
    alignment = max(4 if modern else 1, (8 if half else 4) if tensor_cores else 1)
    return bool(
        _one_dtype((*_LOW, torch.float32) if modern else (torch.float16, torch.float32), q, k, v)
        and not gqa
        and _same_heads(q, k, v, gqa=False)
        and q.size(3) == k.size(3)
        and q.size(3) % alignment == 0
        and v.size(3) % alignment == 0
    )


_RULES: dict[str, tuple[Callable[[], bool], Callable[..., bool]]] = {
    "cudnn": (lambda: bool(torch._C._get_cudnn_sdp_enabled()), _fits_cudnn),
    "flash": (lambda: bool(torch._C._get_flash_sdp_enabled()), _fits_flash),
    "efficient": (lambda: bool(torch._C._get_mem_efficient_sdp_enabled()), _fits_efficient),
}


def _one_dtype(dtypes: tuple[torch.dtype, ...], *tensors: torch.Tensor) -> bool:
    return tensors[0].dtype in dtypes and all(tensor.dtype == tensors[0].dtype for tensor in tensors)


def _same_heads(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, gqa: bool) -> bool:
    if not q.size(0) == k.size(0) == v.size(0):
        return False
    if gqa:
        return bool(k.size(1) == v.size(1) and q.size(1) % k.size(1) == 0)
    return bool(q.size(1) == k.size(1) == v.size(1))


def _additive(mask: torch.Tensor | None, query: torch.Tensor) -> torch.Tensor | None:
    """Return a boolean mask as what is added to the scores, in the query's type."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    options = {"dtype": query.dtype, "device": query.device}
    return torch.where(mask, torch.scalar_tensor(0.0, **options), torch.scalar_tensor(-math.inf, **options))


def _keeps(*tensors: torch.Tensor) -> bool:
    """Whether a backward pass may follow, so that the kernel gives what it needs."""
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def _cudnn(
    q: Any,
    k: Any,
    v: Any,
    mask: Any,
    dropout: float,
    causal: bool,
    scale: float | None,
    _gqa: bool,
) -> torch.Tensor:
    found = _aten._scaled_dot_product_cudnn_attention(
        q, k, v, mask, _keeps(q, k, v), dropout, causal, False, scale=scale
    )
    return found[0]


def _flash(
    q: Any,
    k: Any,
    v: Any,
    _mask: Any,
    dropout: float,
    causal: bool,
    scale: float | None,
    _gqa: bool,
) -> torch.Tensor:
    width = q.size(-1)
    scale = 1 / math.sqrt(width) if scale is None else scale
    if rest := -width % 8:
        q, k, v = (torch.nn.functional.pad(tensor, (0, rest)) for tensor in (q, k, v))
    out = _aten._scaled_dot_product_flash_attention(q, k, v, dropout, causal, False, scale=scale)[0]
    return out[..., :width] if rest else out


def _efficient(
    q: Any,
    k: Any,
    v: Any,
    mask: Any,
    dropout: float,
    causal: bool,
    scale: float | None,
    _gqa: bool,
) -> torch.Tensor:
    if mask is not None:
        # The kernel reads rows of the mask at aligned addresses.
        last = mask.size(-1)
        if last % 16:
            mask = torch.nn.functional.pad(mask, (0, 16 - last % 16))[..., :last]
        mask = mask.expand(q.size(0), q.size(1), q.size(2), k.size(2))
    found = _aten._scaled_dot_product_efficient_attention(q, k, v, mask, _keeps(q, k, v), dropout, causal, scale=scale)
    return found[0]


def _math(
    q: Any,
    k: Any,
    v: Any,
    mask: Any,
    dropout: float,
    causal: bool,
    scale: float | None,
    gqa: bool,
) -> torch.Tensor:
    out = _aten._scaled_dot_product_attention_math(q, k, v, mask, dropout, causal, None, scale=scale, enable_gqa=gqa)
    return out[0]


_KERNELS = {"cudnn": _cudnn, "flash": _flash, "efficient": _efficient, "math": _math}
