"""Memory that no variable holds when it runs out: lists that are being built, arguments of calls that go on."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

GONE = "{} of what was allocated then is free again: it was {}"


def said(outcome):
    """Return the words of the explanation."""
    return " ".join(outcome.texts[-1].split())


@pytest.mark.parametrize(
    ("cell", "gone"),
    [
        (
            "small = take(50)\nkept = [take(3000) for _ in range(4)]",
            GONE.format("5.86 GiB", "probably held by the list that the comprehension in line 2 was building"),
        ),
        (
            "def build():\n    return {i: take(3000) for i in range(4)}\nbuild()",
            GONE.format("5.86 GiB", "probably held by the dict that the comprehension in line 2 was building"),
        ),
        ("[take(3000), take(3000), take(3000)]", GONE.format("5.86 GiB", "held by what was being computed or built")),
    ],
)
def test_what_went_with_the_error_is_told(gpu, cell, gone):
    """The explanation says how much it was, and what held it, if a comprehension was running there."""
    assert gone in said(gpu(cell))


def test_nothing_is_told_where_everything_has_a_name(gpu):
    """Local variables of the frames that failed are holders, and what a variable holds is no part of it."""
    text = said(gpu("kept = [take(3000)]\ndef most():\n    mine = take(3000)\n    take(3000)\nmost()"))
    assert "free again" not in text
    assert "not attributed" not in text
    assert "The largest holders: kept 2.93 GiB, " in text


def test_what_no_object_shows_is_told(gpu):
    """What is allocated without a tensor counts as not attributed."""
    gpu("address = torch.cuda.caching_allocator_alloc(3 * 2**30)")
    text = said(gpu("take(6000)"))
    gpu("torch.cuda.caching_allocator_delete(address)")
    assert "3.00 GiB are not attributed: no Python object shows them." in text
