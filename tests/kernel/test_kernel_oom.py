"""Out-of-memory errors explained, retried and avoided, through a real kernel with a virtual GPU."""

from __future__ import annotations

import pytest
from client import prepared, value

from tests import oom_cases
from tests.holding_scenarios import PREPARE
from tests.oom_cases import BATCHES, CASES, RETRY, compare_batch_sizes, provoke

pytest.importorskip("torch")


@pytest.fixture(scope="module")
def virtual():
    """A kernel with a virtual GPU of 24 GiB, for all tests of the module."""
    with prepared("%load_ext jupyter_gpumem\n%gpumem_virtual on --gpu 24GiB", PREPARE + oom_cases.PREPARE) as kernel:
        yield kernel


@pytest.mark.parametrize("case", [case for case in CASES if not case.real], ids=lambda case: case.name)
def test_explained_once_below_the_error(virtual, case):
    """The reason is right, what is advised helps, and the user's own traceback is there."""
    found = provoke(virtual, case)
    assert found.right, found
    assert found.seen == "when it happened"


def test_other_errors_are_left_alone(virtual):
    """Nothing is shown below an error that is not about memory."""
    reply = virtual.run("raise ValueError('Tried to allocate a name')")
    assert reply.status == "error"
    assert reply.displays == []


def test_an_explanation_is_shown_once(virtual):
    """The same error raised again in a later cell is not explained again."""
    reply = virtual.run("try:\n    share(2)\nexcept Exception as error:\n    kept = error\nraise kept")
    assert len(reply.displays) == 1
    reply = virtual.run("raise kept")
    assert reply.errors
    assert reply.displays == []
    virtual.run("del kept\n%gpumem_free -q")


def test_the_same_explanation_everywhere(virtual):
    """The report of the cell, its stored result and the status speak of the error that is explained below it."""
    reply = virtual.run("%%gpumem -v cost\nshare(2)")
    assert reply.status == "error"
    report, below = (" ".join(shown["text/plain"].split()) for shown in reply.displays)
    sentence = value(virtual, "cost.oom.sentence")
    assert (report.count(sentence), below.count(sentence)) == (0, 1)
    cell = reply.content["execution_count"]
    (status,) = virtual.run("%gpumem", store_history=False).displays
    text = " ".join(status["text/plain"].split())
    assert f"The last out-of-memory error, in cell [{cell}] at " in text
    assert f": {sentence}; %gpumem_oom shows it whole." in text
    assert f"in cell [{cell}] at" in status["text/html"]
    virtual.run("del cost\n%gpumem_free -q", store_history=False)


@pytest.mark.parametrize("name", BATCHES)
@pytest.mark.parametrize("start", [1, 5])
def test_batch_size_equals_that_of_trying_all(virtual, name, start):
    """The largest batch size is exactly the one that trying every size gives, and a prediction saves trials."""
    found = compare_batch_sizes(virtual, name, start=start)
    assert found.plain == found.foreseen == found.exhaustive > 0
    assert abs(found.predicted - found.exhaustive) <= 1
    assert found.foreseen_trials <= 4 < found.plain_trials


def test_retrying_releases_what_the_failed_attempt_held(virtual):
    """No attempt's peak is above that of the first."""
    assert virtual.run(RETRY).status == "ok"
    peaks = value(virtual, "peaks")
    assert len(peaks) == 3
    assert max(peaks) == peaks[0]


@pytest.mark.parametrize("code", ["%run -i {script}", "%%capture shown\n%run -i {script}", "%%capture shown\nshare(2)"])
def test_an_error_that_does_not_end_the_cell_is_explained_below_its_traceback(virtual, tmp_path, code):
    """IPython shows it itself (`%run`), and does so also where everything else that a cell shows is captured."""
    script = tmp_path / "script.py"
    script.write_text("share(2)\n")
    reply = virtual.run(code.format(script=script))
    assert len(reply.errors) == 1
    (below,) = reply.displays
    assert "One request of 48.00 GiB on a card of 24.00 GiB" in below["text/plain"]
    assert value(virtual, "len(shown.outputs) if 'shown' in globals() else 0") == 0
    virtual.run("%gpumem_free -q", store_history=False)


QUIETLY = """
import asyncio, threading
def quietly():
    try: share(2)
    except Exception: pass
async def epoch(): quietly()
loop = asyncio.get_running_loop()
"""
UNSEEN = {
    "handled by the code": "quietly()",
    "raised in the thread 'loader'": "one = threading.Thread(None, share, 'loader', (2,)); one.start(); one.join()",
    "raised in the task 'epoch 3'": "task = loop.create_task(epoch(), name='epoch 3')",
    "raised in a callback": "_ = loop.call_soon(quietly)",
}


@pytest.mark.parametrize("came", UNSEEN)
def test_an_error_that_ends_no_cell_is_the_last_one(virtual, came):
    """It is explained when somebody asks, with how it came; the older one that a cell ended with is not the last."""
    assert virtual.run("share(1.5)").status == "error"
    assert virtual.run(QUIETLY).status == "ok"
    reply = virtual.run(f"{UNSEEN[came]}\nawait asyncio.sleep(0)")  # what waits in the loop has its turn
    assert (reply.status, reply.displays) == ("ok", [])
    (shown,) = virtual.run("%gpumem_oom", store_history=False).displays
    text = " ".join(shown["text/plain"].split())
    assert f"It ended no cell: it was {came}. It failed in take, line " in text
    assert "One request of 48.00 GiB on a card of 24.00 GiB" in text
    (status,) = virtual.run("%gpumem", store_history=False).displays
    assert f"The last out-of-memory error, {came} at " in " ".join(status["text/plain"].split())
    virtual.run("%gpumem_free -q", store_history=False)
