"""Rules of the whole package that no single module can keep."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import jupyter_gpumem as gm

PACKAGE = Path(gm.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
MODULES = sorted(module.name for module in pkgutil.walk_packages(gm.__path__, "jupyter_gpumem."))


def test_the_package_was_found():
    """The rules below look at real files."""
    assert {"ledger.py", "interception.py", "session.py"} <= {path.name for path in FILES}
    assert len(MODULES) == len(FILES) - 1


@pytest.mark.parametrize(
    "statement",
    [
        "import jupyter_gpumem",
        "import jupyter_gpumem.magics",
        "import jupyter_gpumem; jupyter_gpumem.measure, jupyter_gpumem.status",
    ],
)
def test_importing_is_light(statement):
    """Neither torch nor anything for drawing or widgets is imported, and no thread is started."""
    code = f"""
import sys, threading
{statement}
heavy = {{"torch", "numpy", "pandas", "matplotlib", "ipywidgets", "anywidget", "pynvml"}} & set(sys.modules)
assert not heavy, heavy
assert threading.active_count() == 1
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_the_bare_package_imports_nothing_of_itself():
    """`import jupyter_gpumem` costs nothing until a name is used."""
    code = "import sys, jupyter_gpumem; print([m for m in sys.modules if m.startswith('jupyter_gpumem.')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def calls(name):
    """Return `(file, line)` of every call of that name, but where the allocator is the model and not the real one."""
    return [
        (path.relative_to(PACKAGE).as_posix(), node.lineno)
        for path in FILES
        if path.relative_to(PACKAGE).parts[0] not in {"allocator", "virtual"}
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and (node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", None)) == name
    ]


def test_only_the_ledger_resets_peaks():
    """One place alone may reset the counter that everybody shares."""
    found = {file for file, _ in calls("reset_peaks")}
    assert found == {"ledger.py", "devices/fake.py"}
    names = {
        "reset_peak_memory_stats",
        "reset_max_memory_allocated",
        "_cuda_resetPeakMemoryStats",
        "resetPeakMemoryStats",
    }
    assert not any(calls(name) for name in names)


def test_nothing_synchronises_collects_or_empties():
    """Measuring must not change what it measures; only a magic that says so acts, and from one place."""
    for name in ("synchronize", "init", "_lazy_init"):
        assert calls(name) == [], name
    assert {file for file, _ in calls("collect")} == {"control/auditing.py", "letting_go.py", "retrying.py"}
    assert {file for file, _ in calls("give_back")} == {
        "control/configuration.py",
        "control/returning.py",
        "devices/actable.py",
    }
    assert {file for file, _ in calls("give_back_everywhere")} == {"retrying.py"}  # and `letting_go.py`, as a value
    emptied = {file for file, _ in calls("empty_cache")}
    assert emptied == {"control/auditing.py", "devices/actable.py", "live/actions.py", "magics/control.py"}


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.relative_to(PACKAGE).as_posix())
def test_modules_stay_small_and_say_what_they_are(path):
    """No module has more than 400 lines, and each begins with a docstring."""
    source = path.read_text(encoding="utf-8")
    assert len(source.splitlines()) <= 400
    assert ast.get_docstring(ast.parse(source))


@pytest.mark.parametrize("name", MODULES)
def test_every_module_imports_alone(name):
    """No module needs another one imported first."""
    assert importlib.import_module(name).__name__ == name


@pytest.mark.parametrize("name", gm.__all__)
def test_public_names_are_there_and_documented(name):
    """Every name in `__all__` can be had, is listed by `dir`, and explains itself."""
    value = getattr(gm, name)
    assert inspect.getdoc(value)
    assert value.__module__.startswith("jupyter_gpumem.")
    assert name in dir(gm)
    for attribute, member in vars(value).items() if inspect.isclass(value) else ():
        if not attribute.startswith("_") and (callable(member) or isinstance(member, property)):
            assert inspect.getdoc(member), f"{name}.{attribute}"


def test_all_is_sorted_and_complete():
    """The list of public names is the list of homes, and an unknown name is an AttributeError."""
    assert sorted(gm.__all__) == gm.__all__ == sorted(gm._HOMES)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = gm.nonsense


def test_a_star_import_brings_the_public_names():
    """`from jupyter_gpumem import *` works with lazy names."""
    names = {}
    exec("from jupyter_gpumem import *", names)
    assert set(gm.__all__) <= set(names)


@pytest.mark.parametrize("name", MODULES)
def test_all_lists_of_modules_are_true(name):
    """Whatever a module promises in `__all__` it has."""
    module = importlib.import_module(name)
    for public in getattr(module, "__all__", ()):
        assert hasattr(module, public), public
