"""What `reserve` holds is called that where it is counted or in the way, and never a tensor."""

from __future__ import annotations

import jupyter_gpumem as gm
from jupyter_gpumem.units import GiB, MiB
from tests.notebooks import take


def held_in_a_larger_segment():
    """Hold half of a segment, whose other half is stranded by that."""
    gm.reserve("2GiB")
    return gm.reserve("1GiB", hold=True, name="for later")


def test_emptying_names_what_pins(virtual):
    """With what to write to let go of it."""
    held_in_a_larger_segment()
    result = gm.empty_cache()
    (one,) = result.devices
    assert [(pin.stranded, pin.reservations) for pin in one.pins] == [(GiB, ("for later",)), (MiB, ())]
    said = " ".join(str(result).split())
    assert "of live tensors and of what %gpumem_reserve holds in the same segments" in said
    assert "- 1.00 GiB by 1.00 GiB in 1 block; %gpumem_reserve --release 'for later'" in said


def test_a_reservation_comes_from_the_line_that_asked_for_it(virtual):
    """And not from one in this package, or in what its functions are wrapped in."""
    with gm.record():
        held_in_a_larger_segment()
        (one,) = gm.empty_cache().devices
    assert [pin.site.rpartition(" ")[2] for pin in one.pins if pin.reservations] == ["held_in_a_larger_segment"]


def test_an_audit_names_what_pins(virtual):
    """And where nothing is held in the way, it is not spoken of."""
    held_in_a_larger_segment()
    gm.empty_cache()
    result = gm.audit()
    assert result.devices[0].reservations == ("for later",)
    assert "%gpumem_reserve --release 'for later'" in " ".join(str(result).split())
    gm.reserve("3GiB", hold=True, name="alone")
    assert gm.audit().devices[0].reservations == ("for later",)


def test_an_audit_names_what_compacting_takes_away(virtual):
    """What is in the cache and would go back, and nothing that stays."""
    held_in_a_larger_segment()
    gm.reserve("3GiB", name="later")
    used = gm.reserve("5GiB", name="in use").record
    tensor = take(5 * 1024)
    assert tensor.data_ptr() == used.address
    result = gm.audit()
    assert result.devices[0].cached == ("later",)
    said = " ".join(str(result).split())
    assert "--compact does it, and with it goes what was put aside as later." in said
    gm.audit(compact=True)
    assert gm.audit().devices[0].cached == ()
    del tensor


def test_an_audit_of_expandable_segments_names_them_too(virtual):
    """There pages go back one by one, also beside what lives."""
    gm.allocator_config("expandable_segments:True")
    live = take(100)
    gm.reserve("3GiB", name="later")
    assert gm.audit().devices[0].cached == ("later",)
    gm.empty_cache()
    assert gm.audit().devices[0].cached == ()
    del live


def test_a_setting_that_empties_the_cache_names_what_it_takes_away(virtual):
    """Segments of the other kind go back, and with them what was put aside in them; what is held stays."""
    gm.reserve("1GiB", hold=True, name="held")
    gm.reserve("3GiB", name="later")
    notes = gm.allocator_config("expandable_segments:True").notes
    told = "3.00 GiB of unused memory went back to the driver, with what was put aside as later: it could not grow."
    assert told in notes
    gm.reserve("2GiB", hold=True, name="pages")
    gm.reserve("1GiB", name="more pages")
    notes = gm.allocator_config(undo=True).notes
    assert any(", with what was put aside as more pages: it would not be used again." in note for note in notes)


def test_the_status_tells_what_is_held_from_tensors(virtual):
    """The layers still add up to the card."""
    before = dict(gm.status().devices[0].layers)
    held_in_a_larger_segment()
    tensor = take(100)
    (one,) = gm.status().devices
    layers = dict(one.layers)
    assert layers["held by %gpumem_reserve"] == GiB
    assert layers["allocated by tensors"] == before["allocated by tensors"] + 100 * MiB
    assert sum(layers.values()) == one.driver.total
    del tensor
