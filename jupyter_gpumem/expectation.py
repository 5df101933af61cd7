"""Which batch should be the largest that fits here: a few runs on virtual cards, before trials on the real ones."""

from __future__ import annotations

import contextlib
import io
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from . import devices
from .errors import InvalidValueError, UnavailableError
from .prediction import Code, forecast_as_on, plain_function, session_cards
from .units import MiB

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from .records import Device
    from .virtual.cards import Card

_MOST_RUNS = 8
"""How often the code runs at most: trials follow, which cost as much."""


def on_virtual_gpu() -> bool:
    """Whether the session has a virtual GPU."""
    return session_cards() is not None


class Expected(NamedTuple):
    """Which batch should be the largest that fits.

    Attributes:
        batch: the largest that was seen to fit; 0 if none was.
        not_undone: what running the function has changed and could not be put back.
        unsaved: files that it was to write, and that were left as they are.
    """

    batch: int
    not_undone: tuple[str, ...] = ()
    unsaved: tuple[str, ...] = ()


def largest_batch(
    function: Callable[..., Any],
    run: Callable[[int], object],
    first: int,
    maximum: int,
    rooms: Mapping[Device, int],
) -> Expected:
    """Say which batch should be the largest that fits on the devices in use, by few runs on virtual ones.

    Args:
        function: the function, whose names and objects are put back afterwards.
        run: runs it with a batch; nothing that it prints is shown.
        first: the batch that is tried first.
        maximum: no larger one is tried.
        rooms: the devices in use, with the bytes that PyTorch may reserve of each.

    Raises:
        UnavailableError: PyTorch cannot have a virtual GPU, or other devices than CUDA's are in use, or none.
        Exception: whatever the function raises with the first batch.
    """
    if not rooms or any(device.kind != "cuda" for device in rooms):
        raise UnavailableError("only code that uses CUDA devices, and no others, can be run on virtual ones")
    cards = session_cards() or _cards_like(rooms)
    sizes = {device.index: room for device, room in rooms.items()}
    machine = tuple(
        replace(card, total=sizes[index] + card.context) if index in sizes else card for index, card in enumerate(cards)
    )
    plain = plain_function(function)
    code = Code(
        lambda size: run(size or first),
        getattr(getattr(plain, "__code__", None), "co_filename", ""),
        [getattr(plain, "__globals__", None) or {}, function, plain],
        lambda _number: "",
        getattr(plain, "__code__", None),
        ("the batch size", first),
        most=maximum,
        quietly=_silently,
    )
    ran, fits, _ = forecast_as_on(cards, [machine], code, _MOST_RUNS)
    return Expected(fits[machine].largest_batch or 0, ran.not_undone, ran.unsaved)


def _cards_like(real: Iterable[Device]) -> tuple[Card, ...]:
    """Return cards like real ones, at their indices; devices that are not in use are taken to be like one that is."""
    found = {device.index: _card_like(device) for device in real}
    count = max(devices.backend("cuda").count() or 0, *(index + 1 for index in found))
    return tuple(found.get(index) or next(iter(found.values())) for index in range(count))


def _card_like(device: Device) -> Card:
    """Return the card that a real one is; one of its size where that kind is not known."""
    from .virtual.cards import find_card

    try:
        card = find_card(device.name or "")
    except InvalidValueError:
        card = find_card(f"{(device.total or 0) // MiB}MiB")
    return replace(card, total=device.total or card.total)


@contextlib.contextmanager
def _silently() -> Iterator[None]:
    """Show nothing of what is printed inside, also if there is an error."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield
