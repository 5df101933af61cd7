"""`%gpumem_predict` and `%%gpumem_predict` in a shell: what they say, refuse, complete, and leave as it was."""

from __future__ import annotations

import re

import pytest

from jupyter_gpumem.virtual import session

torch = pytest.importorskip("torch")

GiB = 2**30
HINT = "; %gpumem_predict --help lists what there is"

REFUSED = {
    "%gpumem_predict": "there is no code: write %gpumem_predict STATEMENT, or %%gpumem_predict above a cell",
    "%%gpumem_predict x = 1\npass": (
        "the code of a cell begins on the second line, got 'x = 1' on the first; for one statement write "
        "%gpumem_predict with one percent sign"
    ),
    "%%gpumem_predict -o\npass": "a cell cannot return the result (-o); store it in a variable with -v NAME",
    "%%gpumem_predict --gpu A100\npass": "'A100' comes in more than one size; write A100-40GB or A100-80GB",
    "%%gpumem_predict --batch size\npass": "there is no variable size; --batch names one that holds the batch size",
    "%%gpumem_predict --batch text\npass": "the batch variable text must be a whole number of at least 1, got 'abc'",
    "%%gpumem_predict --batch n\nn = 2 * 3": (
        "the code computes n itself ('n = 2 * 3'), so that no other value can be tried; set it to a number, or in a "
        "cell before"
    ),
    "%%gpumem_predict\nawait x": "code inside a magic cannot await; put what awaits into another cell",
    "%%gpumem_predict\nx = = 1": "not Python: invalid syntax ('x = = 1')",
    "%%gpumem_predict --runs 0\npass": "argument --runs: not a number of at least 1: '0'" + HINT,
}


@pytest.fixture
def cells(cells):
    """The cells, with PyTorch imported; no prediction leaves a virtual GPU."""
    cells("import torch\ntext = 'abc'")
    yield cells
    session.stop()


@pytest.mark.parametrize("code", REFUSED)
def test_what_is_refused_is_one_line(cells, code):
    """What cannot be is one `UsageError`, and nothing has run."""
    outcome = cells(code)
    assert type(outcome.error).__name__ == "UsageError"
    assert outcome.stderr == f"UsageError: %gpumem_predict: {REFUSED[code]}\n"
    assert outcome.displays == []
    assert "x" not in cells


def test_a_cell(cells):
    """The report says what, where and on which cards; the namespace and the output are as before."""
    cells("sizes = [4]; x = 'mine'")
    outcome = cells(
        "%%gpumem_predict -v need\n"
        "x = torch.zeros(2 * 2**30, dtype=torch.uint8, device='cuda')\n"
        "sizes.append(x.sum().item())\n"
        "print('printed')\n"
        "large = torch.empty(30 * 2**30, dtype=torch.uint8, device='cuda')\n"
        "large"
    )
    assert (outcome.error, outcome.value, outcome.stdout) == (None, None, "")
    [text] = outcome.texts
    lines = text.splitlines()
    assert lines[0].startswith("cuda:0 · prediction as on a virtual A100-80GB · ")
    assert "  peak allocated  32.00 GiB" in lines
    assert "  The peak is at line 5: large = torch.empty(30 * 2**30, dtype=torch.uint8, device='cuda')" in lines
    assert any(line.split()[0] == "T4" and line.endswith("no, line 5") for line in lines if line)
    assert any(line.split()[0] == "H200" and line.endswith("yes") for line in lines if line)
    assert "  Placeholder: line 3: a tensor has no value on a virtual GPU; it was given 0." in lines
    assert "text/html" in outcome.displays[0]
    assert (cells["x"], cells["sizes"], "large" in cells) == ("mine", [4], False)
    assert cells["need"]["t4"].fits is False
    assert cells["need"].devices[0].peak_allocated == 32 * GiB
    assert session.active() is None


def test_a_statement(cells):
    """One statement, its result returned."""
    outcome = cells("pass\nr = %gpumem_predict -o --gpu T4 torch.empty(2**30, dtype=torch.uint8, device='cuda')")
    assert outcome.displays == []
    assert (cells["r"].devices[0].peak_allocated, cells["r"].devices[0].line) == (GiB, 2)
    assert [fit.gpu for fit in cells["r"].fits] == ["T4"]
    assert cells("%gpumem_predict -q y = torch.ones(3, device='cuda')").displays == []
    assert "y" not in cells


def test_local_names_of_a_function(cells):
    """Inside a function the statement sees its names."""
    cells(
        "def inside():\n    size = 2**20\n    get_ipython().run_line_magic('gpumem_predict', "
        "'-v r torch.empty(size, dtype=torch.uint8, device=\"cuda\")')"
    )
    assert cells("n = 3\n%gpumem_predict -v r torch.empty(n * 2**20, device='cuda')").error is None
    assert cells["r"].devices[0].peak_allocated == 12 * 2**20


def test_functions_of_other_cells_see_the_cells_names(cells):
    """A function defined before sees what the predicted cell binds."""
    cells("def use():\n    return torch.empty(size, dtype=torch.uint8, device='cuda')")
    cells("%%gpumem_predict -q -v r\nsize = 5 * 2**20\nuse()")
    assert cells["r"].devices[0].peak_allocated == 5 * 2**20
    assert cells["r"].devices[0].line == 3
    assert "size" not in cells


def test_an_error_keeps_its_traceback(cells):
    """It is the user's own, with the line in the cell; what was printed before it is shown."""
    outcome = cells("%%gpumem_predict\nprint('before')\nx = torch.ones(2, device='cuda')\nx @ torch.ones(3, 2)")
    assert isinstance(outcome.error, RuntimeError)
    shown = re.sub(r"\x1b\[[\d;]*m", "", outcome.stdout)
    assert shown.startswith("before\n")
    assert "----> 4 x @ torch.ones(3, 2)" in shown
    assert "jupyter_gpumem" not in shown
    assert outcome.displays == []
    assert session.active() is None
    assert "x" not in cells


