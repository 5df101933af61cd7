"""What users install: the built wheel, in environments of its own, with and without PyTorch."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.kernel.client import Kernel

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = {".json", ".py", ".typed"}
BUNDLE = ("jupyter_gpumem/live/static/panel.js", "jupyter_gpumem/live/static/panel.css")


def run(*command, **options):
    """Run a command and return what it printed; fail with its output if it fails."""
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    """The folder with a freshly built sdist, and the wheel made from it."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--outdir", folder, ROOT)
    return folder


@pytest.fixture(scope="session")
def wheel(built):
    """The built wheel."""
    (found,) = built.glob("*.whl")
    return found


def environment(folder: Path) -> Path:
    """Create a virtual environment and return its Python."""
    run(sys.executable, "-m", "venv", folder)
    return folder / ("Scripts" if os.name == "nt" else "bin") / "python"


@pytest.fixture(scope="session")
def without_torch(tmp_path_factory, wheel):
    """The Python of an environment that has the wheel and all it needs except PyTorch."""
    python = environment(tmp_path_factory.mktemp("no-torch"))
    needed = ["ipython", "ipykernel!=7.0.*", "psutil", "nvidia-ml-py", "anywidget", "ipywidgets"]
    run(python, "-m", "pip", "install", "--quiet", "--no-deps", wheel)
    run(python, "-m", "pip", "install", "--quiet", *needed)
    return python


@pytest.fixture
def bare(without_torch):
    """A kernel without PyTorch, with the extension loaded."""
    with Kernel(without_torch) as kernel:
        assert kernel.run("%load_ext jupyter_gpumem").shown.strip() == ""
        yield kernel


def test_wheel_holds_the_package_and_nothing_else(wheel):
    """The wheel has the typed package, byte by byte, its licence, and no tests or notebooks."""
    files = [path.relative_to(ROOT) for path in (ROOT / "jupyter_gpumem").rglob("*") if path.suffix in SHIPPED]
    expected = {path.as_posix() for path in files if "frontend" not in path.parts} | set(BUNDLE)
    with zipfile.ZipFile(wheel) as archive:
        packed = {name: archive.read(name) for name in archive.namelist()}
    assert any(name.endswith("licenses/LICENSE") for name in packed)
    package = {name: content for name, content in packed.items() if ".dist-info/" not in name}
    assert package == {name: (ROOT / name).read_bytes() for name in expected}


def test_sdist_can_run_the_tests(built):
    """The sdist brings tests, notebooks and documents along."""
    (found,) = built.glob("*.tar.gz")
    with tarfile.open(found) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"README.md", "CHANGELOG.md", "LICENSE", "pyproject.toml", "tests/kernel/client.py"} <= names


def test_bundle_is_in_both_and_asks_for_nothing(built, wheel):
    """Sdist and wheel bring the panel's bundle, with uPlot's licence, and no address in it can be fetched from."""
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        root = archive.getnames()[0].partition("/")[0]
        packed = {name: archive.extractfile(f"{root}/{name}").read().decode() for name in BUNDLE}
        assert archive.getmember(f"{root}/jupyter_gpumem/live/frontend/package-lock.json")
        assert archive.getmember(f"{root}/hatch_build.py")
        assert not any("node_modules" in name for name in archive.getnames())
    with zipfile.ZipFile(wheel) as archive:
        assert {name: archive.read(name).decode() for name in BUNDLE} == packed
    module, style = (packed[name] for name in BUNDLE)
    assert "Contains uPlot 1.6.32" in module
    assert "Permission is hereby granted" in module
    assert set(re.findall(r"https?://[^\"'`\s)]*", module)) == {"http://www.w3.org/2000/svg"}  # a name, no address
    assert not re.search(r"\b(fetch|XMLHttpRequest|WebSocket|EventSource|importScripts|import)\(|sendBeacon", module)
    assert not re.search(r"@import|url\(|https?:", style)


def test_panel_works_from_the_wheel(bare):
    """The installed package opens its panel, sends its bundle to the browser and samples."""
    reply = bare.run("%gpumem_panel --inline\nimport time; time.sleep(1)")
    assert reply.status == "ok", reply.shown
    assert "application/vnd.jupyter.widget-view+json" in reply.displays[0]
    assert reply.displays[0]["text/plain"] == "GPU memory panel: no GPU is used yet in this process"
    assert bare.value("len(__import__('jupyter_gpumem.live').live.opened()._channel.widget._esm) > 50_000") == "True"
    assert bare.value("__import__('jupyter_gpumem.live').live.opened().failed") == "False"
    assert bare.run("%gpumem_panel off").status == "ok"


@pytest.mark.timeout(900)  # it is many tests in one
def test_installed_wheel_passes_the_tests(wheel, tmp_path):
    """The tests of the magics pass against the installed wheel, with the checkout out of reach.

    They reach every room of the package, and each of its files is the checkout's own, which all tests have seen.
    """
    python = environment(tmp_path / "env")
    run(python, "-m", "pip", "install", "--quiet", "--no-deps", wheel)
    # The rest (torch, pytest, ...) comes from the environment of this run: `.pth` files in there, such as that of an
    # editable install of the checkout, are not followed.
    site = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    Path(site, "development.pth").write_text(sysconfig.get_path("purelib"))
    shutil.copytree(ROOT / "tests", tmp_path / "work/tests")
    shutil.copy(ROOT / "pyproject.toml", tmp_path / "work")
    clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH" and "PYTEST" not in key}
    where = run(python, "-c", "import jupyter_gpumem; print(jupyter_gpumem.__file__)", cwd=tmp_path, env=clean)
    assert where.startswith(str(tmp_path))
    run(python, "-m", "pytest", "-q", "-n", "2", "-m", "not slow", "tests/ipython", cwd=tmp_path / "work", env=clean)


def test_there_is_no_torch(bare):
    """The environment really has no PyTorch."""
    assert bare.run("import torch").error == "ModuleNotFoundError"


@pytest.mark.parametrize(
    "code", ["%gpumem", "%gpumem ran = True", "%%gpumem\nran = True", "%%time\n%%gpumem\nran = True"]
)
def test_without_torch_one_line_says_so(bare, code):
    """Every magic refuses in one line, with error status, and the user's code does not run."""
    reply = bare.run(code)
    assert reply.status == "error"
    assert "PyTorch is not installed in this kernel's environment" in reply.stderr
    assert len(reply.stderr.strip().splitlines()) == 1
    assert "jupyter_gpumem" not in reply.traceback
    assert bare.value("'ran' in globals()") == "False"


def test_without_torch_other_cells_run(bare):
    """Loading, help, automatic measuring and unloading work without PyTorch."""
    assert bare.run("%gpumem --help").status == "ok"
    bare.run("%gpumem_auto on")
    assert "PyTorch is not installed" in bare.run("1 + 1").reports[0]
    assert bare.run("%unload_ext jupyter_gpumem\n1 + 1").reports == []


def test_python_interface_without_torch(without_torch):
    """`gm.measure` and `gm.status` say what is missing and never import torch themselves."""
    code = (
        "import jupyter_gpumem as gm, sys\nwith gm.measure() as m: pass\n"
        "print(m.result.missing); print(gm.status().missing); print('torch' in sys.modules)"
    )
    lines = run(without_torch, "-c", code).splitlines()
    assert (
        lines[:2] == ["PyTorch is not installed in this kernel's environment; install torch and restart the kernel"] * 2
    )
    assert lines[2] == "False"
