"""What the virtual GPU needs of PyTorch: looked for before anything else of it, which names what came with that."""

from __future__ import annotations

import torch

from jupyter_gpumem.errors import UnavailableError

if not hasattr(torch._C, "_acc"):
    raise UnavailableError(
        f"a virtual GPU needs torch 2.9 or later, this is {torch.__version__}; update torch or use a real device"
    )
