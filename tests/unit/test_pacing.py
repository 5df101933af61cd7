"""The sampler's thread: its pace, its end, its errors, its life across forks. Time is told to it, never waited for."""

from __future__ import annotations

import os
import threading

import pytest

from jupyter_gpumem.pacing import Clock, Heartbeat


class Told(Clock):
    """A clock that is set: waiting takes exactly as long as was asked for, and `waits` are the lengths.

    Args:
        costs: how long each beat takes, in seconds; no more beats are made than there are costs.
    """

    def __init__(self, costs=()):
        self.time = 100.0
        self.costs = list(costs)
        self.beats = []
        self.waits = []
        self.done = threading.Event()

    def now(self):
        return self.time

    def wait(self, wake, seconds):
        self.waits.append(seconds)
        self.time += seconds
        if len(self.beats) >= len(self.costs):
            self.done.set()
            wake.wait()

    def beat(self):
        self.beats.append(self.time)
        self.time += self.costs[len(self.beats) - 1]


def beats(costs, interval=1.0):
    """Return when beats of those costs begin, and the waits between them."""
    clock = Told(costs)
    heart = Heartbeat(clock.beat, interval, clock=clock)
    heart.start()
    assert clock.done.wait(30)
    heart.stop()
    assert not heart.running
    return clock


def test_pace_does_not_drift():
    """However long beats take, they begin on multiples of the interval."""
    clock = beats([0.1, 0.7, 0.0, 0.35, 0.2])
    assert clock.beats == pytest.approx([100, 101, 102, 103, 104])


def test_missed_beats_are_left_out():
    """A beat that takes three intervals is not followed by a burst."""
    assert beats([3.4, 0.1, 0.1]).beats == pytest.approx([100, 104, 105])


def test_an_hour_needs_no_more_than_a_minute():
    """14,400 beats take no memory that stays."""
    clock = beats([0.001] * 14_400, interval=0.25)
    assert clock.beats[-1] == pytest.approx(100 + 14_399 * 0.25)


def test_an_error_ends_the_thread_and_is_kept(capfd):
    """An exception is kept for whoever asks, told once, and never printed, even if telling it fails."""
    told = []

    def beat():
        raise LookupError("shell_parent")

    def tell():
        told.append(heart.error)
        raise OSError("nobody listens")

    heart = Heartbeat(beat, 1.0, on_error=tell)
    heart.start()
    heart._thread.join(30)
    assert isinstance(heart.error, LookupError)
    assert told == [heart.error]
    assert not heart.running
    assert capfd.readouterr() == ("", "")


def test_it_is_one_daemon_thread_with_a_name():
    """Starting twice makes one thread, which never keeps the process alive."""
    heart = Heartbeat(lambda: None, 30.0)
    heart.start()
    heart.start()
    (thread,) = [one for one in threading.enumerate() if one.name == "gpumem-sampler"]
    assert thread.daemon
    heart.stop()
    heart.stop()
    assert not thread.is_alive()


def test_a_poke_lets_the_next_beat_come_at_once():
    """Whoever has something to say need not wait for the next beat."""
    came = threading.Semaphore(0)
    heart = Heartbeat(came.release, 3600.0)
    heart.start()
    assert came.acquire(timeout=30)
    heart.poke()
    assert came.acquire(timeout=30)
    heart.stop()


def test_stopping_does_not_wait_for_ever(monkeypatch):
    """A beat that hangs keeps neither `stop` nor the interpreter."""
    monkeypatch.setattr("jupyter_gpumem.pacing._STOP_PATIENCE", 0.05)
    hangs, free = threading.Event(), threading.Event()

    def beat():
        hangs.set()
        free.wait()

    heart = Heartbeat(beat, 1.0)
    heart.start()
    hangs.wait(30)
    thread = heart._thread
    heart.stop()
    assert thread.is_alive()
    free.set()
    thread.join(30)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_fork_meets_no_beat_half_done():
    """A child never inherits a lock that a beat holds, has no thread, and may start its own."""
    lock = threading.Lock()

    def beat():
        with lock:
            sum(range(2000))

    heart = Heartbeat(beat, 0.0005)
    heart.start()
    for _ in range(20):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                free = lock.acquire(timeout=2)
                if free:
                    lock.release()
                alone = not heart.running
                heart.start()
                again = heart.running
                heart.stop()
                status = 0 if free and alone and again else 1
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert heart.running
    heart.stop()
