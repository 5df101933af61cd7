"""The cache and the cap on a virtual GPU: the same numbers as the allocator model's."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

import jupyter_gpumem as gm
from jupyter_gpumem.control.capping import fraction_for
from jupyter_gpumem.control.reservation import RESERVATIONS
from jupyter_gpumem.errors import InvalidValueError, UnavailableError
from jupyter_gpumem.units import GiB, MiB
from tests.notebooks import take
from tests.unit.conftest import level

torch = pytest.importorskip("torch")


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
    assert "notebooks.py" in result.devices[0].pins[0].site
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


# Flags of all


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
