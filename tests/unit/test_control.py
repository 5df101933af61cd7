"""Cache, reservations, caps and audits on a virtual GPU: the same numbers as the allocator model's."""

from __future__ import annotations

import gc
import math
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

import jupyter_gpumem as gm
from jupyter_gpumem.control import auditing
from jupyter_gpumem.control.auditing import audit_device
from jupyter_gpumem.control.capping import fraction_for
from jupyter_gpumem.control.monitoring import end_all
from jupyter_gpumem.control.reservation import RESERVATIONS
from jupyter_gpumem.devices.controls import AllocatorControls
from jupyter_gpumem.errors import DeviceNotFoundError, InvalidValueError, ShortOfMemoryError, UnavailableError
from jupyter_gpumem.units import GiB, MiB
from tests.unit.conftest import take

torch = pytest.importorskip("torch")

HUGE = pytest.param(10**400, id="huge")


def level(gpu, key="reserved_bytes"):
    """Return a counter of the model."""
    return gpu.memory.allocators[0].stats()[key]["all"]["current"]


# The cache


def test_what_is_returned(virtual):
    """The bytes that go back are those by which the model's reserved memory falls, and the rest is accounted for."""
    gone, kept, held = take(300), take(40), gm.reserve("1GiB", hold=True)
    del gone
    before = level(virtual)
    (one,) = gm.empty_cache().devices
    assert one.returned == 300 * MiB == before - level(virtual)
    assert one.after == level(virtual)
    assert one.held == GiB
    assert one.after == one.allocated + one.stranded + one.private
    del kept, held


def test_why_the_rest_stays(virtual):
    """A few live bytes pin many, and it is said how many by how few."""
    whole = take(1000)
    del whole
    head, live = take(600), take(10)
    del head
    (one,) = gm.empty_cache().devices
    assert one.stranded == 991 * MiB
    assert one.pinned_by == 11 * MiB
    assert [(pin.stranded, pin.live, pin.live_blocks, pin.site) for pin in one.pins] == [
        (990 * MiB, 10 * MiB, 1, None),
        (MiB, MiB, 1, None),
    ]
    del live


def test_where_it_was_allocated(virtual):
    """With a recording the line of the user's code is named that holds a segment."""
    with gm.record():
        whole = take(1000)
        del whole
        live = take(10)
        result = gm.empty_cache()
    assert result.recorded
    assert "conftest.py" in result.devices[0].pins[0].site
    assert " in take" in str(result)
    del live


def test_workspaces(virtual):
    """They are named, and go only when asked to."""
    x = torch.empty(64, 64, device="cuda")
    y = x @ x
    stays = gm.empty_cache().devices[0].workspaces
    assert stays > 0
    assert "--workspaces" in str(gm.empty_cache())
    assert gm.empty_cache(workspaces=True).devices[0].workspaces == 0
    del x, y


def test_private_pools_are_not_fragmentation(virtual):
    """What a CUDA graph's pool has free is never counted as returnable or stranded."""
    allocator = virtual.memory.allocators[0]
    allocator.free(allocator.malloc(100 * MiB, pool=(0, 1)))
    (audited,) = gm.audit().devices
    private = [one for one in audited.pools if one.private]
    assert [(one.reserved, one.free, one.returnable, one.stranded) for one in private] == [(100 * MiB, 100 * MiB, 0, 0)]
    assert audited.fragmentation.private == 100 * MiB
    (emptied,) = gm.empty_cache().devices
    assert (emptied.returned, emptied.private) == (0, 100 * MiB)
    assert "private pools" in str(gm.audit())


def test_nothing_to_do_before_a_device_is_used():
    """Nothing is initialised for it."""
    with gm.virtual_gpu("A100-80GB"):
        for result in (gm.empty_cache(), gm.limit(), gm.audit()):
            assert result.missing == "this process has not used a GPU yet"
            assert "this process has not used a GPU yet" in str(result)
        for act in (lambda: gm.reserve("1GiB"), lambda: gm.limit("1GiB")):
            with pytest.raises(UnavailableError, match=r'the GPU is not in use .* torch\.ones\(1, device="cuda"\)'):
                act()
        assert not torch.cuda.is_initialized()


# Reservations


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
    "size", ["0.0000000001%", "0.0000000001%free", HUGE, pytest.param(f"{10**400}GiB", id="huge text")]
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


# The cap


@given(st.integers(1, 2**45).flatmap(lambda total: st.tuples(st.integers(1, total), st.just(total))))
def test_the_fraction_is_exact(pair):
    """PyTorch multiplies the fraction and rounds down: it comes to just the bytes that were asked for."""
    size, total = pair
    fraction = fraction_for(size, total)
    assert 0 < fraction <= 1
    assert math.floor(fraction * total) == size


def test_the_cap(virtual):
    """It is where it was put, to the byte, and `off` takes it away; what was before is told."""
    (one,) = gm.limit("10GiB").devices
    assert (one.limit, one.before) == (10 * GiB, None)
    assert virtual.memory.allocators[0].limit == 10 * GiB
    (one,) = gm.limit("25%").devices
    assert one.before == 10 * GiB
    assert gm.limit().devices[0].before is None
    with pytest.raises(torch.OutOfMemoryError):
        take(30 * 1024)
    assert gm.limit("off").devices[0].limit is None


