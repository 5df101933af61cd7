"""Files that are open when a prediction begins, and those of logging: nothing of it is in them afterwards."""

from __future__ import annotations

import csv
import logging
import logging.handlers
import os
import pathlib

import pytest

torch = pytest.importorskip("torch")

from jupyter_gpumem.prediction import predict  # noqa: E402

LOGGER = logging.getLogger("gpumem_test_opened")


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path, monkeypatch):
    """A folder to work in, and a logger that is as before at the end."""
    monkeypatch.chdir(tmp_path)
    LOGGER.setLevel(logging.INFO)
    yield
    for handler in LOGGER.handlers[:]:
        LOGGER.removeHandler(handler)
        handler.close()


@pytest.mark.parametrize("mode", ["w", "a", "w+", "r+", "x"])
def test_what_is_written_to_a_file_that_is_open(mode):
    """What it holds back from before is written, what the code writes is not, and it goes on where it was."""
    path = pathlib.Path("log.txt")
    if mode != "x":
        path.write_text("old\n")
    with open("log.txt", mode) as file:
        file.write("before\n")

        def code():
            file.write("placeholder\n")
            file.flush()
            file.seek(0)
            file.write("more\n")
            if "+" in mode:
                file.seek(0)
                assert file.read().startswith("more\n")

        predict(code)
        predict(code)
        file.write("after\n")
    assert path.read_text() == {"a": "old\n", "r+": ""}.get(mode, "") + "before\nafter\n"


def test_tables_and_bytes():
    """As rows of metrics are written, by an object that has the file; and without buffers."""
    with open("a.csv", "w", newline="") as table, open("b.bin", "wb", buffering=0) as raw, open("c.bin", "wb") as kept:
        writer = csv.writer(table)
        writer.writerow(["loss"])
        raw.write(b"1")
        kept.write(b"1")

        def code():
            writer.writerow([0.0])
            print("placeholder", file=table)
            raw.write(b"2")
            kept.write(b"2")
            assert kept.tell() == 2

        predict(code)
        writer.writerow([0.5])
        raw.write(b"3")
        kept.write(b"3")
    assert pathlib.Path("a.csv").read_text().split() == ["loss", "0.5"]
    assert pathlib.Path("b.bin").read_bytes() == pathlib.Path("c.bin").read_bytes() == b"13"


def test_a_file_that_is_read_stands_where_it_stood():
    """Lines that the code reads are read again."""
    pathlib.Path("lines.txt").write_text("1\n2\n3\n")
    with open("lines.txt") as file:
        assert file.readline() == "1\n"

        def code():
            assert file.readline() == "2\n"

        predict(code)
        predict(code)
        assert file.read() == "2\n3\n"


def test_an_array_that_is_mapped_from_a_file():
    """Placeholders that are stored in it would be in the file."""
    numpy = pytest.importorskip("numpy")
    numpy.arange(4.0).tofile("x.bin")
    array = numpy.memmap("x.bin", dtype=numpy.float64)
    before = os.stat("x.bin").st_mtime_ns

    def code():
        array[:] = torch.ones(4, device="cuda").cpu().numpy()
        array.flush()
        assert array.sum() == 0, "a placeholder"

    predict(lambda: array.sum())
    array.flush()
    assert os.stat("x.bin").st_mtime_ns == before
    predict(code)
    array.flush()
    assert numpy.fromfile("x.bin").tolist() == [0, 1, 2, 3]


def test_a_file_that_is_closed_is_named():
    """Closing cannot be undone; its content is as before all the same."""
    file = open("log.txt", "w")  # noqa: SIM115
    file.write("before")

    def code():
        file.write("placeholder")
        file.close()

    assert predict(code).not_undone == ("the file 'log.txt', which was open, was closed",)
    assert pathlib.Path("log.txt").read_text() == "before"


def test_an_error_leaves_them_as_they_were_too():
    """No descriptor is left either."""
    with open("log.txt", "w") as file:

        def code():
            file.write("placeholder")
            raise KeyboardInterrupt

        count = len(os.listdir("/proc/self/fd"))
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                predict(code)
        assert len(os.listdir("/proc/self/fd")) == count
    assert pathlib.Path("log.txt").read_text() == ""


def test_what_is_logged():
    """To a file that is open, to one that is opened with the first message, and where files are rotated."""
    rotating = logging.handlers.RotatingFileHandler("c.log", maxBytes=40, backupCount=1)
    for handler in (logging.FileHandler("a.log"), logging.FileHandler("b.log", mode="w", delay=True), rotating):
        LOGGER.addHandler(handler)
    pathlib.Path("b.log").write_text("old\n")

    def code():
        for _ in range(3):
            LOGGER.info("placeholder, which is long")
        assert pathlib.Path("b.log").read_text().count("placeholder") == 3
        assert pathlib.Path("c.log.1").exists()

    def content():
        return {str(path): path.read_text() for path in pathlib.Path().iterdir()}

    for _ in range(2):
        predict(code)
        assert content() == {"a.log": "", "b.log": "old\n", "c.log": ""}
    LOGGER.info("real")
    assert content() == {"a.log": "real\n", "b.log": "real\n", "c.log": "real\n"}
