"""Audits and monitors on a virtual GPU: the same numbers as the allocator model's."""

from __future__ import annotations

import gc
import math
import threading

import pytest

import jupyter_gpumem as gm
from jupyter_gpumem.control import auditing
from jupyter_gpumem.control.auditing import audit_device
from jupyter_gpumem.control.monitoring import end_all
from jupyter_gpumem.errors import InvalidValueError
from jupyter_gpumem.units import MiB
from tests.notebooks import take
from tests.unit.conftest import level

torch = pytest.importorskip("torch")


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


def failing(error):
    """Return a callback that raises an error, and the event that it has; the card is above the threshold for it."""
    gone = take(500)
    del gone
    failed = threading.Event()

    def fail(found):
        failed.set()
        raise error

    return fail, failed


def test_an_error_of_the_callback(virtual):
    """It ends the monitor and is raised where it is stopped, but never in the place of the block's own error."""
    fail, failed = failing(LookupError("mine"))
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
    fail, failed = failing(LookupError("mine"))
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
    leave, failed = failing(kind)
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
    fail, failed = failing(LookupError("mine"))
    watch, broken = gm.monitor(3600).start(), gm.monitor(3600, 0.5, fail).start()
    assert failed.wait(30)
    end_all()
    assert not watch.running
    with pytest.raises(LookupError, match="mine"):
        broken.stop()


@pytest.mark.parametrize("interval", [0, -1, math.nan, math.inf, pytest.param(10**400, id="huge"), "1", None, True])
def test_wrong_intervals(interval):
    """What no thread can wait for is refused at once, and not where the monitor is stopped."""
    with pytest.raises(InvalidValueError, match=r"not an interval: .*; write seconds above 0 and up to \d"):
        gm.monitor(interval)
