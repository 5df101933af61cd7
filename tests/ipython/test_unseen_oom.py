"""Out-of-memory errors that end no cell: known to `%gpumem_oom` and the status, shown by nobody, keeping nothing."""

from __future__ import annotations

import gc
import json
import re
import time

import pytest

from jupyter_gpumem.oom import observer

torch = pytest.importorskip("torch")

HANDLED = "quietly()"
THREAD = "thread = threading.Thread(target=quietly, name='loader'); thread.start(); thread.join()"
SENTENCE = "One request of 8.79 GiB on a card of 8.00 GiB"


def last(gpu):
    """Return what `%gpumem_oom` says, in words."""
    (text,) = gpu("%gpumem_oom").texts
    return " ".join(text.split())


@pytest.mark.parametrize(
    ("cell", "came"), [(HANDLED, "handled by the code"), (THREAD, "raised in the thread 'loader'")]
)
def test_an_error_that_nobody_showed_is_the_last_one(gpu, cell, came):
    """It is explained from the state in which it happened, when somebody asks: how it came, where, and why."""
    gpu("fail(8800)")  # the one that a cell ended with is older
    began = time.time()
    outcome = gpu(cell)
    assert (outcome.error, outcome.texts) == (None, [])
    ended = time.time()
    text = last(gpu)
    assert f"{SENTENCE}: no setting helps, the tensor itself is the mistake. It ended no cell: it was {came}." in text
    assert re.search(r"It failed in take, line 2 of In\[\d+\]\.", text)
    assert "requested 8.79 GiB" in text
    status = gpu("%gpumem -o").value
    assert f"The last out-of-memory error, {came} at " in " ".join(str(status).split())
    assert "%gpumem_oom shows it whole" in " ".join(str(status).split())
    incident = status.last_oom
    assert (incident.cell, incident.came, incident.explanation.seen) == (None, came, "when it happened")
    assert began <= incident.time <= ended
    assert gpu("%gpumem -o").value.last_oom is incident
    assert json.loads(json.dumps(status.to_dict()))["last_oom"]["came"] == came


def test_nothing_is_shown_below_an_unrelated_error(gpu):
    """A cell that handles it and ends with another error, which it was not raised from, shows only that."""
    outcome = gpu("quietly()\nraise ValueError('of the code')")
    assert type(outcome.error) is ValueError
    assert outcome.texts == []
    assert "handled by the code" in last(gpu)


def test_an_error_that_a_cell_ends_with_is_the_last_one_again(gpu):
    """It replaces one that was handled before, and takes its state with it."""
    gpu("quietly(8800)")
    outcome = gpu("fail()")
    assert SENTENCE in " ".join(outcome.texts[-1].split())
    assert observer.last_state() is None
    assert SENTENCE in last(gpu)
    assert gpu("%gpumem -o").value.last_oom.cell == gpu.shell.execution_count - 3


def test_the_later_of_two_in_one_cell_is_the_last_one(gpu):
    """A cell that ends with an error raised before another one was handled: both are right about what they say."""
    outcome = gpu("try:\n    fail(8800)\nexcept Exception as error:\n    kept = error\nquietly()\nraise kept")
    assert "One request of 8.59 GiB" in outcome.texts[-1]
    assert SENTENCE in last(gpu)


def test_one_that_is_asked_for_while_it_is_handled_is_explained_when_it_ends_the_cell(gpu):
    """The state is still there: what the cell shows is from the moment at which it happened."""
    gpu("run = get_ipython().run_line_magic")
    outcome = gpu("try:\n    fail()\nexcept Exception:\n    run('gpumem_oom', '')\n    raise")
    assert "handled by the code" in outcome.texts[0]
    assert SENTENCE in outcome.texts[1]
    assert "a later one" not in outcome.texts[1]
    assert "It ended no cell" not in last(gpu)


def test_it_keeps_nothing(gpu):
    """Neither frames nor tensors are kept for it, before it was asked for and afterwards; nor after unloading."""
    gc.collect()
    gc.disable()
    try:
        gpu(HANDLED)
        assert torch.cuda.memory_allocated() == 0
        last(gpu)
        assert torch.cuda.memory_allocated() == 0
    finally:
        gc.enable()
    gpu("%unload_ext jupyter_gpumem")
    assert not [item for item in gc.get_objects() if type(item) is observer.OomState]
    gpu("%load_ext jupyter_gpumem")
    assert "there was no out-of-memory error" in gpu("%gpumem_oom").stderr


OURS = {
    "a retry": "sizes = [9000, 64]\ngm.retry_on_oom(lambda: take(sizes.pop(0)))()",
    "an awaited retry": "sizes = [9000, 64]\nasync def step(): take(sizes.pop(0))\nawait gm.retry_on_oom(step)()",
    "the search for a batch size": "gm.find_batch_size(lambda n: take(900 * n).nbytes)",
    "trials that handle it": "gm.find_batch_size(lambda n: (quietly(), take(n).nbytes), maximum=4)",
    "a prediction": "gm.predict(lambda: take(9000), gpu='T4')",
    "memory put aside": "try: gm.reserve('20GiB')\nexcept gm.GpumemError: pass",
}


@pytest.mark.parametrize("cell", OURS.values(), ids=OURS)
@pytest.mark.parametrize("before", ["", "quietly(8800)"])
def test_what_this_package_tries_is_no_error_of_the_users(gpu, cell, before):
    """Attempts that are made again and trials are not reported, and what was the last before is the last again."""
    gpu(before)
    outcome = gpu(cell)
    assert outcome.error is None
    if before:
        assert "One request of 8.59 GiB" in last(gpu)
    else:
        assert "there was no out-of-memory error" in gpu("%gpumem_oom").stderr


def test_the_last_attempt_of_a_retry_is_the_users(gpu):
    """It is explained at once, and replaces what was handled before, also where the code handles it then."""
    gpu("quietly(8800)\ntry: gm.retry_on_oom(fail, max_retries=1)()\nexcept Exception: pass")
    assert SENTENCE in last(gpu)
    assert observer.last_state() is None


def test_memory_that_the_code_runs_out_of_in_a_retry_is_reported(gpu):
    """What an attempt that succeeds has handled itself is the code's."""
    gpu("gm.retry_on_oom(quietly)()")
    assert SENTENCE in last(gpu)
