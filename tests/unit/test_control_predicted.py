"""Acting on the allocator inside a prediction: it works as it would, and nothing of it is there afterwards."""

from __future__ import annotations

import pytest

import jupyter_gpumem as gm
from jupyter_gpumem.control.reservation import RESERVATIONS
from jupyter_gpumem.errors import ShortOfMemoryError
from jupyter_gpumem.units import GiB, MiB
from tests.unit.test_control import level

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("hold", [True, False])
@pytest.mark.parametrize("settings", ["", "expandable_segments:True"])
@pytest.mark.parametrize("size", ["1GiB", "100GiB"])
def test_memory_has_no_end_for_reservations(virtual, hold, settings, size):
    """None is refused for want of memory, and the prediction says what it would need."""
    gm.allocator_config(settings)
    need = gm.predict(lambda: gm.reserve(size, hold=hold))
    assert need.devices[0].peak_reserved >= int(size.removesuffix("GiB")) * GiB
    assert need["a100-80gb"].fits == (size == "1GiB")


def test_shares_inside_a_prediction_are_those_of_the_card(virtual):
    """What is free is what the card would have left."""
    need = gm.predict(lambda: gm.reserve("50%free"))
    free = torch.cuda.get_device_properties(0).total_memory - torch.cuda.memory_reserved()
    assert need.devices[0].peak_reserved == pytest.approx(torch.cuda.memory_reserved() + free // 2, abs=2 * MiB)


def test_a_cap_holds_inside_a_prediction(virtual):
    """It is the process's own."""

    def code():
        gm.limit("10GiB")
        with pytest.raises(ShortOfMemoryError, match=r"the largest size that would work now is 10\.00 GiB"):
            gm.reserve("11GiB")

    gm.predict(code)
    gm.limit("off")


def test_what_is_put_aside_inside_is_forgotten_and_what_was_before_stays(virtual):
    """Names, held memory and settings are as before, and can be released and undone."""
    gm.reserve("512MiB", hold=True, name="spare")
    gm.allocator_config("max_split_size_mb:128")
    before = level(virtual, "allocated_bytes")

    def code():
        gm.reserve("1GiB", hold=True)
        assert RESERVATIONS.release("spare") == ("spare",)
        with gm.reserve("1GiB", hold=True, name="spare"):
            gm.allocator_config("max_split_size_mb:64")

    for _ in range(2):
        gm.predict(code)
        assert [(one.name, one.state) for one in RESERVATIONS.list().entries] == [("spare", "held")]
        assert level(virtual, "allocated_bytes") == before
    assert gm.allocator_config(undo=True).text == ""
    RESERVATIONS.release("spare")
    assert level(virtual, "allocated_bytes") == before - 512 * MiB
