"""Which of PyTorch's operators need what on the virtual device, by name."""

from __future__ import annotations

import torch

_COMPOSITES = (
    "addr",
    "addr.out",
    "convolution",
    "convolution_backward",
    "native_group_norm",
    "native_layer_norm",
    "_fused_rms_norm",
    "mish_backward",
    "silu_backward",
    "native_channel_shuffle",
    "_chunk_cat",
    "_chunk_cat.out",
    "_grouped_mm",
    "split_with_sizes_copy.out",
    "linalg__powsum",
)


def _foreach() -> tuple[str, ...]:
    names = (name.removeprefix("aten::") for name in torch._C._dispatch_get_all_op_names())
    return tuple(name for name in names if name.startswith("_foreach_") and not name.endswith("out"))


OWN_KERNELS: tuple[str, ...] = (*_COMPOSITES, *_foreach())
"""Operators that PyTorch composes from others unless the device has a kernel of its own, as CUDA has for these."""

MANY_DEVICES = frozenset(
    {
        "_copy_from",
        "_cudnn_rnn",
        "_foreach_addcdiv",
        "_foreach_addcdiv_",
        "_foreach_addcmul",
        "_foreach_addcmul_",
        "_foreach_copy_",
        "_index_put_impl_",
        "_local_scalar_dense",
        "_unsafe_index",
        "convolution",
        "copy_",
        "index",
        "record_stream",
        "set_",
    }
)
"""Operators whose arguments may be on different devices, or that refuse it in their own words (`refusals.py`)."""

LAYERS = frozenset({"_transformer_encoder_layer_fwd", "_native_multi_head_attention"})
"""Whole layers with products in them, some with a bias."""

PRODUCTS = LAYERS | frozenset(
    {"mm", "bmm", "addmm", "baddbmm", "addmv", "mv", "dot", "vdot", "addbmm", "_int_mm", "_addmm_activation"}
)
"""Operators that cuBLAS does, with a workspace."""

WITH_BIAS = frozenset({"addmm", "_addmm_activation"})
"""Operators that cuBLASLt does where they add a bias vector, with a workspace of its own."""
