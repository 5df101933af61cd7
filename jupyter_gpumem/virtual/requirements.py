"""What the virtual GPU needs: looked for before anything else of it, which names what is there only then."""

from __future__ import annotations

import platform
import sys

import torch

from jupyter_gpumem.errors import UnavailableError

from . import guard

if sys.platform != "linux" or platform.machine() not in guard.CODE:
    raise UnavailableError(
        f"a virtual GPU needs Linux on x86-64 or ARM, this is {sys.platform} on {platform.machine()}; "
        "use such a machine, or a container"
    )
if not hasattr(torch._C, "_acc"):
    raise UnavailableError(
        f"a virtual GPU needs torch 2.10 or later, this is {torch.__version__}; update torch or use a real device"
    )
