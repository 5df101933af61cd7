"""Errors that IPython shows itself and does not let through, as those of a script: explained all the same."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

SENTENCE = "One request of 8.79 GiB on a card of 8.00 GiB"


@pytest.fixture
def script(tmp_path, monkeypatch):
    """The folder of a script `oom.py` that runs out of memory, `wrong.py` that fails, and `fine.py` that does not."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    run_out = "import torch\nheld = torch.empty(64 * 2**20, device='cuda')\n"
    (tmp_path / "oom.py").write_text(run_out + "torch.empty(9000 * 2**20, dtype=torch.uint8, device='cuda')\n")
    (tmp_path / "caught.py").write_text("quietly()\n")
    (tmp_path / "wrong.py").write_text("raise ValueError('of the script')\n")
    (tmp_path / "most.py").write_text("most()\n")
    (tmp_path / "fine.py").write_text("pass\n")


RUNS = {
    "run": "%run oom.py",
    "run, and go on": "%run oom.py\nafterwards = 1",
    "run -i": "%run -i oom.py",
    "run -t": "%run -t oom.py",
    "run -m": "%run -m oom",
    "run -p": "%run -p oom.py",
    "a value that cannot be shown": "class Shown:\n    def __repr__(self): return fail()\nShown()",
    "time": "%time fail()",
    "time a cell": "%%time\nfail()",
    "timeit": "%timeit -n 1 -r 1 fail()",
    "prun": "%prun fail()",
    "autocall": "/fail",
}


@pytest.mark.filterwarnings("ignore:Unknown failure executing module")  # IPython's, for `%run -m`
@pytest.mark.usefixtures("script")
@pytest.mark.parametrize("code", RUNS.values(), ids=RUNS)
def test_it_is_explained(gpu, code):
    """Once, below the traceback, from the state in which it happened; and it is the last one, with its cell."""
    outcome = gpu(code)
    (text,) = [text for text in outcome.texts if text.startswith("Out of memory")]
    assert SENTENCE in text
    cell = gpu.shell.execution_count - 1
    last = gpu("%gpumem_oom").texts[0]
    assert SENTENCE in last
    assert "It ended no cell" not in last
    assert gpu("%gpumem -o").value.last_oom.cell == cell
    assert gpu("1 + 1").texts == []


@pytest.mark.usefixtures("script")
@pytest.mark.parametrize("head", ["%%gpumem -v cost\n", "%%gpumem -r 2 -v cost\n", "%gpumem -v cost "])
def test_a_measurement_around_it_says_why(gpu, head):
    """The report says what stopped the code, and the stored result why; with repeats it is not run again."""
    outcome = gpu(f"{head}%run oom.py")
    assert "-r" in head or "stopped by OutOfMemoryError" in outcome.texts[0]
    cost = gpu["cost"].runs[-1] if "-r" in head else gpu["cost"]
    assert (cost.error, cost.oom.verdict) == ("OutOfMemoryError", "absurd request")
    assert len(getattr(gpu["cost"], "runs", [cost])) == 1
    outcome = gpu(f"{head}%run wrong.py")
    assert "-r" in head or "stopped by ValueError" in outcome.texts[0]


@pytest.mark.usefixtures("script")
def test_an_earlier_error_is_not_that_of_the_code(gpu):
    """Neither one of an earlier cell, nor one that was shown before a line magic, nor one that a cell inside showed."""
    gpu("%run oom.py")
    gpu("%%gpumem -v cost\n%run fine.py")
    assert (gpu["cost"].error, gpu["cost"].oom) == (None, None)
    outcome = gpu("%run oom.py\n%gpumem -v cost 1 + 1\nget_ipython().run_cell('1 + 1')")
    assert (gpu["cost"].error, gpu["cost"].oom) == (None, None)
    assert sum("Out of memory" in text for text in outcome.texts) == 1
    outcome = gpu("get_ipython().run_cell('%run oom.py')")
    assert sum("Out of memory" in text for text in outcome.texts) == 1
    outcome = gpu("%gpumem_free -q\n%gpumem -v cost 1 + 1;")
    assert (gpu["cost"].error, outcome.stdout, outcome.stderr) == (None, "", "")


@pytest.mark.usefixtures("script")
def test_what_nobody_explained_is_not_called_handled(gpu):
    """A cell that fails otherwise after the script is that error's; whether the script handled it is unknown."""
    gpu("%run oom.py\nraise KeyError('later')")
    assert "It ended no cell: it was raised in code that %run ran." in " ".join(gpu("%gpumem_oom").texts[0].split())
    gpu("%run -i caught.py")
    assert "It ended no cell: it was raised in code that %run ran." in " ".join(gpu("%gpumem_oom").texts[0].split())


@pytest.mark.usefixtures("script")
def test_its_frames_are_released_at_once(gpu):
    """`--free-errors on` lets go of the frames of what a script ran out of memory in, too."""
    gpu("%gpumem_auto --free-errors on")
    gpu("def most():\n    kept = torch.empty(4 * 2**30, dtype=torch.uint8, device='cuda')\n    fail()")
    outcome = gpu("%run -i most.py")
    assert "is given back now: 4.06 GiB" in " ".join(outcome.texts[0].split())
    assert torch.cuda.memory_allocated() == 0
