"""`%gpumem_who` and `%gpumem_free` in a shell with a virtual GPU: names, releases, refusals, and what stays."""

from __future__ import annotations

import gc
import io
import sys

import pytest
from IPython.core.error import UsageError

from jupyter_gpumem.holding.ranking import Ranking
from jupyter_gpumem.units import MiB

torch = pytest.importorskip("torch")

TAKE = "import torch\ndef take(mib): return torch.empty(mib * 2**20, dtype=torch.uint8, device='cuda')"
CYCLIC = """
def cyclic():
    big = take(32)
    try:
        raise ValueError
    except ValueError as error:
        own = error
    raise own
"""
FAIL = "def fail():\n    act = take(32)\n    raise ValueError('no')"


@pytest.fixture
def gpu(on_virtual):
    """Cells with the extension and a virtual GPU of 8 GiB; `take(mib)` allocates."""
    return on_virtual("8GiB", TAKE, FAIL)


def allocated():
    return torch.cuda.memory_allocated()


def steps(cells, line="%gpumem_free"):
    """Run `%gpumem_free` and return `{step: bytes}`."""
    record = cells(f"record = {line} -o")
    assert record.error is None, record.stderr
    return {step.step: step.allocated for step in cells["record"].steps}


def test_the_last_error_is_released_in_the_next_cell(gpu):
    """All places that keep the frames let go of them, and the books say whose they were."""
    assert type(gpu("fail()").error) is ValueError
    assert allocated() == 32 * MiB
    text = gpu("%gpumem_who").texts[0]
    assert "the last error (ValueError), function fail, line 3: act" in text
    assert "32.00 MiB" in text
    gpu("fail()")
    assert steps(gpu)["last error"] == 32 * MiB
    assert allocated() == 0


def test_what_an_earlier_error_left_is_not_the_last_ones(gpu):
    """A cell that cannot be compiled has no frames: IPython keeps those that it showed before."""
    gpu("fail()")
    assert type(gpu("x = = 3").error) is SyntaxError
    (line,) = gpu.shell.run_line_magic("gpumem_who", "-o").devices[0].holders
    assert line.name == "an earlier error, function fail, line 3: act"
    assert asked_for(gpu, "act") == line.name
    assert steps(gpu)["last error"] == 32 * MiB


def asked_for(gpu, name):
    """Return what `%gpumem_who NAME` takes a name for."""
    return gpu.shell.run_line_magic("gpumem_who", f"{name} -o").name


@pytest.mark.parametrize("mode", ["Plain", "Context", "Verbose", "Minimal"])
def test_every_traceback_mode(gpu, mode):
    """How tracebacks are shown does not matter."""
    gpu(f"%xmode {mode}")
    gpu("fail()")
    assert steps(gpu, "%gpumem_free --errors") == {"last error": 32 * MiB}
    gpu("%xmode Context")


def test_debug_says_what_became_of_the_error(gpu):
    """`%debug` says it in our words, `%tb` in IPython's, and after the next error both are IPython's again."""
    gpu("fail()")
    gpu("%gpumem_free --errors -q")
    assert "released by gpumem" in gpu("%debug").stderr
    assert "No traceback" in gpu("%tb").stderr
    gpu("1 / 0")
    assert "ZeroDivisionError" in gpu("%tb").stdout
    shell = gpu.shell
    shell.InteractiveTB.debugger = lambda force=False: print("in the debugger")
    assert "in the debugger" in gpu("%debug").stdout
    assert "debugger" not in vars(shell)
    del shell.InteractiveTB.debugger


def test_unloading_gives_debug_back(gpu):
    """Nothing of ours is left in the shell."""
    gpu("fail()")
    gpu("%gpumem_free -q")
    assert "debugger" in vars(gpu.shell)
    gpu("%unload_ext jupyter_gpumem")
    assert "debugger" not in vars(gpu.shell)


def test_an_error_that_a_variable_holds_is_the_users(gpu):
    """An exception that the user keeps stays as it is, with its traceback, and is named."""
    gpu("try:\n    fail()\nexcept ValueError as error:\n    kept = error\nraise kept")
    assert steps(gpu)["last error"] == 0
    assert gpu["kept"].__traceback__ is not None
    assert allocated() == 32 * MiB
    assert "kept" in gpu("%gpumem_who").texts[0]
    gpu("del kept")
    gc.collect()
    assert allocated() == 0


def test_a_cycle_of_frame_and_error_is_released(gpu):
    """A frame that holds the exception it raised goes with it at once."""
    gpu(CYCLIC)
    gpu("cyclic()")
    assert steps(gpu, "%gpumem_free --errors") == {"last error": 32 * MiB}


