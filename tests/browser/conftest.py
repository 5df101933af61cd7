"""Real browsers on real servers with real kernels: JupyterLab 4 and Notebook 7 in the system's Chromium.

Each test has a notebook, a kernel and a browser context of its own. At its end no error may have been logged, no
request may have left the machine, and a screenshot lies under `artifacts/browser/`.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from notebook_page import NotebookPage

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
ARTIFACTS = ROOT / "artifacts" / "browser"
CHROMIUM = os.environ.get("GPUMEM_CHROMIUM") or next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None
)
PATIENCE = 120

SETTINGS = {
    # Looks for news, which is a request of the server's to the world.
    "@jupyterlab/apputils-extension/notification.jupyterlab-settings": '{"fetchNews": "false"}',
    "@jupyterlab/docmanager-extension/plugin.jupyterlab-settings": '{"autosave": false}',
}
DARK = {"@jupyterlab/apputils-extension/themes.jupyterlab-settings": '{"theme": "JupyterLab Dark"}'}


class Server:
    """A Jupyter server.

    Args:
        application: `lab` or `notebook`.
        home: a folder of its own.
        settings: files of user settings by their name.
    """

    def __init__(self, application: str, home: Path, settings: dict[str, str]) -> None:
        self.application = application
        self.root = home / "notebooks"
        self.root.mkdir(parents=True)
        for name, text in settings.items():
            path = home / "config/lab/user-settings" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        environment = os.environ | {
            "JUPYTER_CONFIG_DIR": str(home / "config"),
            "JUPYTER_DATA_DIR": str(home / "data"),
            "JUPYTER_RUNTIME_DIR": str(home / "runtime"),
            "IPYTHONDIR": str(home / "ipython"),
            "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
        }
        options = ["--no-browser", "--allow-root", "--expose-app-in-browser", f"--port={self.port}"]
        options += [
            "--IdentityProvider.token=",
            "--ServerApp.disable_check_xsrf=True",
            "--ServerApp.port_retries=0",
            f"--ServerApp.root_dir={self.root}",
        ]
        self.log = home / "log"
        with self.log.open("w") as log:
            command = [sys.executable, "-m", "jupyter", application, *options]
            self.process = subprocess.Popen(command, cwd=self.root, env=environment, stdout=log, stderr=log)

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}/"

    def wait(self) -> None:
        """Return when it answers."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            try:
                with urllib.request.urlopen(f"{self.url}api", timeout=5):  # noqa: S310
                    return
            except (urllib.error.URLError, ConnectionError):  # noqa: PERF203 - it is what is waited for
                assert self.process.poll() is None, self.log.read_text()
                time.sleep(0.1)
        raise TimeoutError(self.log.read_text())

    def stop(self) -> None:
        """End it, with its kernels."""
        self.process.terminate()
        self.process.wait(timeout=PATIENCE)


def _server(application: str, factory: pytest.TempPathFactory, settings: dict[str, str]) -> Iterator[Server]:
    one = Server(application, factory.mktemp(application), settings)
    try:
        one.wait()
        yield one
    finally:
        one.stop()


@pytest.fixture(scope="session")
def lab_server(tmp_path_factory):
    """A server of JupyterLab."""
    yield from _server("lab", tmp_path_factory, SETTINGS)


@pytest.fixture(scope="session")
def dark_server(tmp_path_factory):
    """A server of a JupyterLab in its dark theme."""
    yield from _server("lab", tmp_path_factory, SETTINGS | DARK)


@pytest.fixture(scope="session")
def notebook_server(tmp_path_factory):
    """A server of Notebook 7."""
    yield from _server("notebook", tmp_path_factory, SETTINGS)


@pytest.fixture(scope="session")
def browser():
    """The system's Chromium."""
    playwright = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        reason = "no Chromium: install the package `chromium`, or name a browser in GPUMEM_CHROMIUM"
        assert not os.environ.get("GPUMEM_REQUIRE_BROWSER"), reason
        pytest.skip(reason)
    with playwright.sync_playwright() as driver:
        one = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield one
        one.close()


def _page(browser, server: Server, request: pytest.FixtureRequest) -> Iterator[NotebookPage]:
    context = browser.new_context(viewport={"width": 1400, "height": 900})
    context.set_default_timeout(1000 * PATIENCE)
    one = NotebookPage(context.new_page(), server, request.node.name, ARTIFACTS)
    ARTIFACTS.mkdir(parents=True, exist_ok=True)
    try:
        yield one
    finally:
        one.page.screenshot(path=ARTIFACTS / f"{request.node.name}.png")
        one.close()
        context.close()
    assert one.errors == []
    assert one.strangers == []


@pytest.fixture
def lab(browser, lab_server, request):
    """A page of JupyterLab, without a notebook yet."""
    yield from _page(browser, lab_server, request)


@pytest.fixture
def dark_lab(browser, dark_server, request):
    """A page of a dark JupyterLab."""
    yield from _page(browser, dark_server, request)


@pytest.fixture
def notebook(browser, notebook_server, request):
    """A page of Notebook 7."""
    yield from _page(browser, notebook_server, request)


@pytest.fixture(params=["lab", "notebook"])
def anywhere(request):
    """A page of each of the two."""
    return request.getfixturevalue(request.param)
