"""The reason why memory ran out, in the results of what was measured meanwhile."""

from __future__ import annotations

import dataclasses
import pickle

import pytest

import jupyter_gpumem as gm

torch = pytest.importorskip("torch")


def out_of_memory():
    return torch.empty(90 << 30, dtype=torch.uint8, device="cuda")


def test_the_results_of_measurements_say_why(virtual):
    """As soon as the error is explained, wherever it passed: nested blocks, decorated functions, trackers."""
    decorated = gm.measure(out_of_memory)
    tracker = gm.Tracker()
    tracker.step("before")
    with gm.measure() as unharmed:
        pass
    inner, outer = gm.measure("inner"), gm.measure()

    def step():
        try:
            with inner:
                decorated()
        except torch.OutOfMemoryError as error:
            raise ValueError("the batch is too large") from error

    with pytest.raises(ValueError, match="batch") as caught, outer, tracker:
        step()
    kept = inner.result
    assert (inner.result.oom, outer.result.oom, decorated.measurement.oom) == (None, None, None)
    found = gm.explain_oom(caught.value)
    assert found.verdict == "absurd request"
    assert [step.oom for step in tracker] == [None, found]
    for result in (inner.result, outer.result, decorated.measurement):
        assert result.oom is found
    assert f"Why memory ran out: {found.sentence}." in " ".join(str(inner.result).split())
    assert (inner.result.label, inner.result.elapsed_s, kept.oom) == ("inner", kept.elapsed_s, None)
    assert unharmed.result.oom is None


def test_what_is_explained_already_says_why_at_once(virtual):
    """`gm.retry_on_oom` explains inside of the block."""
    with pytest.raises(torch.OutOfMemoryError) as caught, gm.measure() as measured:
        gm.retry_on_oom(max_retries=0).call(out_of_memory)
    assert measured.result.oom is caught.value.gpumem_explanation


def test_a_later_result_is_not_touched(virtual):
    """A measurement that was used again, and a function that was called again, are about something else by then."""
    decorated, block = gm.measure(lambda size: torch.empty(size, device="cuda")), gm.measure()
    with pytest.raises(torch.OutOfMemoryError) as caught, block:
        decorated(90 << 30)
    decorated(1)
    with block:
        pass
    assert gm.explain_oom(caught.value) is not None
    assert (decorated.measurement.oom, block.result.oom) == (None, None)


@dataclasses.dataclass(frozen=True)
class FrozenError(RuntimeError):
    """An error whose attributes cannot be set."""

    text: str


def test_any_kind_of_error_is_left_alone(virtual):
    """It is the same one afterwards, and can be explained, also where its class lets nothing be set."""
    error = FrozenError("CUDA out of memory. Tried to allocate 20.00 GiB.")
    with pytest.raises(FrozenError) as caught, gm.measure() as measured:
        raise error
    assert caught.value is error
    assert gm.explain_oom(error) is measured.result.oom is not None
    with pytest.raises(KeyError) as caught, gm.measure():
        raise KeyError("not about memory")
    assert vars(caught.value) == {}


def test_an_error_can_be_sent_to_another_process(virtual):
    """Nothing of ours goes along before it is explained: whoever gets it need not have this package."""
    with pytest.raises(torch.OutOfMemoryError) as caught, gm.measure():
        out_of_memory()
    sent = pickle.loads(pickle.dumps(caught.value))
    assert sent.args == caught.value.args
    assert {type(value) for value in vars(sent).values()} == {list}
