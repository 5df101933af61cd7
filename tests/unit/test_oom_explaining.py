"""Verdicts and tried-out advice from states of the allocator model, without PyTorch but for the last tests."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jupyter_gpumem.allocator.model import Allocator, ModelOutOfMemoryError
from jupyter_gpumem.allocator.settings import AllocatorSettings
from jupyter_gpumem.devices import counters
from jupyter_gpumem.oom import parse
from jupyter_gpumem.oom.advice import Advisor, Place
from jupyter_gpumem.oom.numbers import numbers
from jupyter_gpumem.oom.observer import OomState
from jupyter_gpumem.oom.rehearsal import Rehearsal
from jupyter_gpumem.oom.verdicts import sentence, verdict
from jupyter_gpumem.records import Device, DriverMemory
from jupyter_gpumem.units import GiB, MiB

TOTAL = 16 * GiB


def fail(allocator, size):
    """Ask for too much and return the state and the text."""
    with pytest.raises(ModelOutOfMemoryError) as caught:
        allocator.malloc(size)
    error = caught.value
    settings = {"expandable_segments": allocator.settings.expandable_segments}
    if allocator.settings.max_split_size is not None:
        settings["max_split_size"] = allocator.settings.max_split_size
    used = TOTAL - allocator.driver.free
    state = OomState(
        device=Device("cuda", 0, total=TOTAL),
        tried=error.tried,
        free=allocator.driver.free,
        counters=counters(allocator.stats()),
        driver=DriverMemory(TOTAL, used, TOTAL - used, used, "model"),
        limit=allocator.limit,
        segments=allocator.snapshot(),
        settings=settings,
    )
    return state, parse(str(error))


def machine(conf="", limit=None):
    return Allocator(AllocatorSettings.parse(conf), total_memory=TOTAL, limit=limit)


def pinned(conf="", limit=None):
    """A giant temporary, then small blocks in its segment (case O11)."""
    allocator = machine(conf, limit)
    allocator.free(allocator.malloc(11104 * MiB))
    pins = [allocator.malloc(size * MiB) for size in (16, 16, 12, 18)]
    return allocator, pins


def test_fragmentation_and_the_setting_that_helps():
    """The giant block again: expandable segments would do, and the model shows it."""
    allocator, pins = pinned()
    state, text = fail(allocator, 11104 * MiB)
    n = numbers(text, state)
    assert verdict(n) == "fragmentation"
    assert "11.04" not in sentence("fragmentation", n, 11042 * MiB)
    rehearsal = Rehearsal(state)
    assert rehearsal.usable
    assert rehearsal.succeeds() is False
    assert rehearsal.succeeds_expandable() is True
    assert rehearsal.succeeds(freed=pins) is True
    assert rehearsal.succeeds(freed=pins[:3]) is False
    (action, *_) = Advisor("fragmentation", n, state, None).actions(())
    assert (action.settings, action.checked) == ("expandable_segments:True", True)


def test_the_advice_is_true():
    """The same program under the recommended setting really gets through in the model."""
    allocator, _ = pinned("expandable_segments:True")
    allocator.malloc(11104 * MiB)


def test_a_setting_that_is_on_is_not_recommended():
    """With expandable segments on already, there is nothing to recommend."""
    allocator = machine("expandable_segments:True")
    allocator.malloc(10 * GiB)
    state, text = fail(allocator, 9 * GiB)
    n = numbers(text, state)
    assert verdict(n) == "too much"
    for kind in ("fragmentation", "too much"):
        assert not any(action.settings for action in Advisor(kind, n, state, None).actions(()))


def test_a_setting_that_would_not_help_is_not_recommended():
    """Loose memory that is less than what is missing is no case for expandable segments."""
    allocator, _ = pinned()
    allocator.malloc(3 * GiB)
    state, text = fail(allocator, 15 * GiB)
    n = numbers(text, state)
    assert not any(action.settings for action in Advisor(verdict(n), n, state, None).actions(()))
    assert Rehearsal(state).succeeds_expandable() is False


def test_scattered_gaps():
    """Gaps smaller than a page between live blocks are of no use to expandable segments either."""
    allocator = machine()
    blocks = [allocator.malloc(9 * MiB) for _ in range(1500)]
    for block in blocks[::2]:
        allocator.free(block)
    state, text = fail(allocator, 4 * GiB)
    whole = Rehearsal(state)
    assert verdict(numbers(text, state)) in {"fragmentation", "too much"}
    assert whole.usable
    assert whole.succeeds(freed=blocks[1::2]) is True


def test_a_cap():
    """The driver has enough, only the cap is in the way; lifting it is tried out."""
    allocator = machine(limit=4 * GiB)
    allocator.malloc(3 * GiB)
    state, text = fail(allocator, 2 * GiB)
    n = numbers(text, state)
    assert verdict(n) == "cap"
    (action,) = Advisor("cap", n, state, None).actions(())
    assert action.checked
    assert "set_per_process_memory_fraction(0.32)" in action.text
    assert Rehearsal(state).succeeds(capped=False) is True


def test_fragmentation_under_a_cap():
    """Much loose memory below a cap is fragmentation, not the cap."""
    allocator, _ = pinned(limit=12 * GiB)
    state, text = fail(allocator, 11104 * MiB)
    assert verdict(numbers(text, state)) == "fragmentation"


@pytest.mark.parametrize(
    ("process", "expected"), [(2 * GiB, "others"), (14 * GiB, "outside"), (None, "others")], ids=str
)
def test_what_others_hold_and_what_lies_outside(process, expected):
    """12 GiB of somebody else's, or of this process beside PyTorch."""
    allocator = machine()
    allocator.driver.allocate(12 * GiB)
    allocator.malloc(GiB)
    state, text = fail(allocator, 4 * GiB)
    used = TOTAL - allocator.driver.free
    state = replace(state, driver=DriverMemory(TOTAL, used, TOTAL - used, process, "model"))
    assert verdict(numbers(text, state)) == expected


