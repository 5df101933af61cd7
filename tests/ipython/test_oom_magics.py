"""The explanation of an out-of-memory error wherever it is shown: below the error, in the status, in results."""

from __future__ import annotations

import gc
import json

import pytest

from jupyter_gpumem import incidents
from jupyter_gpumem.units import GiB, MiB

torch = pytest.importorskip("torch")

VERDICT = "One request of {} on a card of 8.00 GiB: no setting helps, the tensor itself is the mistake"
SENTENCE = VERDICT.format("8.79 GiB")


def said(texts):
    """Return the words of what was displayed."""
    return [" ".join(text.split()) for text in texts]


@pytest.mark.parametrize("head", ["%%gpumem -v cost", "%%time\n%%gpumem -v cost", "%%gpumem -q -v cost"])
def test_a_stored_result_says_why(gpu, head):
    """The report and the explanation below it say it once; the stored result says it whenever it is shown."""
    outcome = gpu(f"{head}\nfail()")
    assert type(outcome.error).__name__ == "OutOfMemoryError"
    assert sum(text.count(SENTENCE) for text in said(outcome.texts)) == 1
    assert said(outcome.texts)[-1].startswith("Out of memory · cuda:0")
    assert len(outcome.texts) == (1 if "-q" in head else 2)
    cost = gpu["cost"]
    assert cost.oom.verdict == "absurd request"
    assert cost.oom is incidents.last_oom().explanation
    assert f"Why memory ran out: {SENTENCE}." in said([str(cost)])[0]
    assert json.loads(json.dumps(cost.to_dict()))["oom"]["sentence"] == SENTENCE


def test_the_last_of_several_runs_says_why(gpu):
    """Of runs that are repeated, the one that failed carries the reason."""
    gpu("sizes = [10, 9000]")
    gpu("%%gpumem -r 3 -v runs\nfail(sizes.pop(0))")
    runs = gpu["runs"]
    assert [run.oom and run.oom.sentence for run in runs] == [None, SENTENCE]
    assert f"Why memory ran out: {SENTENCE}." in said([str(runs)])[0]


def test_a_result_of_another_error_says_nothing(gpu):
    """An error that was handled in the cell is not the one that ended it, and nor is any other kind of error."""
    gpu.shell.user_ns["measured"] = lambda name: gpu.shell.run_cell_magic("gpumem", f"-q -v {name}", "fail(8800)")
    gpu("try:\n    measured('first')\nexcept Exception: pass\nfail()")
    assert gpu["first"].error == "OutOfMemoryError"
    assert gpu["first"].oom is None
    gpu("%%gpumem -v second\nraise ValueError('no memory left in the text')")
    assert (gpu["second"].error, gpu["second"].oom) == ("ValueError", None)


def test_a_name_that_was_bound_again_is_left_alone(gpu):
    """The result is put in its place only while the user has it there."""
    gpu("%load_ext jupyter_gpumem\ndef replaced():\n    try: measured()\n    finally: globals().update(mine='mine')")
    gpu.shell.user_ns["measured"] = lambda: gpu.shell.run_cell_magic("gpumem", "-q -v mine", "fail()")
    assert type(gpu("replaced()").error).__name__ == "OutOfMemoryError"
    assert gpu["mine"] == "mine"


def test_the_status_names_the_cell(gpu):
    """`%gpumem` says in which cell memory ran out last, and why; so does its result as JSON."""
    assert "out-of-memory error, in" not in said(gpu("%gpumem").texts)[0]
    gpu("fail()")
    cell = gpu.shell.execution_count - 1
    (text,) = said(gpu("%gpumem").texts)
    assert f"The last out-of-memory error, in cell [{cell}] at " in text
    assert f": {SENTENCE}; %gpumem_oom shows it whole." in text
    status = gpu("%gpumem -o").value
    plain = json.loads(json.dumps(status.to_dict()))["last_oom"]
    assert (plain["cell"], plain["explanation"]["verdict"]) == (cell, "absurd request")
    assert said(gpu("%gpumem_oom").texts)[0].count(SENTENCE) == 1
    gpu("fail(8900)")
    assert gpu("%gpumem -o").value.last_oom.cell == gpu.shell.execution_count - 2
    assert VERDICT.format("8.69 GiB") in said(gpu("%gpumem").texts)[0]


