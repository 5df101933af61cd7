"""Memory that is put aside on a virtual GPU: the same numbers as the allocator model's."""

from __future__ import annotations

import pytest

import jupyter_gpumem as gm
from jupyter_gpumem.control.reservation import RESERVATIONS
from jupyter_gpumem.devices.controls import AllocatorControls
from jupyter_gpumem.errors import DeviceNotFoundError, InvalidValueError, ShortOfMemoryError, UnavailableError
from jupyter_gpumem.units import GiB, MiB
from tests.notebooks import take
from tests.unit.conftest import level

torch = pytest.importorskip("torch")


def test_later_tensors_are_cut_out_of_it(virtual):
    """After it no tensor that fits needs the driver."""
    reserved = gm.reserve("64GiB").record
    assert (reserved.size, reserved.taken, reserved.state, reserved.pool) == (64 * GiB, 64 * GiB, "cached", "large")
    calls = virtual.memory.allocators[0].stats()["num_device_alloc"]
    many = [take(600) for _ in range(100)]
    assert virtual.memory.allocators[0].stats()["num_device_alloc"] == calls
    assert reserved.address == min(tensor.data_ptr() for tensor in many)
    del many


def test_holding_and_releasing(virtual):
    """Held memory is allocated; as a context manager it is released at the end, once."""
    before = level(virtual, "allocated_bytes")
    with gm.reserve("2GiB", hold=True, name="spare") as band:
        assert level(virtual, "allocated_bytes") == before + 2 * GiB
        assert [r.state for r in RESERVATIONS.list().entries] == ["held"]
        assert "held as 'spare'" in str(band)
        assert band.to_dict()["size"] == 2 * GiB
    assert level(virtual, "allocated_bytes") == before
    band.release()
    with pytest.raises(InvalidValueError, match="nothing is put aside under the name 'spare'; there is: nothing"):
        RESERVATIONS.release("spare")


def test_names(virtual):
    """A name is taken until its memory is gone or released."""
    gm.reserve("1GiB", name="a")
    with pytest.raises(InvalidValueError, match="'a' already names"):
        gm.reserve("1GiB", name="a")
    torch.cuda.empty_cache()
    assert [r.state for r in RESERVATIONS.list().entries] == ["gone"]
    assert RESERVATIONS.list().entries == ()
    assert [gm.reserve("1MiB").record.name for _ in range(2)] == ["reserve-1", "reserve-2"]
    assert RESERVATIONS.release() == ("reserve-1", "reserve-2")


@pytest.mark.parametrize("name", ["", "  ", 5, "two\nlines", "tab\there", "--hold", " -q", "{x}", "$x"])
def test_what_is_no_name(virtual, name):
    """A name is what one can write after --release."""
    with pytest.raises(InvalidValueError, match="not a name"):
        gm.reserve("1MiB", name=name)
    assert RESERVATIONS.names() == ()


def test_a_name_that_is_given_again(virtual):
    """An object releases what it stands for, and never what has its name by now."""
    old = gm.reserve("1GiB")
    torch.cuda.empty_cache()
    new = gm.reserve("1GiB", hold=True)
    assert old.record.name == new.record.name
    before = level(virtual, "allocated_bytes")
    old.release()
    assert level(virtual, "allocated_bytes") == before
    assert new.record.state == "held"
    new.release()
    assert level(virtual, "allocated_bytes") == before - GiB


def test_two_at_once(virtual, monkeypatch):
    """What another thread puts aside meanwhile gets a name of its own, so that both can be released."""
    plain, meanwhile = AllocatorControls.allocate, []

    def allocate(controls, index, size, owned):
        if not meanwhile:
            meanwhile.append("begun")
            meanwhile[0] = gm.reserve("1MiB", hold=True).record.name
        plain(controls, index, size, owned)

    before = level(virtual, "allocated_bytes")
    monkeypatch.setattr(AllocatorControls, "allocate", allocate)
    assert [gm.reserve("1MiB", hold=True).record.name, *meanwhile] == ["reserve-1", "reserve-2"]
    with RESERVATIONS.claim("spare"), pytest.raises(InvalidValueError, match="'spare' is being put aside"):
        gm.reserve("1MiB", name="spare")
    assert sorted(RESERVATIONS.release()) == ["reserve-1", "reserve-2"]
    assert level(virtual, "allocated_bytes") == before


def test_an_interrupt(virtual, monkeypatch):
    """Memory that was allocated when the user interrupts is given back: nobody would know of it."""

    def interrupt(*_):
        raise KeyboardInterrupt

    before = level(virtual, "allocated_bytes")
    monkeypatch.setattr("jupyter_gpumem.control.reservation.segment_at", interrupt)
    with pytest.raises(KeyboardInterrupt):
        gm.reserve("1GiB", hold=True)
    assert level(virtual, "allocated_bytes") == before
    assert RESERVATIONS.names() == ()


