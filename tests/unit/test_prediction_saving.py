"""What a prediction saves it can load again, and afterwards there is no file, no folder and no link of it."""

from __future__ import annotations

import contextlib
import glob
import io
import os
import pathlib
import pickle
import shutil
import sqlite3
import tempfile

import pytest

torch = pytest.importorskip("torch")
numpy = pytest.importorskip("numpy")

from jupyter_gpumem.prediction import predict  # noqa: E402

GIB = 2**30


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A folder to work in, in which there are files of the user's."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kept.txt").write_text("kept")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.bin").write_bytes(b"a")
    before = _content(tmp_path)
    yield tmp_path
    assert _content(tmp_path) == before


def _content(folder):
    return {
        str(path): os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


def test_a_checkpoint_is_saved_and_loaded(folder):
    """Its tensors come back to where they were, with their shapes; those of the host with their values."""

    def code():
        model = torch.nn.Linear(8, 4).cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        model(torch.ones(2, 8, device="cuda")).sum().backward()
        optimizer.step()
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}, "x.pt")
        found = torch.load("x.pt")
        assert found["epoch"] == 3
        assert found["model"]["weight"].is_cuda
        assert found["optimizer"]["state"][0]["step"].item() == 1
        model.load_state_dict(found["model"])
        optimizer.load_state_dict(found["optimizer"])
        assert torch.load(pathlib.Path("x.pt"), map_location="cpu")["model"]["weight"].shape == (4, 8)
        assert torch.load("x.pt", mmap=True, map_location="cpu")["model"]["bias"].shape == (4,)
        assert not model.load_state_dict(torch.load("x.pt", weights_only=True)["model"]).missing_keys

    need = predict(code)
    assert need.unsaved == ("x.pt",)
    assert not any("host memory" in text for text in need.placeholders)


def test_what_is_loaded_takes_memory():
    """A checkpoint is loaded to the device it was saved from, and takes there what it took."""

    def code():
        torch.save(torch.empty(GIB, dtype=torch.uint8, device="cuda"), "x.pt")
        first, second = torch.load("x.pt"), torch.load("x.pt", map_location="cuda")
        assert os.stat("x.pt").st_blocks * 512 < GIB // 100, "what has no values takes no room on the disk"
        return first, second

    assert predict(code).devices[0].peak_allocated == 2 * GIB


def test_what_is_saved_into_memory_or_an_open_file_is_loaded():
    """Buffers and files are given to `torch.save` as well."""

    def code():
        buffer, tensor = io.BytesIO(), torch.ones(5, device="cuda")
        torch.save(tensor, buffer)
        buffer.seek(0)
        assert torch.load(buffer).shape == (5,)
        with open("x.pt", "wb") as file:
            torch.save(tensor, file)
        with open("x.pt", "rb") as file:
            assert torch.load(file).is_cuda
        torch.save({"a": torch.arange(3)}, "old.pt", _use_new_zipfile_serialization=False)
        assert torch.load("old.pt")["a"].tolist() == [0, 1, 2]

    predict(code)


def test_saving_where_there_is_no_folder_is_an_error():
    """As outside of a prediction."""
    with pytest.raises(RuntimeError, match="Parent directory none does not exist"):
        predict(torch.save, {}, "none/x.pt")
    with pytest.raises(FileNotFoundError):
        predict(torch.load, "none.pt")


def test_other_ways_to_write_and_read():
    """NumPy, paths, `io`, descriptors and compressed files."""

    def code():
        numpy.save("x.npy", numpy.arange(3))
        assert numpy.load("x.npy").tolist() == [0, 1, 2]
        numpy.savez("x.npz", a=numpy.ones(2))
        assert numpy.load("x.npz")["a"].tolist() == [1, 1]
        numpy.arange(3).tofile("x.raw")
        assert numpy.fromfile("x.raw", dtype=numpy.int64).tolist() == [0, 1, 2]
        mapped = numpy.memmap("x.map", dtype=numpy.uint8, mode="w+", shape=4)
        mapped[:] = 7
        mapped.flush()
        assert pathlib.Path("x.map").read_bytes() == b"\7" * 4
        pathlib.Path("kept.txt").write_text("other")
        with io.open("kept.txt") as file:  # noqa: UP020
            assert file.read() == "other"
        with io.FileIO("kept.txt", "a") as file:
            file.write(b"more")
        with open("kept.txt", "rb", buffering=0) as file:
            assert isinstance(file, io.FileIO)
            assert file.read() == b"othermore"
        assert os.path.getsize("kept.txt") == 9
        shutil.make_archive("archive", "gztar", "data")
        shutil.unpack_archive("archive.tar.gz", "unpacked")
        assert pathlib.Path("unpacked/a.bin").read_bytes() == b"a"
        assert os.access("archive.tar.gz", os.R_OK)
        assert not os.access("none", os.R_OK)
        pathlib.Path("touched").touch()
        assert os.path.exists("touched")

    predict(code)


