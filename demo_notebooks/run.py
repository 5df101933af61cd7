"""Execute the demo notebooks in a real kernel and print what each cell shows.

    python demo_notebooks/run.py [NOTEBOOK ...] [--save]

Without names: every notebook of this folder. `--save` writes the outputs back into the notebooks.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import nbformat
from nbclient import NotebookClient

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent
_FOLDER = re.compile(r"(?<![\w.])/(?:[\w.+-]+/)*(?=(?:jupyter_gpumem|torch|IPython)/)")
_VIEW = "application/vnd.jupyter.widget-view+json"
_CELL_FILE = re.compile(r"[^\s\"']*ipykernel_\d+[/\\]\d+\.py")


def main() -> int:
    """Run, print, and return how many notebooks failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("notebooks", nargs="*", type=Path, help="which notebooks; default: all of this folder")
    parser.add_argument("--save", action="store_true", help="write the outputs back")
    options = parser.parse_args()

    failed = 0
    for path in options.notebooks or sorted(HERE.glob("*.ipynb")):
        notebook = nbformat.read(path, as_version=4)
        print(f"=== {path.name}", flush=True)
        folder = {"metadata": {"path": str(path.parent)}}
        client = NotebookClient(notebook, timeout=600, resources=folder, store_widget_state=False)
        try:
            client.execute()
        except Exception as error:  # noqa: BLE001 - the other notebooks are still worth running
            failed += 1
            print(error, file=sys.stderr)
        for cell in notebook.cells:
            if cell.cell_type == "code":
                print("\n" + "\n".join(shown(cell)), flush=True)
        if options.save:
            tidy(notebook)
            nbformat.write(notebook, path)
    return failed


def shown(cell: nbformat.NotebookNode) -> Iterator[str]:
    """Yield the lines of a cell and of what it shows, as a terminal would."""
    yield from (
        f"[{cell.execution_count or ' '}] " + line if not n else "    " + line
        for n, line in enumerate(cell.source.splitlines())
    )
    for output in cell.outputs:
        if output.output_type == "stream":
            text = output.text
        elif output.output_type == "error":
            text = f"{output.ename}: {output.evalue}"
        else:
            text = output.data.get("text/plain", "")
        yield from ("    | " + line for line in text.rstrip().splitlines())


def tidy(notebook: nbformat.NotebookNode) -> None:
    """Drop what differs from run to run without telling anything: timing metadata, where files lie, views of widgets.

    Such a view shows nothing without its kernel; the line of text beside it stays.
    """
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        for output in cell.get("outputs", ()):
            output.get("data", {}).pop(_VIEW, None)
            if output.output_type == "stream":
                output.text = _FOLDER.sub("", _CELL_FILE.sub("<cell>", output.text))
            elif output.output_type == "error":
                output.traceback = [_FOLDER.sub("", line) for line in output.traceback]


if __name__ == "__main__":
    sys.exit(main())