def test_what_has_become_of_it(virtual):
    """It is told how much of it later requests still find, and whether it is still held."""
    gm.allocator_config("expandable_segments:True")
    pinned = take(20)
    reserved = gm.reserve("100MiB", name="a")
    assert (reserved.record.state, reserved.record.free) == ("cached", 100 * MiB)
    half = take(40)
    assert (reserved.record.state, reserved.record.free) == ("cached", 60 * MiB)
    torch.cuda.empty_cache()
    assert (reserved.record.state, reserved.record.free) == ("in use", 0)
    assert [(r.state, r.free) for r in RESERVATIONS.list().entries] == [("in use", 0)]
    del half
    assert (reserved.record.state, reserved.record.free) == ("cached", 40 * MiB)
    torch.cuda.empty_cache()
    assert (reserved.record.state, reserved.record.free) == ("gone", 0)
    with gm.reserve("1GiB", hold=True) as band:
        assert (band.record.state, band.record.free) == ("held", 0)
    assert (band.record.state, band.record.free) == ("cached", GiB)
    assert "Nothing else gets it" not in str(band)
    del pinned


def test_shares(virtual):
    """Per cent of the card, or of what is free on it."""
    total = torch.cuda.get_device_properties(0).total_memory
    assert gm.reserve("10%").record.size == int(0.1 * total)
    free = torch.cuda.mem_get_info()[0]
    assert gm.reserve("50%free").record.size == int(0.5 * free)


def test_shares_of_what_is_free_are_within_the_cap(virtual):
    """More than the cap leaves is not to be had."""
    gm.limit("10GiB")
    left = 10 * GiB - torch.cuda.memory_reserved()
    assert gm.reserve("50%free").record.size == left // 2


def test_two_in_one_piece_of_the_cache_are_told(virtual):
    """The second one finds the memory of the first: the list does not count it twice without a word."""
    for name in ("a", "b"):
        gm.reserve("1GiB", name=name)
    gm.reserve("1GiB", hold=True, name="c")
    gm.reserve("1GiB", name="d")
    gm.reserve("1GiB", name="e")
    said = " ".join(str(RESERVATIONS.list()).split())
    assert "e was put into memory of d, which the cache had already: it is there once." in said
    assert "c was put" not in said
    assert "d was put" not in said


def test_many_in_one_piece_of_the_cache_are_told_in_one_line(virtual):
    """And not in one for every two of them."""
    for _ in range(4):
        gm.reserve("1GiB")
    gm.reserve("3GiB", name="alone")
    notes = str(RESERVATIONS.list()).splitlines()[7:]
    assert notes == [
        "  reserve-1, reserve-2, reserve-3 and reserve-4 share memory, which the cache had already: it is there once."
    ]


def test_what_is_released_is_told_from_what_was_only_cached(virtual):
    """The cache gets what was held; of the rest nothing moves, wherever it is by now."""
    for name in ("gone", "cached"):
        gm.reserve("1GiB", name=name)
        if name == "gone":
            torch.cuda.empty_cache()
    gm.reserve("2GiB", hold=True, name="held")
    before = level(virtual, "allocated_bytes")
    result = RESERVATIONS.release_and_list()
    assert level(virtual, "allocated_bytes") == before - 2 * GiB
    assert (result.entries, result.released, result.forgotten) == ((), ("held",), ("cached",))
    gm.reserve("1GiB", name="gone")
    torch.cuda.empty_cache()
    result = RESERVATIONS.release_and_list("gone")
    assert (result.released, result.forgotten) == ((), ("gone",))
    assert "No longer listed: gone. Nothing of it was held" in str(result)
    assert "Given to the cache" not in str(result)


def test_what_the_cache_has_is_not_taken_again(virtual):
    """Nothing comes from the driver for what is there already."""
    gm.reserve("4GiB")
    again = gm.reserve("3GiB")
    assert again.record.taken == 0
    assert "the cache had it already" in str(again)


@pytest.mark.parametrize("settings", ["", "expandable_segments:True"])
def test_too_much(virtual, settings):
    """Nothing is half done, and the size that is said to work does."""
    gm.allocator_config(settings)
    cached = take(300)
    del cached
    before = level(virtual)
    with pytest.raises(ShortOfMemoryError) as caught:
        gm.reserve("100GiB")
    assert level(virtual) == before
    assert RESERVATIONS.names() == ()
    largest = int(str(caught.value).partition("(")[2].partition(" ")[0])
    assert gm.reserve(largest).record.size == largest


