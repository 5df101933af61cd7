"""Amounts of memory as users write them."""

from __future__ import annotations

import pytest

from jupyter_gpumem.control.amounts import parse_amount
from jupyter_gpumem.errors import InvalidValueError
from jupyter_gpumem.units import GiB, MiB


@pytest.mark.parametrize(
    ("written", "size"),
    [
        ("512MiB", 512 * MiB),
        (512, 512),
        ("1.5GiB", 3 * GiB // 2),
        ("50%", 40 * GiB),
        ("50%free", 5 * GiB),
        (" 50 % free ", 5 * GiB),
        (".5%", 80 * GiB // 200),
        ("100%", 80 * GiB),
    ],
)
def test_amounts(written, size):
    """Bytes, sizes, shares of the card and of what is free."""
    assert parse_amount(written).of(80 * GiB, 10 * GiB) == size


@pytest.mark.parametrize(
    "wrong", ["", "much", "0", 0, -5, "0%", "101%", "50%used", "%", "-5%", 0.5, True, None, "5 GiBs"]
)
def test_what_is_no_amount(wrong):
    """Everything else is refused in one line that names it."""
    with pytest.raises(InvalidValueError) as caught:
        parse_amount(wrong)
    assert repr(wrong) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_cap_is_no_share_of_what_is_free():
    """What is free changes all the time."""
    with pytest.raises(InvalidValueError, match="a cap is a share of the whole card; write 80%"):
        parse_amount("80%free", free=False)
