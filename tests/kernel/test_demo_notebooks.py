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
    ("name", "card"),
    [
        ("01_measure_a_cell.ipynb", "NVIDIA H200"),
        ("02_will_it_fit.ipynb", "virtual"),
        ("03_watch_fragmentation.ipynb", "virtual"),
    ],
)
def test_the_committed_outputs_say_what_they_are_of(name, card):
    """Measuring was done on a real card, the rest without one, and every report says so; only what should fails."""
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


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_pictures_are_there_and_nothing_needs_a_kernel_to_be_read(name):
    """What the text shows is in the repository, and no output is a view of a widget that is gone."""
    notebook = nbformat.read(FOLDER / name, as_version=4)
    for picture in re.findall(r"!\[.*?\]\((.*?)\)", prose(notebook)):
        assert (FOLDER / picture).is_file(), picture
    assert "widgets" not in notebook.metadata
    assert "widget-view" not in nbformat.writes(notebook)


def prose(notebook):
    """Return all the text between the cells of code."""
    return "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")


def unfounded(claims, outputs):
    """Return the sizes and percentages of a text that are in no output, as precisely as the text gives them."""
    pattern = r"(\d[\d,]*(?:\.(\d+))?) ?(KiB|MiB|GiB|TiB|%)"
    known = [(float(number.replace(",", "")), unit) for number, _, unit in re.findall(pattern, outputs)]
    return [
        f"{number} {unit}"
        for number, decimals, unit in re.findall(pattern, claims)
        if not any(unit == of and f"{value:,.{len(decimals)}f}" == number for value, of in known)
    ]


def test_what_is_unfounded_is_found():
    """A number is founded if an output says it, rounded or not, in the same unit."""
    outputs = "peak 12.57 GiB, 1,024.5 MiB, 30.0 %"
    assert unfounded("12.57 GiB, 12.6 GiB, 13 GiB, 1,024.5 MiB, 30 %", outputs) == []
    assert unfounded("12.58 GiB, 12.5 GiB, 12.57 MiB, 31 %", outputs) == ["12.58 GiB", "12.5 GiB", "12.57 MiB", "31 %"]


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_the_text_says_what_the_committed_outputs_say(name):
    """Every size and percentage in the text is in an output."""
    notebook = nbformat.read(FOLDER / name, as_version=4)
    assert unfounded(prose(notebook), "\n".join(texts(notebook))) == []


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_they_run(name):
    """`make demo` runs them to the end, prints their reports, and on the virtual GPU the text is true again."""
    process = subprocess.run(
        [sys.executable, FOLDER / "run.py", FOLDER / name], capture_output=True, text=True, check=False, timeout=590
    )
    assert process.returncode == 0, process.stderr
    assert "| cuda:0 · " in process.stdout
    assert "virtual" in process.stdout
    assert unfounded(prose(nbformat.read(FOLDER / name, as_version=4)), process.stdout) == []
