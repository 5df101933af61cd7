"""Threads that predict: one at a time, and never one that the running prediction may be waiting for."""

from __future__ import annotations

import queue
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

torch = pytest.importorskip("torch")

from jupyter_gpumem.errors import UnavailableError  # noqa: E402
from jupyter_gpumem.prediction import predict  # noqa: E402

REFUSAL = "a prediction is running, and this thread was started in it"


def take(size):
    torch.empty(size, dtype=torch.uint8, device="cuda")


def peak(size):
    return predict(take, size, gpu="T4").devices[0].peak_allocated


def test_a_thread_that_a_prediction_starts_and_waits_for_may_not_predict():
    """It would wait for the prediction that waits for it."""
    errors, plain = [], threading.Thread.start

    def work():
        with pytest.raises(UnavailableError, match=REFUSAL) as raised:
            peak(512)
        errors.append(raised.value)

    def start_another():
        another = threading.Thread(target=work)
        another.start()
        another.join()

    def code():
        for target in (work, start_another):
            thread = threading.Thread(target=target)
            thread.start()
            thread.join()
            if len(errors) == 1:
                assert peak(1024) == 1024, "a prediction in a prediction, in the same thread"
        assert len(errors) == 2
        assert peak(1024) == 1024, "a prediction in a prediction, in the same thread"
        with ThreadPoolExecutor() as pool:
            pool.submit(peak, 512).result()

    with pytest.raises(UnavailableError, match=REFUSAL):
        predict(code)
    assert threading.Thread.start is plain


def test_other_threads_wait():
    """Those that were started elsewhere predict one after another, also while others are started."""
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(peak, [512, 1024, 1536, 2048])) == [512, 1024, 1536, 2048]


def test_a_thread_may_predict_when_the_prediction_that_started_it_has_ended():
    """It is as any other then."""
    questions, answers = queue.Queue(), queue.Queue()

    def work():
        answers.put(peak(questions.get()))

    thread = threading.Thread(target=work)
    predict(thread.start)
    questions.put(512)
    assert answers.get(timeout=60) == 512
    thread.join()
