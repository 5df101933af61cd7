"""Predictions: the peak by part, where it is, and where it fits."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from predicted_training import WEIGHTS, WIDTH, make, take, train  # noqa: E402

import jupyter_gpumem as gm  # noqa: E402
from jupyter_gpumem.errors import InvalidValueError  # noqa: E402
from jupyter_gpumem.prediction import predict  # noqa: E402
from jupyter_gpumem.units import GiB, KiB, MiB  # noqa: E402

pytestmark = pytest.mark.usefixtures("no_gpu_is_left")


def test_parts_add_up_to_the_peak():
    """Parameters, gradients and state are what they must be, and all parts are the peak, to the byte."""
    result = predict(train, make(), gpu="T4")
    [use] = result.devices
    parts = dict(use.parts)
    assert sum(parts.values()) == use.peak_allocated
    assert parts["parameters"] == parts["gradients"] == parts["optimizer temporaries"] == WEIGHTS
    assert 2 * WEIGHTS <= parts["optimizer state"] < 2 * WEIGHTS + 8 * KiB
    assert parts["workspaces"] >= 8 * MiB
    assert use.phase == "optimizer step"
    assert use.text == "optimizer.step()"
    assert result["t4"].ran


def test_parameters_of_a_virtual_gpu_that_was_on_before():
    """Their addresses are given out again, and what lies there now is no parameter."""
    with gm.virtual_gpu("T4"):
        model = make(1).cuda()
        address = model[0].weight.data_ptr()
    with gm.virtual_gpu("T4"):
        data = take(4 * MiB)
        assert data.data_ptr() == address
        parts = dict(predict(lambda: data + 1).devices[0].parts)
    assert parts == {"activations": 4 * MiB, "other": 4 * MiB}


def test_parameters_that_are_made_on_the_device():
    """Weights made there are parameters, also without an optimizer, under a default device, or frozen."""

    def code():
        with torch.device("cuda"):
            model = make(2).requires_grad_(False)
        inputs = torch.ones(4, WIDTH, device="cuda")
        return model(inputs)

    parts = dict(predict(code, gpu="T4").devices[0].parts)
    assert parts["parameters"] == WEIGHTS / 2
    assert parts["other"] == 4 * WIDTH * 4


def test_under_a_default_device():
    """A default device of the session changes nothing: what is there is there again afterwards."""
    with gm.virtual_gpu("T4"):
        torch.set_default_device("cuda")
        try:
            model = make(1)
            before = torch.cuda.memory_allocated(), model[0].weight.data_ptr()
            result = predict(train, model)
            assert dict(result.devices[0].parts)["parameters"] == WEIGHTS / 4
            assert (torch.cuda.memory_allocated(), model[0].weight.data_ptr()) == before
        finally:
            torch.set_default_device(None)


def test_without_foreach_there_are_no_temporaries_of_that_size():
    """The part that a setting saves is seen to go."""
    result = predict(train, make(), gpu="T4", foreach=False)
    parts = dict(result.devices[0].parts)
    assert parts.get("optimizer temporaries", 0) < WEIGHTS


def test_activations_are_the_peak_of_a_large_batch():
    """With a large batch the peak is in the backward pass, and activations are most of it."""
    result = predict(train, make(), batch_size := 50_000, gpu="H200")
    [use] = result.devices
    assert (use.phase, use.text) == ("backward pass", "loss.backward()")
    assert use.parts[0][0] == "activations"
    assert use.parts[0][1] >= 4 * batch_size * WIDTH * 4


def test_the_peak_is_the_sessions():
    """What is predicted is what the counters of a virtual GPU say of the same code."""
    result = predict(train, make(), gpu="L4")
    with gm.virtual_gpu("L4"):
        train(make())
        peaks = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    assert (result.devices[0].peak_allocated, result.devices[0].peak_reserved) == peaks


def test_resetting_the_counter_changes_nothing():
    """The code may reset its peak, or empty the cache."""

    def code():
        take(50 * MiB)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        return take(MiB)

    result = predict(code)
    assert (result.devices[0].peak_allocated, result.devices[0].peak_reserved) == (50 * MiB, 50 * MiB)


def test_fits_or_not():
    """What is too large says so, where memory runs out, and on which card it would fit; that is no error."""

    def code():
        small = take(GiB)
        large = take(16 * GiB)
        return small, large

    result = predict(code, gpu=["T4", "A100-40GB"])
    assert [(fit.gpu, fit.fits) for fit in result.fits] == [("T4", False), ("A100-40GB", True)]
    assert result["T4"].line == code.__code__.co_firstlineno + 2
    assert result["T4"].left < 0
    assert result["A100-40GB"].left == result["A100-40GB"].usable - 17 * GiB
    assert predict(code, gpu="T4").smallest == "L4"
    assert result.smallest is None


def test_a_flush_may_be_enough():
    """What fits only because the cache is given back in between is said to."""

    def code():
        for size in (6, 7, 8):
            take(size * GiB)

    fit = predict(code, gpu="T4")["T4"]
    assert (fit.fits, fit.retries > 0) == (True, True)
    assert fit.left < 0


def test_all_cards_by_default():
    """Without a card there is one run, and a row for each card with its own workspaces."""
    runs = []

    def code():
        runs.append(1)
        x = torch.ones(256, 256, device="cuda")
        return x @ x

    result = predict(code)
    assert runs == []  # what it appended is undone
    assert [fit.usable for fit in result.fits] == sorted(fit.usable for fit in result.fits)
    assert [fit.gpu for fit in result.fits if fit.ran] == ["A100-80GB"]
    assert result["H100"].peak_reserved > result["A100-80GB"].peak_reserved  # 32 MiB of cuBLAS instead of 8.125
    assert predict(code, gpu="H100")["H100"].peak_reserved == result["H100"].peak_reserved


def test_several_devices():
    """A machine of two has a record for each, and a verdict for the fuller."""

    def code():
        a = torch.empty(GiB, dtype=torch.uint8, device="cuda:0")
        return a, torch.empty(20 * GiB, dtype=torch.uint8, device="cuda:1")

    result = predict(code, gpu=["2xA100-40GB", "2xT4"])
    assert [use.peak_allocated for use in result.devices] == [GiB, 20 * GiB]
    assert [(fit.gpu, fit.fits) for fit in result.fits] == [("2xA100-40GB", True), ("2xT4", False)]


def test_the_largest_batch():
    """The largest value of an argument that fits is found, and one more does not fit."""
    model = make()
    result = predict(train, model, batch="batch", gpu=["8GiB", "T4"], runs=60)
    for fit in result.fits:
        assert fit.largest_is_exact
        assert predict(train, model, fit.largest_batch, gpu=fit.gpu.removesuffix(" card"))[fit.gpu].fits
        assert not predict(train, model, fit.largest_batch + 1, gpu=fit.gpu.removesuffix(" card"))[fit.gpu].fits
    assert result.batch.value == 64
    assert result.batch.runs <= 60


def test_what_the_batch_argument_must_be():
    """A name that is none, or a value that is no number, is refused in one line."""
    with pytest.raises(InvalidValueError, match="'size' is no argument of train; it has model, batch, steps"):
        predict(train, make(), batch="size")
    with pytest.raises(InvalidValueError, match="must be a whole number of at least 1, got 0"):
        predict(train, make(), 0, batch="batch")


def test_placeholders_are_said(recwarn):
    """Where a value was asked for is in the result; there is no warning beside it."""

    def code():
        return take(1).item()

    [text] = predict(code).placeholders
    assert text == f"line {code.__code__.co_firstlineno + 1}: a tensor has no value on a virtual GPU; it was given 0"
    assert not [one for one in recwarn if "virtual GPU" in str(one.message)]


def test_an_error_of_the_code_is_its_own(capsys):
    """It passes unchanged, what was printed before it is shown, and everything is undone."""
    model = make(1)

    def code():
        print("before")
        model.cuda()
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        predict(code)
    assert capsys.readouterr().out == "before\n"
    assert model[0].weight.device.type == "cpu"


def test_nothing_is_printed(capsys):
    """What the code prints would be placeholders."""
    predict(lambda: print(take(3)))
    assert capsys.readouterr() == ("", "")


def test_code_that_uses_no_gpu():
    """It fits everywhere."""
    result = predict(lambda: torch.ones(3))
    assert result.devices[0].peak_allocated == 0
    assert all(fit.fits for fit in result.fits)
