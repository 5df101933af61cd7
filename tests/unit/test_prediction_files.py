"""Files that a prediction writes, renames and removes: all is as before afterwards."""

from __future__ import annotations

import importlib
import os
import shutil
import sys
import tempfile

import pytest

torch = pytest.importorskip("torch")

from jupyter_gpumem.errors import UnavailableError  # noqa: E402
from jupyter_gpumem.prediction import predict  # noqa: E402


def test_files_are_as_before(tmp_path):
    """A checkpoint is not replaced by placeholders; what is written can be read again meanwhile, and is gone then."""
    checkpoint, log, fresh = tmp_path / "model.pt", tmp_path / "log.txt", tmp_path / "fresh.txt"
    torch.save({"a": 1}, checkpoint)
    log.write_text("one\n")

    class Seen(Exception):
        pass

    def code(check):
        torch.save(torch.nn.Linear(8, 8).cuda().state_dict(), checkpoint)
        with open(log, "a") as file:
            file.write("two\n")
        fresh.write_text("new")
        if check:
            raise Seen(log.read_text(), fresh.read_text(), torch.load(checkpoint)["weight"].is_cuda)

    assert predict(code, False).unsaved == (str(checkpoint),)
    with pytest.raises(Seen) as raised:
        predict(code, True)
    assert raised.value.args == ("one\ntwo\n", "new", True)
    assert (log.read_text(), fresh.exists(), torch.load(checkpoint)) == ("one\n", False, {"a": 1})
    with pytest.raises(FileNotFoundError):
        predict((tmp_path / "none" / "x").write_text, "x")


def test_what_a_module_keeps_of_a_prediction_writes_for_real_afterwards(tmp_path, monkeypatch):
    """A helper that is imported in a prediction keeps the `save` and `open` it found there: they lose nothing later."""
    (tmp_path / "gpumem_helper.py").write_text("from io import open as write\nfrom torch import save\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)

    def code():
        with open("log.txt", "w") as file:
            file.write("placeholder")
        importlib.import_module("gpumem_helper")

    predict(code)
    helper = importlib.import_module("gpumem_helper")
    monkeypatch.delitem(sys.modules, "gpumem_helper")
    with helper.write("log.txt", "w") as file:
        file.write("real")
    helper.save({"a": 1}, "model.pt")
    assert (tmp_path / "log.txt").read_text() == "real"
    assert torch.load("model.pt") == {"a": 1}


def test_what_numpy_writes_as_text_is_as_before(tmp_path):
    """It opens files with a function of its own, which it took when it was imported."""
    numpy = pytest.importorskip("numpy")
    file = tmp_path / "scores.txt"
    numpy.savetxt(file, [1.0])

    def code():
        numpy.savetxt(file, [2.0])
        assert numpy.loadtxt(file) == 2

    predict(code)
    assert numpy.loadtxt(file) == 1
    numpy.savetxt(file, [3.0])
    assert numpy.loadtxt(file) == 3


def _rotate(folder):
    """Do what notebooks do with checkpoints: a fresh folder, a replacement in one step, the oldest removed."""
    shutil.copy(folder / "a.txt", folder / "old" / "2.txt")
    shutil.rmtree(folder / "old")
    assert not (folder / "old").exists()
    os.makedirs(folder / "old")
    assert os.listdir(folder / "old") == []
    (folder / "a.txt").unlink()
    assert not (folder / "a.txt").exists()
    with pytest.raises(FileNotFoundError):
        (folder / "a.txt").read_text()
    (folder / "tmp.txt").write_text("new")
    os.replace(folder / "tmp.txt", folder / "b.txt")
    assert (folder / "b.txt").read_text() == "new"
    os.rename(folder / "c.txt", folder / "d.txt")
    with open(folder / "d.txt", "a") as file:
        file.write("more")
    assert (folder / "d.txt").read_text() == "cmore"
    assert sorted(os.listdir(folder)) == ["b.txt", "d.txt", "e.txt", "old"]
    os.remove(folder / "d.txt")
    torch.save({}, folder / "tmp.pt")
    os.replace(folder / "tmp.pt", folder / "best.pt")
    os.close(os.open(folder / "e.txt", os.O_WRONLY | os.O_TRUNC))
    assert (folder / "e.txt").stat().st_size == 0


def test_files_that_are_removed_and_renamed_are_there_afterwards(tmp_path):
    """A cell that clears its old checkpoints is predicted without their loss, and finds them gone meanwhile."""
    (tmp_path / "old").mkdir()
    files = {"a.txt": "a", "b.txt": "b", "c.txt": "c", "e.txt": "e", "old/1.txt": "1"}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    for _ in range(2):
        assert str(tmp_path / "best.pt") in map(str, predict(_rotate, tmp_path).unsaved)
        assert {str(path.relative_to(tmp_path)): path.read_text() for path in tmp_path.rglob("*.txt")} == files


def test_what_the_code_made_itself_is_really_removed(tmp_path):
    """Temporary files and folders are made for real, so that libraries can use them, and do not stay."""

    def code():
        with tempfile.TemporaryDirectory(dir=tmp_path) as folder:
            handle, name = tempfile.mkstemp(dir=folder)
            os.close(handle)
            shutil.copy(name, name + ".copy")
        handle, name = tempfile.mkstemp(dir=tmp_path)
        os.close(handle)
        os.remove(name)
        with tempfile.NamedTemporaryFile(dir=tmp_path) as file:
            file.write(b"x")

    predict(code)
    assert list(tmp_path.iterdir()) == []


def test_errors_of_files_are_those_of_the_real_place(tmp_path):
    """What cannot be removed or renamed outside of a prediction cannot be inside one."""
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "a").write_text("a")
    with pytest.raises(OSError, match="not empty"):
        predict(lambda *paths: os.rmdir(*paths), tmp_path / "full")
    with pytest.raises(IsADirectoryError):
        predict(lambda *paths: os.remove(*paths), tmp_path / "full")
    with pytest.raises(FileNotFoundError, match="none"):
        predict(lambda *paths: os.remove(*paths), tmp_path / "none")
    with pytest.raises(FileNotFoundError, match="none"):
        predict(lambda *paths: os.rename(*paths), tmp_path / "none", tmp_path / "other")
    with pytest.raises(FileNotFoundError, match="none"):
        predict(open, tmp_path / "none", "r+")
    with pytest.raises(UnavailableError, match="cannot rename the folder"):
        predict(lambda *paths: os.rename(*paths), tmp_path / "full", tmp_path / "other")
