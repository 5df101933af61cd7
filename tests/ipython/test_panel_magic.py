"""`%gpumem_panel` in a shell without a kernel, and its options."""

from __future__ import annotations

import sys

from IPython.core.error import UsageError


def test_a_terminal_gets_a_line(cells):
    """Where nothing live can be shown there is one line with the numbers, and nothing is left running."""
    cells["fake"].allocate(3 * cells["MiB"])
    outcome = cells("%gpumem_panel")
    assert outcome.texts == [
        "fake:0 3.00 MiB allocated, 4.00 MiB reserved. The live panel needs a notebook; %gpumem shows more."
    ]
    assert outcome.stdout == ""
    assert sys.modules["jupyter_gpumem.live"].opened() is None


def test_options(cells):
    """Off is harmless without a panel, `--inline` goes with on, and other words are refused in one line."""
    assert cells("%gpumem_panel off").error is None
    for line in ("%gpumem_panel off --inline", "%gpumem_panel maybe"):
        assert isinstance(cells(line).error, UsageError)
    assert "below the cell only" in cells("%gpumem_panel --help").stdout
    assert cells.complete("%gpumem_panel --in") == ["--inline"]
    assert {"on", "off"} <= set(cells.complete("%gpumem_panel "))
