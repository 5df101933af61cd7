"""Operators whose memory inside the kernel is calibrated: each at several sizes, types and layouts.

`workloads` yields a part's name, a function and its inputs. These are made beforehand, so that only the function's own
operators are seen. Where `backward` runs, so do the operators of the gradient.
"""

from __future__ import annotations

from .layers import attention, convolutions, embeddings, losses, normalisation, resampling
from .tensors import counting, indexing, orders, pointwise, products, reductions, transforms
from .training import optimizers, precision


def workloads():
    """Yield everything. The caller clears the inputs' gradients, or the next run adds to them.

    cuDNN's recurrent layers are not among them: under a dispatch mode their backward pass does not end (torch 2.11).
    """
    for part in (
        *(pointwise, orders, indexing, embeddings, normalisation, losses, convolutions, attention),
        *(products, reductions, counting, transforms, resampling, optimizers, precision),
    ):
        for function, inputs in part():
            yield part.__name__, function, inputs
