"""What was being built when an error was raised, from the instructions at which it left the code."""

from __future__ import annotations

import pytest

from jupyter_gpumem.oom.building import being_built


def fail(number=2):
    """Raise an error in the third round of a loop."""
    if number == 2:
        raise ValueError("of the code")
    return number


def in_a_list():
    return [fail(i) for i in range(4)]


def in_a_set():
    return {fail(i) for i in range(4)}


def in_a_dict():
    return {i: fail(i) for i in range(4)}


def in_a_condition():
    return [i for i in range(4) if fail(i)]


def in_a_nested_one():
    return [[fail(j) for j in range(4)] for i in range(3)]


def before_a_nested_one():
    return [fail() or [j + 1 for j in range(4)] for i in range(3)]


def after_a_nested_one():
    return [(i, [j + 1 for j in range(3)], fail(i)) for i in range(4)]


def in_a_loop_before_one():
    for i in range(4):
        fail(i)
        [j + 1 for j in range(3)]


def in_a_loop_after_one():
    for i in range(4):
        [j + 1 for j in range(3)]
        fail(i)


def in_a_loop_that_appends():
    found = []
    while True:
        found.append(fail(len(found)))


def in_what_one_goes_through():
    return [x + 1 for x in [fail()]]


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (in_a_list, "list"),
        (in_a_set, "set"),
        (in_a_dict, "dict"),
        (in_a_condition, "list"),
        (in_a_nested_one, "list"),
        (before_a_nested_one, "list"),
        (after_a_nested_one, "list"),
        (in_a_loop_before_one, None),
        (in_a_loop_after_one, None),
        (in_a_loop_that_appends, None),
        (in_what_one_goes_through, None),
    ],
)
def test_a_running_comprehension_is_found(function, kind):
    """In every version of Python; a loop around or beside it is none."""
    with pytest.raises(ValueError, match="of the code") as caught:
        function()
    line = function.__code__.co_firstlineno + 1
    expected = kind and f"the {kind} that the comprehension in line {line} was building"
    assert being_built(caught.value) == expected
