"""A `;` behind the code of a magic: its value is shown by nobody, and so it does not stay; `-o` is not meant."""

from __future__ import annotations

import pytest

from jupyter_gpumem.records import Record

MiB = 2**20


@pytest.mark.parametrize("code", ["%gpumem 6 * 7;", "%%gpumem\n6 * 7;", "%%gpumem -q\n6 * 7;"])
def test_a_semicolon_silences_the_value(cells, code):
    """`;` hides the value, as anywhere in IPython."""
    outcome = cells(code)
    assert outcome.error is None
    assert "42" not in outcome.stdout
    assert "_" not in cells or cells["_"] != 42


class Taken:
    """Memory of the scripted device that is taken for as long as this lives."""

    def __init__(self, fake) -> None:
        self._fake, self._address = fake, fake.allocate(MiB)

    def __del__(self) -> None:
        self._fake.free(self._address)


@pytest.mark.parametrize(
    ("code", "stays"),
    [
        ("%gpumem -v cost take();", 0),
        ("%gpumem -v cost take() ;  # a comment", 0),
        ("value = %gpumem -v cost take();", 0),
        ("%%time\n%%gpumem -v cost\ntake();", 0),
        ("%gpumem -v cost kept = take();", MiB),
        ("%gpumem -v cost take()", MiB),
        ("%gpumem -v cost take()  # ;", MiB),
    ],
)
def test_a_silenced_value_does_not_stay(cells, fake, code, stays):
    """It is dropped before the measurement ends: the report says what the session keeps."""
    cells.shell.user_ns["take"] = lambda: Taken(fake)
    cells(code)
    assert cells["cost"]["fake:0"].delta_allocated == stays
    assert fake.stats(0)["allocated_bytes"]["all"]["current"] == stays


@pytest.mark.parametrize("line", ["%gpumem -o 6 * 7;", "%gpumem_who -o;", "%gpumem_who -o ;"])
def test_the_result_is_not_silenced(cells, line):
    """What `-o` was asked for comes, with and without a `;` at the end of the line."""
    assert cells(f"result = {line}").error is None
    assert isinstance(cells["result"], Record)


def test_the_result_of_a_prediction_is_not_silenced(gpu):
    """Nor that of code which does not run for real."""
    gpu("result = %gpumem_predict -o --gpu T4 take(64);")
    assert gpu["result"].devices[0].peak_allocated == 64 * MiB