def test_files_are_not_written(cells, tmp_path):
    """Also through the `open` of the shell."""
    (tmp_path / "log").write_text("mine")
    outcome = cells(
        f"path = {str(tmp_path / 'log')!r}\n%gpumem_predict -v r open(path, 'w').write('placeholder')\n"
        "%gpumem_predict -q -v s torch.save([1], path)\nopen(path).read()"
    )
    assert (outcome.error, outcome.value) == (None, "mine")
    assert cells["s"].unsaved == (str(tmp_path / "log"),)


def test_an_interrupt_ends_it(cells):
    """Ctrl-C in the middle leaves everything as before."""
    cells("kept = []")
    outcome = cells("%%gpumem_predict\nkept.append(torch.ones(2, device='cuda'))\nraise KeyboardInterrupt")
    assert isinstance(outcome.error, KeyboardInterrupt)
    assert cells["kept"] == []
    assert session.active() is None


@pytest.mark.parametrize("where", ["before", "inside"])
def test_the_largest_batch(cells, where):
    """The variable may be the notebook's, or set by the cell."""
    cells("batch = 4" if where == "before" else "pass")
    own = "" if where == "before" else "batch = 4\n"
    outcome = cells(
        f"%%gpumem_predict --gpu 4GiB --batch batch -v r\n{own}"
        "x = torch.empty(batch * 2**20, dtype=torch.uint8, device='cuda')"
    )
    assert outcome.error is None
    fit = cells["r"].fits[0]
    assert (fit.largest_batch, fit.largest_is_exact) == (fit.usable // 2**20 // 2 * 2, True)
    assert cells["r"].batch.value == 4
    assert outcome.texts[0].count("largest batch") == 1
    assert f"{fit.largest_batch:,}\n" in outcome.texts[0]
    assert ("batch" in cells) == (where == "before")
    assert "_gpumem_batch" not in cells
    if where == "before":
        assert cells["batch"] == 4


def test_beside_the_sessions_virtual_gpu(cells):
    """It runs as on the session's card, whose tensors are the starting state."""
    cells("%gpumem_virtual on --gpu T4\nkeep = torch.zeros(2**30, dtype=torch.uint8, device='cuda')")
    [text] = cells("%%gpumem_predict\nmore = keep + 1").texts
    assert text.startswith("cuda:0 · prediction as on a virtual T4 · ")
    assert "  1.00 GiB of it was there before, and counts to the end.\n" in text
    assert cells("torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()").value == (GiB, GiB)
    assert session.active().cards[0].name == "T4"


def test_what_the_cell_switches_on_is_off_afterwards(cells):
    """Our own settings are put back as all others are."""
    before = cells("%gpumem_auto").texts
    assert cells("%%gpumem_predict -q\n%gpumem_auto on --free-errors on").error is None
    assert cells("%gpumem_auto").texts == before


def test_under_another_magic(cells):
    """`%%time` above it works, and so does a cell magic below that is none of ours."""
    outcome = cells("%%time\n%%gpumem_predict -q -v r\nx = torch.ones(2**18, device='cuda')")
    assert outcome.error is None
    assert cells["r"].devices[0].line == 3


def test_without_pytorch(cells, monkeypatch):
    """It says what is missing."""
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    outcome = cells("%%gpumem_predict\npass")
    assert outcome.stderr == (
        "UsageError: %gpumem_predict: a prediction needs PyTorch, which is not installed here; install torch and try "
        "again\n"
    )


def test_help_and_completion(cells):
    """The help names what is real, and Tab lists cards."""
    text = cells("%gpumem_predict --help").stdout
    assert "usage: %gpumem_predict [options] STATEMENT\n       %%gpumem_predict [options]" in text
    assert {"A100-40GB", "A100-80GB"} <= set(cells.complete("%%gpumem_predict --gpu A100"))
    assert "--batch" in cells.complete("%%gpumem_predict --ba")


def test_a_decision_in_a_cell(cells):
    """Where a placeholder decides, the heading says so, and the first sentence at which line of the cell."""
    outcome = cells(
        "%%gpumem_predict -v need --gpu T4\n"
        "for step in range(3):\n"
        "    loss = torch.ones(4, device='cuda').mean()\n"
        "    if loss.item() < 1e-4: break\n"
        "    kept = torch.empty(2**30, device='cuda')"
    )
    assert outcome.error is None
    assert cells["need"].decisions == ("line 4: a decision depends on a value that does not exist, taken to be 0.0",)
    text = str(cells["need"])
    assert "Fits, if decisions fall as assumed" in text
    assert "another may need much more; line 4: a decision" in text


@pytest.mark.parametrize(
    "magic", ["%%time", "%%capture", "%%timeit -n1 -r1", "%%gpumem", "%%time\n\n", "%%gpumem\n%%time"]
)
def test_lines_under_another_magic(cells, magic):
    """They are counted in the cell, whatever the other magic calls the code that it runs."""
    outcome = cells(
        f"%%gpumem_predict -v need --gpu T4\n{magic}\n"
        "x = 1\n"
        "value = torch.ones(2, device='cuda').sum().item()\n"
        "large = torch.empty(2**40, device='cuda')"
    )
    assert outcome.error is None
    need, line = cells["need"], 5 + magic.count("\n")
    assert (need.devices[0].line, need.devices[0].text) == (line, "large = torch.empty(2**40, device='cuda')")
    assert need["T4"].line == line
    assert need.placeholders == (f"line {line - 1}: a tensor has no value on a virtual GPU; it was given 0.0",)
