"""The live panel: what the devices hold, drawn in the notebook while cells run.

`opening.panel` opens it, `controller` ties sampler, cells and buttons to a widget, `wire` is what travels, `frontend`
holds the JavaScript, which the build bundles into `static`.
"""

from .controller import Panel
from .opening import close, opened, panel, text_line

__all__ = ["Panel", "close", "opened", "panel", "text_line"]