def test_above_the_cap(virtual):
    """Nothing is taken away, and it is said by how much it is exceeded."""
    live = take(3000)
    (one,) = gm.limit("1GiB").devices
    assert one.above == level(virtual) - GiB
    assert "above the cap" in str(gm.limit())
    del live


@pytest.mark.parametrize(
    ("size", "said"),
    [
        ("200GiB", "more than cuda:0 has"),
        ("0", "no memory"),
        ("80%free", "a cap"),
        ("OFF", "not a size: 'OFF'; .*; off takes the cap away"),
        ("-1GiB", "off takes the cap away"),
        ("100GiB", r"more than cuda:0 has \(79\.\d\d GiB, \d+ bytes\); write less, or off"),
        ("0.0000000001%", r"^1e-10% of the 79\.\d\d GiB of the card is no memory at all"),
        pytest.param(10**400, "more memory than there is anywhere", id="huge"),
    ],
)
def test_wrong_caps(virtual, size, said):
    """What makes no sense is refused and changes nothing."""
    with pytest.raises(InvalidValueError, match=said):
        gm.limit(size)
    assert virtual.memory.allocators[0].limit is None


# The audit


def fragmented():
    """Return tensors that leave gaps between them."""
    kept = []
    for step in range(1, 9):
        big = take(50 * step)
        kept.append(take(30))
        del big
    return kept


def test_the_audit(virtual):
    """Pools add up to the counters, and what it says is returnable is what compacting returns."""
    kept = fragmented()
    before = gm.audit(0.3)
    (one,) = before.devices
    assert one.exceeded
    assert before.exceeded
    assert sum(pool.reserved for pool in one.pools) == one.reserved == level(virtual)
    assert sum(pool.allocated for pool in one.pools) == one.allocated == level(virtual, "allocated_bytes")
    assert sum(pool.returnable for pool in one.pools) == one.fragmentation.returnable
    after = gm.audit(0.3, compact=True)
    assert after.returned == one.fragmentation.returnable > 0
    assert after.before == (one,)
    assert after.devices[0].fragmentation.returnable == 0
    assert "Compacted: reserved" in str(after)
    del kept


def test_cycles_are_collected(virtual):
    """Tensors in unreachable cycles go when it compacts."""

    class Node:
        """Refers to itself."""

    node = Node()
    node.itself, node.tensor = node, take(100)
    del node
    result = gm.audit(compact=True)
    assert result.collected > 0
    assert result.before[0].allocated - result.devices[0].allocated == 100 * MiB


def test_the_automatic_collector_does_not_come_between(virtual, monkeypatch):
    """All that goes after the first reading is counted as collected, and the collector is on again afterwards."""

    class Node:
        """Refers to itself."""

    def then_collect(*args):
        found = audit_device(*args)
        if gc.isenabled():
            gc.collect()
        return found

    monkeypatch.setattr(auditing, "audit_device", then_collect)
    nodes = [Node() for _ in range(1000)]
    for node in nodes:
        node.itself = node
    node.tensor = take(100)
    gc.collect()  # they are old now: the automatic collector looks at the young ones only, until it is simulated
    del nodes, node
    result = gm.audit(compact=True)
    assert result.before[0].allocated - result.devices[0].allocated == 100 * MiB
    assert result.collected >= 1000
    assert gc.isenabled()


def test_the_largest_request(virtual):
    """What is said to need no driver call needs none."""
    kept = fragmented()
    largest = gm.audit().devices[0].fragmentation.largest_free
    calls = virtual.memory.allocators[0].stats()["num_device_alloc"]
    fits = torch.empty(largest, dtype=torch.uint8, device="cuda")
    assert virtual.memory.allocators[0].stats()["num_device_alloc"] == calls
    del fits, kept


def test_the_largest_request_once_expandable_segments_are_off(virtual):
    """What is free among them is not used again, and counts as no request's."""
    gm.allocator_config("expandable_segments:True")
    kept, gone = take(30), take(20)
    del gone
    assert gm.audit().devices[0].fragmentation.largest_free == 30 * MiB
    gm.allocator_config("expandable_segments:False")
    for (one,) in (gm.audit().devices, gm.status().devices):
        assert one.fragmentation.stranded == 11 * MiB  # the end of a page, and what the first tensor's segment has left
        assert one.fragmentation.largest_free == MiB
    del kept


@pytest.mark.parametrize("threshold", [-0.1, 1.5, "much", True])
def test_wrong_thresholds(threshold):
    """A ratio is from 0 to 1."""
    with pytest.raises(InvalidValueError, match="not a ratio"):
        gm.audit(threshold)
    with pytest.raises(InvalidValueError, match="not a ratio"):
        gm.monitor(1, threshold)


