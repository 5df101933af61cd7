"""The live panel in real browsers, with real kernels: where it appears, what it draws, and what becomes of it."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.slow


def test_panel_is_live_while_a_cell_runs(anywhere):
    """The chart advances while a cell runs, and shows its number, its peak and an out-of-memory error."""
    anywhere.open(
        "%gpumem_panel",
        "block = gpu.allocate(600 * MiB)\nwith open('flag', 'w'): pass\nimport os\n"
        "try:\n    gpu.allocate(20 * GiB)\nexcept Exception: pass\n"
        "while os.path.exists('flag'): time.sleep(0.02)\ngpu.free(block)",
    )
    anywhere.run_all()
    anywhere.wait_for_panel()
    anywhere.wait_for_value("store.running?.number === 3")
    before = anywhere.value("store.shown.length")
    anywhere.wait_for_value(f"store.shown.length >= {before} + 8")
    assert anywhere.prompt(2).strip() == "[*]:"
    assert anywhere.value("store.newest('allocated')") == 600 * 2**20
    assert anywhere.page.locator(".gm-body:not([hidden]) .gm-status").inner_text() == "cell [3] runs"
    assert anywhere.value("store.shown.marks(0, 1e12).map(m => m.kind)") == ["oom"]
    (anywhere.root / "flag").unlink()
    anywhere.wait_for_prompt(2)
    anywhere.wait_for_value("store.running === null")
    cost = anywhere.value("store.cells.at(-1).devices['fake:0']")
    assert cost == {"peak": 600 * 2**20, "over": 600 * 2**20, "stays": 0, "exact": True}
    assert anywhere.panels() == 1