def test_outputs_that_hold_memory_go_and_others_stay(gpu):
    """Only displayed values on a device are forgotten, in every place."""
    gpu("class Shown:\n    def __init__(self): self.data = take(32)\n    def __repr__(self): return 'shown'")
    gpu("41 + 1")
    gpu("Shown()")
    number = gpu.shell.execution_count - 1
    assert f"Out[{number}]" in gpu("%gpumem_who").texts[0]
    assert steps(gpu)["outputs"] == 32 * MiB
    assert allocated() == 0
    assert 42 in gpu["Out"].values()
    assert number not in gpu["Out"]
    assert f"_{number}" not in gpu
    gpu("6 * 7 + 1")
    assert gpu["_"] == 43


def test_a_name_that_the_user_bound_is_no_output(gpu):
    """`_` as the user's own variable is a variable."""
    gpu("_ = take(32)")
    names = {h.name: h.kind for h in gpu("%gpumem_who -o").value.devices[0].holders}
    assert names == {"_": "variable"}
    steps(gpu)
    assert allocated() == 32 * MiB
    gpu("del _")


def test_variables_are_named_and_never_touched(gpu):
    """What the user holds is listed with its size, and stays."""
    gpu("x = take(32); y = {'part': take(16)}")
    record = gpu("%gpumem_free -o").value
    assert [(h.name, h.allocated) for h in record.kept] == [("x", 32 * MiB), ("y", 16 * MiB)]
    assert "Your own variables hold: x 32.00 MiB, y 16.00 MiB." in str(record)
    assert allocated() == 48 * MiB


def test_a_rehearsal_changes_nothing_and_is_right(gpu):
    """`--dry-run` says beforehand what each step returns."""
    gpu("class Shown:\n    def __init__(self): self.data = take(16)\n    def __repr__(self): return 'shown'")
    gpu("Shown()")
    gpu("fail()")
    before = allocated()
    promised = steps(gpu, "%gpumem_free --dry-run")
    assert allocated() == before == 48 * MiB
    gpu("fail()")
    done = steps(gpu)
    assert promised["outputs"] == done["outputs"] == 16 * MiB
    assert promised["last error"] == done["last error"] == 32 * MiB


def test_a_rehearsal_counts_garbage_as_the_steps_do(gpu):
    """An error's frames are the error's, also when garbage leads to them."""
    gpu("import gc, sys\ngc.collect(); gc.disable()\nclass Loop: pass")
    try:
        gpu("fail()")
        gpu("loop = Loop(); loop.itself, loop.error = loop, sys.last_value; del loop")
        gpu("loop = Loop(); loop.itself, loop.data = loop, take(16); del loop")
        promised = steps(gpu, "%gpumem_free --dry-run")
        assert promised == steps(gpu)
        assert (promised["last error"], promised["cycles"]) == (32 * MiB, 16 * MiB)
    finally:
        gpu("gc.enable()")


def test_nothing_to_let_go_of(gpu):
    """Without any of it the steps return nothing, and nothing fails."""
    assert set(steps(gpu).values()) == {0}


def test_errors_are_released_by_themselves_when_asked(gpu):
    """`%gpumem_auto --free-errors on` does it after every cell that fails, and only then."""
    gpu("fail()")
    assert allocated() == 32 * MiB
    gpu("%gpumem_auto --free-errors on")
    assert allocated() == 32 * MiB
    outcome = gpu("fail()")
    assert type(outcome.error) is ValueError
    assert allocated() == 0
    assert "errors' frames are released" in gpu("%gpumem_auto").texts[0]
    gpu("%gpumem_auto --free-errors off")
    gpu("fail()")
    assert allocated() == 32 * MiB


def test_who_with_a_name(gpu):
    """The chain says who else holds a name's memory, and what deleting it returns."""
    gpu("a = take(32); b = {'again': [a]}")
    assert gpu("%gpumem_who a").texts[0].splitlines() == [
        "a · uint8 tensor of shape (33554432,) · 32.00 MiB on cuda:0",
        "  32.00 MiB of it are also held by b['again'][0].",
        "  Delete a, and nothing is free: the others hold all of it.",
    ]
    gpu("del b")
    assert "Nothing else holds it" in gpu("%gpumem_who a").texts[0]
    gpu("fail()")
    assert "%gpumem_free lets go of it" in gpu("%gpumem_who act").texts[0]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("%gpumem_who nothing", "'nothing' holds no device memory; there is no such variable; %gpumem_who without"),
        ("%gpumem_who take", "'take' holds no device memory; %gpumem_who without a name lists what does"),
        ("%gpumem_who pins[0]", "'pins[0]' holds no device memory; write a name alone: what is nested in it counts"),
        ("%gpumem_who take -d 0", "a name is looked for on all devices; leave out -d"),
        ("%gpumem_who --budget 0", "not a number of at least 1: '0'"),
        ("%gpumem_oom", "there was no out-of-memory error in this session"),
    ],
)
def test_refusals(gpu, line, message):
    """What cannot be answered is one line."""
    outcome = gpu(line)
    assert type(outcome.error).__name__ == "UsageError"
    assert message in outcome.stderr


