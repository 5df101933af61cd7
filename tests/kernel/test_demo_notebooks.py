"""The demo notebooks: as they are committed, and as `make demo` runs them on a machine without a GPU."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

FOLDER = Path(__file__).parents[2] / "demo_notebooks"
NOTEBOOKS = sorted(path.name for path in FOLDER.glob("*.ipynb"))


def texts(notebook):
    return [
        output.get("text") or output.get("data", {}).get("text/plain", "")
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
    ]


@pytest.mark.parametrize(
    ("name", "card"), [("01_measure_a_cell.ipynb", "NVIDIA H200"), ("02_will_it_fit.ipynb", "virtual")]
)
def test_the_committed_outputs_say_what_they_are_of(name, card):
    """Measuring was done on a real card, predicting without one, and every report says so; only what should fails."""
    notebook = nbformat.read(FOLDER / name, as_version=4)
    reports = [text for text in texts(notebook) if text.startswith("cuda:0")]
    assert len(reports) >= 5
    assert all(card in text for text in reports)
    assert not re.search(r"/(tmp|home|root|work)/", nbformat.writes(notebook)), "a path of the machine it ran on"
    assert all(cell.execution_count for cell in notebook.cells if cell.cell_type == "code")
    failing = [
        cell
        for cell in notebook.cells
        if cell.cell_type == "code" and any(output.output_type == "error" for output in cell.outputs)
    ]
    assert all("raises-exception" in cell.metadata.get("tags", ()) for cell in failing)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_they_run(name):
    """`make demo` runs them to the end, and prints their reports."""
    process = subprocess.run(
        [sys.executable, FOLDER / "run.py", FOLDER / name], capture_output=True, text=True, check=False, timeout=590
    )
    assert process.returncode == 0, process.stderr
    assert "| cuda:0 · " in process.stdout
    assert "virtual" in process.stdout