def test_devices_that_cannot_be_audited(fake):
    """Without a snapshot there is nothing to judge, and it says so."""
    assert "no snapshot" in gm.audit().missing


# The monitor


def test_a_device_that_passes_the_threshold(virtual):
    """It is told once, and again only after it has been below."""
    told = []
    watch = gm.monitor(1, 0.5, told.append)
    watch.check()
    assert told == []
    for _ in range(2):
        gone = take(500)
        del gone
        watch.check()
        watch.check()
        gm.empty_cache()
        kept = take(100)
        watch.check()
        del kept
        gm.empty_cache()
    assert len(told) == 2
    assert told == list(watch.audits)
    assert "above the threshold" in str(told[0])


def test_it_watches_in_a_thread(virtual):
    """The callback comes from the thread, which ends with the block."""
    seen, told = threading.Event(), []
    gone = take(500)
    del gone

    def note(found):
        told.append((threading.current_thread().name, found.exceeded))
        seen.set()

    with gm.monitor(0.001, 0.5, note) as watch:
        assert seen.wait(30)
        assert watch.running
        with pytest.raises(InvalidValueError, match="watches already"):
            watch.start()
    assert told == [("gpumem-monitor", True)]
    assert not watch.running


def test_an_error_of_the_callback(virtual):
    """It ends the monitor and is raised where it is stopped, but never in the place of the block's own error."""
    gone = take(500)
    del gone
    failed = threading.Event()

    def fail(found):
        failed.set()
        raise LookupError("mine")

    watch = gm.monitor(0.001, 0.5, fail).start()
    assert failed.wait(30)
    with pytest.raises(LookupError, match="mine"):
        watch.stop()
    watch.stop()
    failed.clear()

    def both_fail():
        with gm.monitor(0.001, 0.5, fail):
            assert failed.wait(30)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        both_fail()


def test_an_error_of_the_callback_is_not_lost_to_that_of_the_block(virtual):
    """What the block could not show is raised by `stop`, once."""
    gone = take(500)
    del gone
    failed = threading.Event()

    def fail(found):
        failed.set()
        raise LookupError("mine")

    watch = gm.monitor(0.001, 0.5, fail)

    def both_fail():
        with watch:
            assert failed.wait(30)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        both_fail()
    with pytest.raises(LookupError, match="mine"):
        watch.stop()
    watch.stop()


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_an_exit_in_the_callback_is_raised_too(virtual, kind):
    """`sys.exit()` ends a thread without a word: it is for the one who stops the monitor."""
    gone = take(500)
    del gone
    failed = threading.Event()

    def leave(found):
        failed.set()
        raise kind

    watch = gm.monitor(0.001, 0.5, leave).start()
    assert failed.wait(30)
    with pytest.raises(kind):
        watch.stop()
    assert not watch.running


def test_a_monitor_that_is_started_again_begins_anew(virtual):
    """What is above the threshold then is told again."""
    gone = take(500)
    del gone
    told = []
    seen = threading.Event()

    def note(found):
        told.append(found)
        seen.set()

    watch = gm.monitor(0.001, 0.5, note)
    for _ in range(2):
        seen.clear()
        with watch:
            assert seen.wait(30)
    assert len(told) == 2


def test_all_are_ended(virtual):
    """Unloading the extension ends every monitor, and the errors of their callbacks are still there."""
    gone = take(500)
    del gone
    failed = threading.Event()

    def fail(found):
        failed.set()
        raise LookupError("mine")

    watch, failing = gm.monitor(3600).start(), gm.monitor(3600, 0.5, fail).start()
    assert failed.wait(30)
    end_all()
    assert not watch.running
    with pytest.raises(LookupError, match="mine"):
        failing.stop()


@pytest.mark.parametrize("interval", [0, -1, math.nan, math.inf, HUGE, "1", None, True])
def test_wrong_intervals(interval):
    """What no thread can wait for is refused at once, and not where the monitor is stopped."""
    with pytest.raises(InvalidValueError, match=r"not an interval: .*; write seconds above 0 and up to \d"):
        gm.monitor(interval)


@pytest.mark.parametrize(
    ("name", "act"),
    [
        ("compact", lambda flag: gm.audit(compact=flag)),
        ("force", lambda flag: gm.allocator_config(force=flag)),
        ("hold", lambda flag: gm.reserve("1MiB", hold=flag)),
        ("inline", lambda flag: gm.panel(inline=flag)),
        ("reset", lambda flag: gm.allocator_config(reset=flag)),
        ("stacks", lambda flag: gm.record(stacks=flag)),
        ("undo", lambda flag: gm.allocator_config(undo=flag)),
        ("workspaces", lambda flag: gm.empty_cache(workspaces=flag)),
    ],
)
@pytest.mark.parametrize("flag", ["no", 1, None])
def test_what_is_no_flag_is_refused_before_anything_is_done(virtual, name, act, flag):
    """A text that means no is no `False`."""
    with pytest.raises(InvalidValueError, match=f"^{name} must be True or False, got {flag!r}"):
        act(flag)
    assert RESERVATIONS.names() == ()