def test_a_budget_that_is_too_small_is_said(gpu):
    """A search that was cut short says so."""
    gpu("deep = [[[[[[take(1)]]]]]]")
    record = gpu("%gpumem_who --budget 3 -o").value
    assert not record.complete
    assert "The search ended after" in str(record)
    assert record.devices[0].named + record.devices[0].unattributed == record.devices[0].allocated


def test_where_unattributed_memory_was_allocated(gpu):
    """While a recording runs, what nobody shows is named by its cell and line."""
    gpu("%gpumem_record start")
    gpu("def outside():\n    return torch.cuda.caching_allocator_alloc(3 << 20, 0)")
    place = f"In[{gpu.shell.execution_count - 1}], line 2 in outside"
    gpu("address = outside()")
    (shown,) = gpu("%gpumem_who").texts
    gpu("%gpumem_record stop\ntorch.cuda.caching_allocator_delete(address)")
    assert f"Not attributed: 3.00 MiB in 1 allocation made at {place}." in " ".join(shown.split())


def test_reservations_have_names(gpu):
    """Memory that is held aside is nobody's tensor, and has a line with its name; also where its size is cuBLAS's."""
    gpu("kept = take(64)\n%gpumem_reserve 2GiB --hold --name 'a b'\n%gpumem_reserve 32MiB --hold")
    (shown,) = gpu("%gpumem_who").texts
    books = gpu.shell.run_line_magic("gpumem_who", "-o").devices[0]
    assert {(h.kind, h.name, h.allocated, h.alone) for h in books.holders if h.kind == "reservation"} == {
        ("reservation", "reservation a b", 2048 * MiB, 2048 * MiB),
        ("reservation", "reservation reserve-1", 32 * MiB, 32 * MiB),
    }
    assert (books.unattributed, books.workspaces) == (0, 0)
    assert books.named == torch.cuda.memory_allocated()
    assert "reservation a b: %gpumem_reserve --release 'a b' gives it to the cache." in shown
    error = gpu("%gpumem_who 'a b'").error
    assert str(error).endswith("'a b' is memory put aside; %gpumem_reserve --release 'a b' gives it to the cache")
    report = " ".join(gpu("more = take(7000)").texts[-1].split())
    assert "The largest holders: reservation a b 2.00 GiB, kept 64.00 MiB, reservation reserve-1 32.00 MiB." in report
    assert (
        "Let go of reservation a b: %gpumem_reserve --release 'a b' gives it to the cache (2.00 GiB). "
        "Tried out in a model of the allocator: the request succeeds."
    ) in report
    gpu("%gpumem_reserve --release")
    assert not [h for h in gpu.shell.run_line_magic("gpumem_who", "-o").devices[0].holders if h.kind == "reservation"]


@pytest.mark.parametrize("line", ["%gpumem_who nothing", "%gpumem_who", "%gpumem_free"])
def test_a_search_that_fails_holds_nothing(gpu, line, monkeypatch):
    """A refused name, or Ctrl-C, is the session's last error: what the search had found is not kept by it."""
    if line != "%gpumem_who nothing":
        monkeypatch.setattr(Ranking, "__init__", interrupted)
    gpu("kept = take(32)")
    assert isinstance(gpu(line).error, UsageError | KeyboardInterrupt)
    assert sys.last_value is not None
    before = torch.cuda.memory_allocated()
    gpu("del kept")
    assert before - torch.cuda.memory_allocated() == 32 * MiB


def interrupted(ranking, walk, roots):
    """Stop a search between its walk and its ranking, as Ctrl-C does."""
    raise KeyboardInterrupt


def test_a_rehearsal_names_the_outputs_that_would_go(gpu):
    """What was displayed and holds nothing stays: it is not said to go."""
    gpu("'a', 'tuple'")
    gpu("take(32)")
    rehearsed, done = (gpu.shell.run_line_magic("gpumem_free", f"-o --outputs {how}") for how in ("--dry-run", ""))
    assert rehearsed.steps == done.steps
    assert done.steps[0].what == f"Out[{gpu.shell.execution_count - 1}]"
    assert "nothing to let go of in what was asked for" in gpu("%gpumem_free --outputs").texts[0]


def test_what_a_stream_leads_to_is_not_its_users(gpu, monkeypatch):
    """A kernel's stderr leads to all that runs, and a thread or a logger of the user's to it: they hold nothing."""
    monkeypatch.setattr(sys, "stderr", Stream([torch.empty(32 << 20, dtype=torch.uint8, device="cuda")]))
    gpu.shell.user_ns["thread"] = Stream(sys.stderr)
    books = gpu.shell.run_line_magic("gpumem_who", "-o").devices[0]
    assert [holder.kind for holder in books.holders] == ["other"]
    assert books.named == 32 * MiB


class Stream(io.StringIO):
    """A stream that leads somewhere."""

    def __init__(self, session):
        super().__init__()
        self.session = session