@pytest.mark.parametrize(
    "size",
    [
        "0.0000000001%",
        "0.0000000001%free",
        pytest.param(10**400, id="huge"),
        pytest.param(f"{10**400}GiB", id="huge text"),
    ],
)
def test_sizes_that_make_no_sense(virtual, size):
    """A share that comes to nothing, and what no device has, are refused."""
    with pytest.raises(InvalidValueError, match=r"is no memory at all|more memory than there is anywhere"):
        gm.reserve(size)
    assert RESERVATIONS.names() == ()


def test_a_share_where_nothing_is_free(virtual):
    """It is told from a wrong share, and with what takes the room; a size is still served by the cache."""
    gm.reserve("10GiB")
    gm.limit("10GiB")
    told = r"^nothing of what is free can be put aside on cuda:0: its cap leaves nothing, with 10\.00 GiB reserved; "
    with pytest.raises(ShortOfMemoryError, match=told):
        gm.reserve("80%free")
    assert gm.reserve("4GiB").record.taken == 0


def test_too_much_for_the_cap(virtual):
    """The cap counts, with what is reserved already."""
    gm.limit("10GiB")
    with pytest.raises(ShortOfMemoryError, match=r"the largest size that would work now is 10\.00 GiB \(107353"):
        gm.reserve("11GiB")


def test_somebody_was_faster(virtual, monkeypatch):
    """Memory that is gone between the look and the request is no traceback either."""
    gm.limit("10GiB")
    monkeypatch.setattr("jupyter_gpumem.control.reservation.has_room", lambda *_: True)
    with pytest.raises(ShortOfMemoryError, match="other processes were faster"):
        gm.reserve("11GiB")
    assert RESERVATIONS.names() == ()


@pytest.mark.parametrize(
    ("settings", "size", "said"),
    [
        ("max_split_size_mb:200", "1GiB", "nearly useless: with max_split_size_mb:200"),
        ("expandable_segments:True", "1GiB", "expandable segments grow in place"),
        ("", "512KiB", "only requests up to 1 MiB find it"),
    ],
)
def test_of_little_use(virtual, settings, size, said):
    """What would not help later requests says so."""
    gm.allocator_config(settings)
    (warning,) = gm.reserve(size).record.warnings
    assert said in warning
    assert gm.reserve("1GiB", hold=True).record.warnings == ()


def test_what_is_kept_whole_is_not_said_to_serve_all(virtual):
    """A small request does not find it, and the report does not say so."""
    gm.allocator_config("max_split_size_mb:200")
    reserved = gm.reserve("1GiB")
    before = level(virtual)
    small = take(100)
    assert level(virtual) == before + 100 * MiB
    said = str(reserved)
    assert "only requests about as large find it" in " ".join(said.split())
    assert "Later requests" not in said
    assert "Later requests on the default stream above 1 MiB find it." in str(gm.reserve("150MiB"))
    del small


def test_the_current_stream(virtual):
    """It lies where requests of this thread's stream look for it."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        reserved = gm.reserve("1GiB").record
    assert reserved.stream == side.cuda_stream != 0
    assert f"stream {reserved.stream:#x}" in str(reserved)


def test_which_device():
    """With several devices in use one has to be named; one that is not in use is left alone."""
    with gm.virtual_gpu("3xA100-40GB"):
        used = [torch.empty(1, device=f"cuda:{index}") for index in (0, 1)]
        with pytest.raises(InvalidValueError, match=r"which device\? cuda:0, cuda:1 are named"):
            gm.reserve("1GiB", device=[0, 1])
        with pytest.raises(InvalidValueError, match=r"which device\? cuda:0, cuda:1 are in use"):
            gm.reserve("1GiB")
        with pytest.raises(UnavailableError, match="cuda:2 is not in use by this process"):
            gm.reserve("1GiB", device=2)
        with pytest.raises(DeviceNotFoundError):
            gm.reserve("1GiB", device=9)
        assert gm.reserve("1GiB", device=1).record.device.label == "cuda:1"
        assert [one.device.label for one in gm.limit("50%").devices] == ["cuda:0", "cuda:1"]
        assert [one.limit for one in gm.limit("off", devices=[1]).devices] == [None]
        assert gm.limit(devices=0).devices[0].limit is not None
        RESERVATIONS.release()
        del used


def test_held_memory_of_a_gpu_that_is_switched_off():
    """It is gone with the GPU, and letting go of it is no error."""
    with gm.virtual_gpu("A100-80GB"):
        take(1)
        gm.reserve("1GiB", hold=True)
        gm.reserve("1GiB", hold=True)
    with gm.virtual_gpu("A100-80GB"):
        take(1)
        assert gm.empty_cache().devices[0].held == 0
    assert RESERVATIONS.release("reserve-1") == ("reserve-1",)
    assert [r.state for r in RESERVATIONS.list().entries] == ["gone"]
    assert RESERVATIONS.names() == ()
