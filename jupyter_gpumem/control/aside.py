"""What was set and put aside in this process, kept from code that only runs on trial."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from .book import RESERVATIONS
from .configuration import configurations_aside

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def aside() -> Iterator[None]:
    """Have the settings' history and the reservations afterwards as they were."""
    with configurations_aside(), RESERVATIONS.aside():
        yield