def test_databases():
    """An existing one is copied first, so that the rows of real runs can be read."""
    with contextlib.closing(sqlite3.connect("runs.db")) as runs:
        runs.execute("create table runs (loss)")
        runs.commit()

    def code():
        for name in ("runs.db", pathlib.Path("new.db"), ":memory:"):
            with contextlib.closing(sqlite3.connect(name)) as runs:
                runs.execute("create table if not exists runs (loss)")
                runs.execute("insert into runs values (1)")
                runs.commit()
                assert runs.execute("select * from runs").fetchall() == [(1,)]
        with pytest.raises(sqlite3.OperationalError, match="unable to open database file"):
            sqlite3.connect("none/runs.db")

    for _ in range(2):
        predict(code)
    with contextlib.closing(sqlite3.connect("runs.db")) as runs:
        assert runs.execute("select * from runs").fetchall() == []
    os.remove("runs.db")


def test_functions_can_be_handed_to_other_processes():
    """They are pickled by their names."""

    def code():
        for function in (os.remove, open, torch.save, sqlite3.connect):
            assert pickle.loads(pickle.dumps(function)) is function

    predict(code)


def test_what_other_packages_of_pytorch_write():
    """They write archives with PyTorch's own writer."""

    def code():
        writer = torch._C.PyTorchFileWriter("archive")
        writer.write_record("record", b"abc", 3)
        writer.write_end_of_file()
        assert torch._C.PyTorchFileReader("archive").get_record("record") == b"abc"

    predict(code)


def test_folders_that_are_made_do_not_stay(folder):
    """They are there meanwhile, can be renamed with what is in them, and are made again in the next run."""

    def code(size=1):
        os.mkdir(path="a", mode=0o700)
        os.makedirs(name="b/c/d", exist_ok=True)
        os.makedirs("b", exist_ok=True)
        pathlib.Path("e/f").mkdir(parents=True)
        with pytest.raises(FileExistsError):
            os.mkdir("a")
        torch.save(torch.ones(size, device="cuda"), "b/c/x.pt")
        os.rename("b", "step-1")
        assert torch.load("step-1/c/x.pt").shape == (size,)
        assert not os.path.exists("b")
        assert sorted(os.listdir("step-1/c")) == ["d", "x.pt"]
        shutil.rmtree("e")
        shutil.copytree("data", "copy")
        assert os.listdir("copy") == ["a.bin"]
        with tempfile.TemporaryDirectory(dir=".") as made:
            pathlib.Path(made, "x").write_text("x")

    need = predict(code, 1, batch="size", gpu="1GiB", runs=3)
    assert need.not_undone == ()
    assert need.unsaved == ("step-1/c/x.pt",) or need.unsaved == (str(folder / "step-1/c/x.pt"),)


def test_a_folder_that_is_made_and_worked_in():
    """The folder is gone while the one before is looked for."""

    def code():
        os.makedirs("a/b")
        os.chdir("a/b")
        torch.save(1, "x.pt")
        assert os.listdir() == ["x.pt"]

    before = os.getcwd()
    predict(code)
    assert os.getcwd() == before


def test_a_folder_into_which_others_have_written_stays(folder):
    """What did not go through Python is not removed, and the result names the folder."""

    def code():
        os.mkdir("theirs")
        os.system("echo precious > theirs/file")  # noqa: S605

    [note] = predict(code).not_undone
    assert "theirs' stays, because it cannot be removed: Directory not empty" in note
    assert (folder / "theirs" / "file").read_text() == "precious\n"
    shutil.rmtree(folder / "theirs")


