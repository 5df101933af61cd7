"""A notebook in a browser, as a user sees it, and the panels in it."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path  # noqa: TC003
from typing import Any

PREPARE = """
%load_ext jupyter_gpumem
import time
from jupyter_gpumem import devices
from tests.model_backend import ModelBackend
KiB, MiB, GiB = 2**10, 2**20, 2**30
gpu = ModelBackend()
devices.add_backend(gpu)
"""

PROMPT = ".jp-Notebook .jp-Cell .jp-InputPrompt"

OPEN = ".gpumem .gm-body:not([hidden])"
"""A panel that is unfolded."""

_ASK = """selector => {{
  const view = document.querySelector(selector)?.parentElement.gpumem;
  if (!view) return undefined;
  const store = view.store;
  {}
}}"""


class NotebookPage:
    """A page of a Jupyter application with one notebook.

    Args:
        page: Playwright's page.
        server: the server to ask.
        name: what the notebook is called.
        artifacts: where what a test leaves is kept.

    Attributes:
        errors: what was logged as an error since the notebook was there.
        strangers: addresses outside this machine that were asked for.
    """

    def __init__(self, page: Any, server: Any, name: str, artifacts: Path) -> None:
        self.page = page
        self.errors: list[str] = []
        self.strangers: list[str] = []
        self.root = server.root
        self.artifacts = artifacts
        self._server = server
        self._path = "".join(c if c.isalnum() else "-" for c in name) + ".ipynb"
        self._settled = False
        page.on("console", lambda message: self._log(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: self._log(f"{error}\n{error.stack}"))
        page.context.on("request", self._requested)

    def open(self, *cells: str) -> NotebookPage:
        """Make a notebook of these cells, after one that adds a modelled device, and wait for its kernel."""
        notebook = {
            "cells": [
                {
                    "cell_type": "code",
                    "id": f"c{n}",
                    "metadata": {},
                    "outputs": [],
                    "execution_count": None,
                    "source": code,
                }
                for n, code in enumerate([PREPARE.strip(), *cells])
            ],
            "metadata": {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}},
            "nbformat": 4,
            "nbformat_minor": 5,
        }
        (self._server.root / self._path).write_text(json.dumps(notebook))
        # A workspace of its own, so that JupyterLab does not open what other tests had open.
        workspace = f"lab/workspaces/{self._path.removesuffix('.ipynb')}/tree"
        view = workspace if self.is_lab else "notebooks"
        self.page.goto(f"{self._server.url}{view}/{self._path}")
        self._wait_for_kernel()
        self._settled = True
        return self

    def _wait_for_kernel(self) -> None:
        self.page.wait_for_function(
            "() => window.jupyterapp?.shell.currentWidget?.context?.sessionContext.session?.kernel?.connectionStatus"
            " === 'connected' && document.querySelector('.jp-Notebook .jp-Cell')"
        )

    def command(self, name: str, **arguments: Any) -> None:
        """Do what a menu entry does, and do not wait for it."""
        self.page.evaluate("([name, args]) => { window.jupyterapp.commands.execute(name, args); }", [name, arguments])

    def run_all(self) -> None:
        """Run every cell, and return at once."""
        self.command("notebook:run-all-cells")

    def run(self, number: int) -> None:
        """Run one cell, the first is 0, and return at once."""
        self.page.locator(".jp-Notebook .jp-Cell").nth(number).locator(".jp-InputPrompt").click()
        self.command("notebook:run-cell")

    def prompt(self, number: int) -> str:
        """Return what stands before a cell: `[*]:` while it runs or waits, `[3]:` afterwards."""
        return self.page.locator(PROMPT).nth(number).inner_text()

    def wait_for_prompt(self, number: int, text: str | None = None) -> None:
        """Return when a cell has run, or its prompt is that text."""
        done = f"t => t === {json.dumps(text)}" if text else r"t => /^\[\d+\]:$/.test(t)"
        self.page.wait_for_function(
            f"n => ({done})(document.querySelectorAll('{PROMPT}')[n]?.innerText.trim() ?? '')",
            arg=number,
        )

    def reload(self) -> None:
        """Load the page anew, as F5 does; the kernel lives on."""
        self._settled = False
        self.page.reload()
        self._wait_for_kernel()
        self._settled = True

    def save(self) -> None:
        """Save the notebook, with its outputs."""
        self.page.evaluate("() => window.jupyterapp.commands.execute('docmanager:save')")

    def restart(self) -> None:
        """Restart the kernel, and wait for it."""
        self._settled = False  # JupyterLab itself logs that the debugger's requests were cancelled
        self.page.evaluate("() => window.jupyterapp.shell.currentWidget.context.sessionContext.restartKernel()")
        self._wait_for_kernel()
        self._settled = True

    def sidebar_tabs(self) -> list[str]:
        """Return what our tabs of the right sidebar are called."""
        script = "[...window.jupyterapp.shell.widgets('right')].map(one => one.title.label)"
        return [title for title in self.page.evaluate(script) if title.startswith("GPU memory")]

    def close_sidebar_tab(self) -> None:
        """Close our tab of the right sidebar, as its cross does."""
        script = (
            "[...window.jupyterapp.shell.widgets('right')].find(one => one.title.label.startsWith('GPU memory'))"
            ".dispose()"
        )
        self.page.evaluate(script)

    def close_notebook(self) -> None:
        """Close the notebook's tab; its kernel lives on."""
        self._settled = False
        self.save()
        self.page.evaluate("() => window.jupyterapp.shell.currentWidget.close()")
        self.page.wait_for_function("() => document.querySelector('.jp-Notebook') === null")

    def open_again(self) -> None:
        """Open the notebook that was closed, and wait for its kernel."""
        self.command("docmanager:open", path=self._path)
        self._wait_for_kernel()
        self._settled = True

    @property
    def name(self) -> str:
        """What the notebook is called, without its suffix."""
        return self._path.removesuffix(".ipynb")

    @property
    def is_lab(self) -> bool:
        """Whether this is JupyterLab."""
        return self._server.application == "lab"

    # Panels

    def wait_for_panel(self, *, docked: bool | None = None) -> Any:
        """Return the one unfolded panel, once there are samples in it."""
        where = {None: "", True: ".jupyterlab-sidecar ", False: ".jp-Notebook "}[docked]
        self.page.wait_for_function(
            "where => [...document.querySelectorAll(where)].some(e => e.parentElement.gpumem.store.shown.length > 1)",
            arg=where + OPEN,
        )
        return self.page.locator(where + OPEN)

    def panels(self) -> int:
        """Return how many panels are unfolded."""
        return self.page.locator(OPEN).count()

    def value(self, expression: str) -> Any:
        """Return a value of the unfolded panel: `view` is its view, `store` what it knows."""
        return self.page.evaluate(_ASK.format(f"return {expression};"), OPEN)

    def wait_for_value(self, condition: str) -> None:
        """Return when a condition on the unfolded panel holds."""
        self.page.wait_for_function(_ASK.format(f"return Boolean({condition});"), arg=OPEN)

    def change_theme(self, theme: str) -> None:
        """Change the theme, and wait until JupyterLab has: two at a time get in each other's way at its splash."""
        self.page.evaluate("theme => window.jupyterapp.commands.execute('apputils:change-theme', {theme})", theme)
        self.page.wait_for_function("theme => document.body.dataset.jpThemeName === theme", arg=theme)
        self.page.wait_for_function("() => !document.getElementById('jupyterlab-splash')")

    def note(self, name: str, value: Any) -> None:
        """Keep a measured value beside the screenshots."""
        path = self.artifacts / "measured.jsonl"
        with path.open("a") as file:
            file.write(json.dumps({name: value}) + "\n")

    # What may not happen

    def _log(self, text: str) -> None:
        if self._settled:
            self.errors.append(text)

    def _requested(self, request: Any) -> None:
        if not request.url.startswith((self._server.url, self._server.url.replace("http:", "ws:"), "data:", "blob:")):
            self.strangers.append(request.url)

    def close(self) -> None:
        """Shut the kernel down."""
        for session in json.loads(self._api("sessions")):
            if session["path"] == self._path:
                self._api(f"sessions/{session['id']}", method="DELETE")

    def _api(self, path: str, method: str = "GET") -> bytes:
        request = urllib.request.Request(f"{self._server.url}api/{path}", method=method)  # noqa: S310
        with urllib.request.urlopen(request) as answer:  # noqa: S310
            return answer.read()