def test_private_pools():
    """Memory of private pools serves nobody else."""
    allocator = machine()
    allocator.free(allocator.malloc(10 * GiB, pool=(0, 1)))
    state, text = fail(allocator, 8 * GiB)
    n = numbers(text, state)
    assert (n.private, n.private_free) == (10 * GiB, 10 * GiB)
    assert verdict(n) == "private pools"


def test_a_state_that_the_model_does_not_confirm_gives_no_advice():
    """If the model would have served the request, its other answers mean nothing."""
    allocator, _ = pinned()
    state, text = fail(allocator, 11104 * MiB)
    roomy = replace(state, free=TOTAL)
    assert not Rehearsal(roomy).usable
    assert not any(a.checked for a in Advisor("fragmentation", numbers(text, roomy), roomy, None).actions(()))


def test_a_script_has_no_magics_and_no_kernel():
    """What is to be done is said in its own words."""
    allocator = machine()
    allocator.malloc(3 * GiB)
    state, text = fail(allocator, 15 * GiB)
    n = replace(numbers(text, state), private=2 * GiB, outside=3 * GiB)
    for kind, words in (("private pools", ("%gpumem_free", "gm.free()")), ("outside", ("kernel", "process"))):
        for notebook, word in zip((True, False), words, strict=True):
            action = Advisor(kind, n, state, None, place=Place(notebook=notebook)).actions(())[0]
            assert word in action.text
    assert "not to this process" in sentence("others", replace(n, others=2 * GiB), None)


def test_an_error_that_a_script_handles():
    """Its frames go with the last name that it has, and not with `%gpumem_free`; nothing is said of cells."""
    torch = pytest.importorskip("torch")
    import jupyter_gpumem as gm

    def step():
        kept = torch.empty(5 * GiB, dtype=torch.uint8, device="cuda")
        return kept, torch.empty(4 * GiB, dtype=torch.uint8, device="cuda")

    with gm.virtual_gpu("8GiB"):
        try:
            step()
        except torch.OutOfMemoryError as error:
            found = gm.explain_oom(error)
        assert gm.status().devices[0].counters.allocated == 0
    assert found.seen == "afterwards"
    assert found.actions[0].text.startswith("drop the error before trying again: leave its except block")
    assert found.actions[0].gives == 5 * GiB
    text = str(found)
    assert "The state is a later one: it was not kept when memory ran out." in text
    assert not any(word in text for word in ("cell", "kernel", "%gpumem"))
