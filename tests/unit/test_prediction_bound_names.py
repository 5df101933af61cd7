"""Names that earlier code has bound to functions of files: in a prediction they lose nothing either."""

from __future__ import annotations

import bz2
import functools
import glob
import io
import os
import pathlib
import sys
import tarfile
import types
from io import open as io_open
from os import makedirs, remove, rename, replace, rmdir, unlink
from shutil import rmtree

import pytest

torch = pytest.importorskip("torch")

from torch import load, save  # noqa: E402, TID253

from jupyter_gpumem.prediction import predict  # noqa: E402

PLAIN = {"remove": remove, "rename": rename, "open": io_open, "save": save, "rmtree": rmtree}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A folder to work in, in which every file stays what it is."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "empty").mkdir()
    for name in ("a", "b", "c", "full/d"):
        (tmp_path / name).write_text(name)
    before = _content(tmp_path)
    yield tmp_path
    assert _content(tmp_path) == before
    assert remove is PLAIN["remove"] is os.remove
    assert io_open is PLAIN["open"] is open
    assert save is PLAIN["save"] is torch.save


def _content(folder):
    return {str(path): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def test_names_of_the_codes_own_module():
    """`from os import remove`, in whatever cell."""

    def code():
        remove("a")
        unlink("b")
        rename("c", "a")
        replace("a", "b")
        rmtree("full")
        rmdir("empty")
        makedirs("x/y")
        with io_open("x/file", "w") as file:  # noqa: UP020
            file.write("x")
        save({"a": 1}, "b")
        assert load("b") == {"a": 1}
        assert sorted(os.listdir()) == ["b", "x"]

    predict(code)


def test_names_of_other_modules(monkeypatch):
    """A module of the user's, and those of Python that have their own names for `open`."""
    helper = types.ModuleType("gpumem_other_helper")
    helper.away, helper.opened = os.remove, open
    monkeypatch.setitem(sys.modules, helper.__name__, helper)

    def code():
        helper.away("a")
        with helper.opened("b", "w") as file:
            file.write("other")
        with tarfile.open("x.tar", "w") as file:
            file.add("full")
        with bz2.open("x.bz2", "w") as file:
            file.write(b"x")
        with bz2.open("x.bz2") as file:
            assert file.read() == b"x"

    predict(code)
    assert (helper.away, helper.opened, tarfile.bltn_open) == (os.remove, open, open)


def test_what_else_has_the_functions():
    """Objects, classes, containers, partial functions, closures, defaults of arguments."""

    class Rotation:
        away = staticmethod(os.remove)
        unlink = os.unlink

        def __init__(self):
            self.remove = os.remove

    rotation, table, steps = Rotation(), {"remove": os.remove}, [os.remove]
    partial, closed = functools.partial(os.remove, "c"), os.remove
    space = types.SimpleNamespace(remove=os.remove)

    def default(path, remove=os.remove, *, again=os.remove):
        remove(path)
        with pytest.raises(FileNotFoundError):
            again(path)

    inside = dict(vars(Rotation))
    calls = (rotation.remove, table["remove"], steps[0], closed, space.remove, partial.func)

    def code():
        for call in (rotation.remove, rotation.away, rotation.unlink, table["remove"], steps[0], closed, space.remove):
            call("a")
            os.rename("b", "a")
            with open("b", "w") as file:
                file.write("b")
        partial()
        default("a")

    predict(code)
    assert calls == (os.remove,) * len(calls)
    assert dict(vars(Rotation)) == inside
    assert default.__defaults__ == (os.remove,)
    assert default.__kwdefaults__ == {"again": os.remove}


@pytest.mark.parametrize(("module", "name"), [(pathlib, "_NormalAccessor"), (glob, "_StringGlobber")])
def test_what_paths_have_bound(monkeypatch, module, name):
    """Those of Python 3.10, and the patterns of Python 3.13, have the functions in a class."""

    class Accessor:
        unlink, open = os.unlink, open
        scandir = staticmethod(os.scandir)

    monkeypatch.setattr(module, name, Accessor, raising=False)

    def code():
        Accessor().unlink("a")
        with Accessor().open("b", "w") as file:
            file.write("other")
        assert sorted(entry.name for entry in Accessor().scandir(".")) == ["b", "c", "empty", "full"]

    before = dict(vars(Accessor))
    predict(code)
    assert dict(vars(Accessor)) == before


def test_what_a_module_has_bound_in_one_prediction_is_harmless_in_the_next(monkeypatch):
    """It was imported then, and has what stood for the functions; in between it has what they are."""
    helper = types.ModuleType("gpumem_late_helper")
    monkeypatch.setitem(sys.modules, helper.__name__, helper)

    def import_it():
        helper.remove, helper.opened, helper.FileIO = os.remove, open, io.FileIO

    def use_it():
        helper.remove("a")
        with helper.opened("a", "w") as file:
            file.write("other")
        with helper.FileIO("b", "w") as file:
            file.write(b"other")

    predict(import_it)
    predict(use_it)
    with helper.opened("new", "w") as file, helper.FileIO("newer", "w"):
        file.write("new")
    assert sorted(os.listdir()) == ["a", "b", "c", "empty", "full", "new", "newer"]
    for name in ("new", "newer"):
        helper.remove(name)


def test_they_are_put_back_after_errors():
    """Also when the code has bound them to something else itself."""

    def code():
        global rename
        rename = None
        remove("a")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        predict(code)
    assert rename is PLAIN["rename"]