def test_links_do_not_stay():
    """The latest checkpoint is often a link that is made anew."""

    def code():
        for epoch in range(2):
            torch.save(epoch, f"{epoch}.pt")
            if os.path.islink("latest.pt"):
                os.remove("latest.pt")
            os.symlink(f"{epoch}.pt", "latest.pt")
            assert torch.load("latest.pt") == epoch
            assert os.readlink("latest.pt") == f"{epoch}.pt"
            assert os.path.realpath("latest.pt") == os.path.abspath(f"{epoch}.pt")
        with pytest.raises(FileExistsError):
            os.symlink("0.pt", "latest.pt")
        pathlib.Path("linked").symlink_to("data", target_is_directory=True)
        assert pathlib.Path("linked/a.bin").read_bytes() == b"a"
        pathlib.Path("linked/a.bin").write_bytes(b"b")
        assert pathlib.Path("data/a.bin").read_bytes() == b"b"
        os.unlink("linked")
        os.link("kept.txt", "hard.txt")
        assert pathlib.Path("hard.txt").read_text() == "kept"
        os.symlink("loop", "loop")
        with pytest.raises(OSError, match="symbolic links"):
            os.stat("loop")

    predict(code)


def test_what_looks_for_files_finds_those_that_there_would_be():
    """Old checkpoints are often looked for with a pattern, and removed."""

    def code():
        for number in range(3):
            pathlib.Path(f"{number}.ckpt").write_text(str(number))
        os.remove("kept.txt")
        assert sorted(glob.glob("*.ckpt")) == ["0.ckpt", "1.ckpt", "2.ckpt"]
        for file in sorted(pathlib.Path().glob("*.ckpt"))[:-1]:
            file.unlink()
        assert sorted(name.name for name in pathlib.Path().iterdir()) == ["2.ckpt", "data"]
        assert [(sorted(folders), sorted(files)) for _, folders, files in os.walk(".")] == [
            (["data"], ["2.ckpt"]),
            ([], ["a.bin"]),
        ]
        with os.scandir(b".") as found:
            entries = {entry.name: entry for entry in found}
        assert set(entries) == {b"2.ckpt", b"data"}
        assert entries[b"2.ckpt"].is_file()
        assert not entries[b"2.ckpt"].is_dir()
        assert entries[b"2.ckpt"].stat().st_size == 1
        with pytest.raises(FileNotFoundError):
            os.remove("kept.txt")

    predict(code)


def test_a_file_that_is_replaced_in_one_step_is_as_before():
    """A temporary file beside it, which is made for real, takes its place only meanwhile."""

    def code():
        with tempfile.TemporaryFile(dir="data") as file, tempfile.SpooledTemporaryFile(1, dir="data") as spooled:
            file.write(b"x")
            spooled.write(b"xx")
        handle, name = tempfile.mkstemp(dir=".")
        with open(handle, "w") as file:
            file.write("new")
        os.replace(name, "kept.txt")
        assert not os.path.exists(name)
        assert pathlib.Path("kept.txt").read_text() == "new"
        with tempfile.NamedTemporaryFile("w", dir=".", delete=False) as file:
            file.write("newer")
        assert os.path.isdir(".")
        os.rename(file.name, "kept.txt")
        assert pathlib.Path("kept.txt").read_text() == "newer"
        with open("kept.txt", "a") as file:
            file.write(" still")
        assert pathlib.Path("kept.txt").read_text() == "newer still"

    predict(code)


def test_a_folder_for_files_without_names_stays(folder):
    """It is what the system is asked to open for such a file."""
    (folder / "empty").mkdir()

    def code():
        with tempfile.TemporaryFile(dir="empty") as file:
            file.write(b"x")

    assert predict(code).not_undone == ()
    (folder / "empty").rmdir()


def test_a_failing_prediction_leaves_no_file_either():
    """Whatever ends it."""

    def code():
        os.mkdir("made")
        torch.save(1, "made/x.pt")
        os.symlink("made", "link")
        os.remove("kept.txt")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        predict(code)
