"""What is begun is finished: signals wait, and one step that fails does not keep the next ones back."""

from __future__ import annotations

import contextlib
import signal
import threading

import pytest

from jupyter_gpumem.finishing import run_all, undivided, uninterrupted

pytestmark = pytest.mark.usefixtures("ctrl_c")


def test_an_interrupt_waits_for_the_end():
    """It is raised once, after the last line, and the handler is the one from before."""
    done = []
    with pytest.raises(KeyboardInterrupt), uninterrupted():  # noqa: PT012 - where it comes is the point
        signal.raise_signal(signal.SIGINT)
        done.append("inside")
        with uninterrupted():
            signal.raise_signal(signal.SIGINT)
            done.append("further inside")
        done.append("after")
    assert done == ["inside", "further inside", "after"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_context_is_entered_and_left_as_a_whole():
    """A Ctrl-C at any moment of either comes right after; only what is inside is interrupted at once."""
    done = []

    @contextlib.contextmanager
    def context(entering=False, leaving=False):
        done.append("entering")
        if entering:
            signal.raise_signal(signal.SIGINT)
        done.append("entered")
        try:
            yield "what it gives"
        finally:
            if leaving:
                signal.raise_signal(signal.SIGINT)
            done.append("left")

    with undivided(context()) as given:
        done.append(given)
    assert done == ["entering", "entered", "what it gives", "left"]
    for when in ("entering", "leaving"):
        done.clear()
        with pytest.raises(KeyboardInterrupt), undivided(context(**{when: True})):
            done.append("inside")
        assert done == ["entering", "entered", *(["inside"] if when == "leaving" else []), "left"]
    done.clear()
    with pytest.raises(KeyboardInterrupt), undivided(context()):  # noqa: PT012
        signal.raise_signal(signal.SIGINT)
        done.append("not reached")
    assert done == ["entering", "entered", "left"]


def test_an_interrupt_is_not_lost_with_an_error():
    """It is what the user asked for, and the error is its context."""
    with pytest.raises(KeyboardInterrupt) as caught, uninterrupted():  # noqa: PT012
        signal.raise_signal(signal.SIGINT)
        raise LookupError
    assert isinstance(caught.value.__context__, LookupError)


def test_what_is_ignored_stays_ignored():
    """A signal without a handler in Python is none of ours."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with uninterrupted():
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        signal.raise_signal(signal.SIGINT)


def test_other_threads_are_never_interrupted():
    """There is nothing to hold back in them, and Python would refuse to."""
    done = []

    def work():
        with uninterrupted():
            done.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [signal.default_int_handler]


def test_all_steps_are_run_and_the_first_error_is_raised():
    """An interrupt is an error as well."""
    done = []

    def fail(error):
        done.append(error)
        raise error

    errors = [KeyboardInterrupt(), LookupError("second")]
    with pytest.raises(KeyboardInterrupt) as caught:
        run_all([lambda: fail(errors[0]), lambda: fail(errors[1]), lambda: done.append("last")])
    assert caught.value is errors[0]
    assert done == [*errors, "last"]
