"""Who holds device memory: a walk over the Python objects of the process, and the books that it closes.

The walk follows references as the garbage collector does (`gc.get_referents`), so it runs no code of the objects it
passes: no property, no `__getattr__` of a lazy proxy, no unpacking hook. Names are looked up afterwards, and only for
what is shown.
"""

from .chains import chain
from .survey import Survey, holders, leaving_nothing, survey

__all__ = ["Survey", "chain", "holders", "leaving_nothing", "survey"]
