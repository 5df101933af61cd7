"""What Tab offers for the values of options that depend on the session."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def device_names(word: str) -> Iterable[str]:  # noqa: ARG001 - all completers take the word
    """Return the devices that this process uses, as options take them."""
    from jupyter_gpumem import devices

    ready = list(devices.ready_devices())
    return [str(index) for _, index in ready] + [f"{backend.kind}:{index}" for backend, index in ready]


def card_names(word: str) -> Iterable[str]:  # noqa: ARG001 - all completers take the word
    """Return the cards that a virtual GPU can be."""
    from jupyter_gpumem.virtual import cards

    return cards.card_names()


def reservation_names(word: str) -> Iterable[str]:  # noqa: ARG001
    """Return the names of what was put aside, as they have to be written."""
    from jupyter_gpumem.control.reservation import RESERVATIONS

    return map(shlex.quote, RESERVATIONS.names())