def test_an_error_that_was_explained_in_the_cell_is_the_last_one(gpu):
    """What `gm.retry_on_oom` explained is not shown twice, and `%gpumem_oom` shows it."""
    outcome = gpu("%%gpumem -v cost\ngm.retry_on_oom(max_retries=0).call(fail)")
    assert type(outcome.error).__name__ == "OutOfMemoryError"
    assert not any(text.startswith("Out of memory") for text in outcome.texts)
    assert gpu["cost"].oom.sentence == SENTENCE
    assert SENTENCE in said(gpu("%gpumem_oom").texts)[0]
    assert gpu("%gpumem -o").value.last_oom.cell == gpu.shell.execution_count - 3


def test_no_explanation_keeps_memory(gpu):
    """With the status, the result and the explanation kept, nothing of the failed cell stays once it is released."""
    gpu("%%gpumem -v cost\nfail()")
    gpu("kept = %gpumem -o")
    gpu("why = %gpumem_oom -o")
    assert torch.cuda.memory_allocated() == 64 * MiB
    gpu("%gpumem_free --errors -q")
    assert torch.cuda.memory_allocated() == 0
    assert gpu["kept"].last_oom.explanation is gpu["cost"].oom is gpu["why"]


def test_a_measured_error_that_was_handled_keeps_nothing(gpu):
    """When the error is gone, so is what its frames held: no cycle of ours keeps them."""
    gpu.shell.user_ns["measured"] = lambda: gpu.shell.run_cell_magic("gpumem", "-q -v first", "fail()")
    gc.collect()
    gc.disable()
    try:
        gpu("try:\n    measured()\nexcept Exception: pass")
        assert torch.cuda.memory_allocated() == 0
    finally:
        gc.enable()


def test_unloading_forgets_it(gpu):
    """Afterwards nothing of the error is kept."""
    gpu("fail()")
    assert incidents.last_oom().explanation.text.total == 8 * GiB
    gpu("%unload_ext jupyter_gpumem")
    assert incidents.last_oom() is None
    gpu("%load_ext jupyter_gpumem")
    assert "there was no out-of-memory error" in gpu("%gpumem_oom").stderr


def test_what_is_released_by_itself_is_not_recommended(gpu):
    """With `--free-errors on` the frames are gone when the advice is read: it says so, and names what stays."""
    gpu("mine = take(3000)\ndef most():\n    kept = take(4000)\n    return take(2000)")
    assert "the failed cell, outputs and garbage let go of it (3.91 GiB)" in said(gpu("most()").texts)[0]
    gpu("del mine; import gc; gc.collect()\nmine = take(3000)\n%gpumem_auto --free-errors on")
    text = said(gpu("most()").texts)[0]
    assert "What only the failed cell and garbage held is given back now: 3.91 GiB." in text
    assert "The largest holders: mine 2.93 GiB." in text
    assert "%gpumem_free" not in text
    assert torch.cuda.memory_allocated() == 3000 * MiB


@pytest.mark.parametrize("released", [False, True])
def test_what_is_released_by_itself_is_not_recommended_by_a_retry_either(gpu, released):
    """It explains its last error inside the cell, and the frames are gone as well when that is read."""
    gpu("def most():\n    kept = take(4000)\n    return take(5000)")
    if released:
        gpu("%gpumem_auto --free-errors on")
    outcome = gpu("gm.retry_on_oom(max_retries=0).call(most)")
    text = " ".join(str(outcome.error.gpumem_explanation).split())
    assert ("the failed cell, outputs and garbage let go of it" in text) is not released
    assert ("What only the failed cell and garbage held is given back now: 3.91 GiB." in text) is released
    assert torch.cuda.memory_allocated() == (0 if released else 4000 * MiB)
    gpu("%unload_ext jupyter_gpumem")
    assert not incidents.errors_are_released()


def test_what_outputs_keep_is_still_recommended(gpu):
    """They are not released by themselves, also where the error's frames hold them too."""
    gpu("%gpumem_auto --free-errors on")
    gpu("take(4000)")
    gpu("def again(value):\n    return take(5000)")
    text = said(gpu("again(_)").texts)[0]
    assert "%gpumem_free: outputs let go of it (3.91 GiB). Tried out" in text
    assert "is given back now" not in text


def test_results_of_blocks_in_a_failed_cell_say_why(gpu):
    """A `with` block, a decorated function and a tracker have what `%%gpumem` has, without anybody asking."""
    gpu("tracker = gm.Tracker()\nmeasured = gm.measure(fail)")
    gpu("with tracker, gm.measure() as block:\n    measured()")
    results = [gpu["block"].result, gpu["measured"].measurement, gpu["tracker"].steps[-1]]
    assert [result.oom.sentence for result in results] == [SENTENCE] * 3
