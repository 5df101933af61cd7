"""Amounts of memory as users write them: `512MiB`, `80%` of the card, `80%free` of what is free."""

from __future__ import annotations

import re
from typing import NamedTuple

from jupyter_gpumem.arguments import shown, whole
from jupyter_gpumem.errors import InvalidValueError
from jupyter_gpumem.units import format_bytes, parse_bytes

_SHARE = re.compile(r"\s*(\d+(?:\.\d+)?|\.\d+)\s*%\s*(free)?\s*")
_MOST = 2**63 - 1
"""What PyTorch counts bytes up to."""


class Amount(NamedTuple):
    """An amount of memory: bytes, or a share of something that is not known yet.

    Attributes:
        size: bytes, or `None` for a share.
        share: a number above 0 and up to 1, or `None` for bytes.
        free: whether the share is one of what is free, and not of the whole card.
    """

    size: int | None
    share: float | None = None
    free: bool = False

    def of(self, total: int, free: int) -> int:
        """Return the bytes, given those of the card and those that are free on it.

        Raises:
            InvalidValueError: the share comes to none.
        """
        if self.size is not None:
            return self.size
        share, whole = self.share or 0, free if self.free else total
        if int(share * whole) <= 0:
            what = "that are free" if self.free else "of the card"
            raise InvalidValueError(
                f"{100 * share:g}% of the {format_bytes(whole)} {what} is no memory at all; write more, such as 512MiB"
            )
        return int(share * whole)


def parse_amount(value: int | str, *, free: bool = True) -> Amount:
    """Return the amount that a number of bytes or a text means.

    Args:
        value: bytes, or a text such as `512MiB`, `80%` and `80%free`.
        free: whether a share of what is free makes sense.

    Raises:
        InvalidValueError: it is no amount, none above zero, or more than can be counted.
    """
    number = whole(value)
    if number is None and not isinstance(value, str):
        raise InvalidValueError(
            f"not an amount: {shown(value)}; write bytes as an int, or a text such as 512MiB or 80%"
        )
    if number is not None:
        amount = Amount(number)
    elif "%" not in (value := str(value)):
        amount = Amount(parse_bytes(value))
    else:
        match = _SHARE.fullmatch(value)
        if match is None or not 0 < float(match[1]) <= 100:
            forms = "80% (of the card) or 80%free (of what is free)" if free else "80%"
            raise InvalidValueError(f"not a share: {shown(value)}; write {forms}, above 0 and up to 100")
        if match[2] and not free:
            raise InvalidValueError(f"{shown(value)}: a cap is a share of the whole card; write {match[1]}%")
        amount = Amount(None, float(match[1]) / 100, bool(match[2]))
    if amount.size is not None and amount.size <= 0:
        raise InvalidValueError(f"{shown(value)} is no memory at all; write an amount above 0, such as 512MiB")
    if amount.size is not None and amount.size > _MOST:
        raise InvalidValueError(f"{shown(value)} is more memory than there is anywhere; write less, such as 512MiB")
    return amount
