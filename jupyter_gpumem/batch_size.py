"""The largest batch size that runs, found by running it."""

from __future__ import annotations

import functools
import inspect
import sys
import time
from collections import deque
from typing import TYPE_CHECKING

from .arguments import check_flag, check_function, check_listener, check_share, check_whole
from .control.lowering import LoweredCaps, room_below_caps
from .devices import check_context, explain_absence, note_loss, ready_devices
from .errors import GpumemError, InvalidValueError, UnavailableError
from .expectation import largest_batch, on_virtual_gpu
from .measurement import Measure
from .notebook import text_of
from .oom import explain_error, find_oom, observer
from .records import BatchSize, Trial
from .retrying import clean, release_frames
from .units import MiB, format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .records import OomExplanation

_ITERATIONS = 2
"""Optimizer state arrives at the end of the first one."""

_A_LEAK = MiB
"""What stays after each of several trials, beyond this, is a leak."""

_LARGEST = 1 << 30

_ENOUGH = 3
"""Trials after which a function that has not allocated any device memory is believed to need none."""


def find_batch_size(
    fn: Callable[[int], object],
    start: int = 1,
    maximum: int | None = None,
    margin: float = 0.05,
    *,
    predict: bool | None = None,
    on_trial: Callable[[Trial], object] | None = None,
) -> BatchSize:
    """Return the largest batch size for which `fn(batch_size)` runs, twice in a row, with a margin of memory kept free.

    The size is doubled until it fails, then the interval is halved until it is known. Before each trial garbage is
    collected and unused memory given back; during the trials the margin is kept from PyTorch by a memory cap, so that
    what is found runs in that much less memory. A cap of yours stays in force, and is back afterwards.

    Without a `maximum`, a function that allocates no device memory is not tried any further after a few trials; a note
    of the result says so. If not even a batch of 1 runs, `oom` of the result is the explanation.

    With a prediction (`predict`), a few runs on a virtual GPU whose memory has no end say how large a batch should fit,
    and the trials go on from there: often two are enough. The answer comes from trials all the same, so that a wrong
    prediction costs some, and changes nothing.

    Args:
        fn: runs one whole iteration with a batch of that size: forward, backward, optimizer. May be compiled, may use
            several GPUs, may be a generator function (it is run to its end).
        start: the size tried first.
        maximum: the largest size to try; by default there is none.
        margin: the share of each device's memory to keep free, for what a trial does not show (other batches, other
            shapes, fragmentation): 0.05 is 5 %.
        predict: whether to predict. By default only where the session has a virtual GPU: there a prediction costs what
            a trial costs, and tells more than whether it fits. On a real GPU it takes seconds of the CPU, patches
            `torch.cuda` for all threads meanwhile, and `fn` runs more often; it pays where a trial takes seconds. What
            `fn` changes is put back, as far as `gm.predict` can; the result says what was not.
        on_trial: called with each `Trial`.

    Raises:
        InvalidValueError: `start`, `maximum`, `margin` or `predict` is impossible, `fn` or `on_trial` is no function,
            or `fn` is a coroutine function.
        UnavailableError: there is no device to run out of memory, or the CUDA context is lost.
        Exception: whatever `fn` raises that is not about memory.
    """
    __tracebackhide__ = True
    start, maximum, margin = _checked(fn, start, maximum, margin, on_trial)
    if predict is not None:
        check_flag("predict", predict)
    check_context()
    absent = explain_absence()
    if absent is not None and not any(True for _ in ready_devices()):
        raise UnavailableError(f"no batch size can be found: {absent}")
    foresee = on_virtual_gpu() if predict is None else predict
    search = _Search(fn, maximum, margin, on_trial)
    with LoweredCaps() as search.caps:
        best = search.run(start, foresee=foresee)
    return BatchSize(
        batch_size=best,
        trials=tuple(search.trials),
        margin=margin,
        at_maximum=best == maximum,
        leaks=search.leaks(),
        predicted=search.predicted,
        notes=tuple(search.notes(best)),
        oom=search.oom,
    )


def _checked(
    fn: Callable[[int], object],
    start: int,
    maximum: int | None,
    margin: float,
    on_trial: Callable[[Trial], object] | None,
) -> tuple[int, int | None, float]:
    """Refuse what cannot be searched with; returns `start`, `maximum` and `margin` as Python's own numbers."""
    check_function("fn", fn, "a batch size")
    first = check_whole("start", start)
    most = None if maximum is None else check_whole("maximum", maximum)
    if most is not None and most < first:
        raise InvalidValueError(f"maximum must not be below start ({first}), got {most}")
    share = check_share("margin", margin)
    if on_trial is not None:
        check_listener("on_trial", on_trial, "a Trial")
    if inspect.iscoroutinefunction(fn) or inspect.isasyncgenfunction(fn):
        raise InvalidValueError("fn must not be a coroutine function; wrap it: lambda n: asyncio.run(fn(n))")
    return first, most, share


class _Search:
    """One search: what was tried, and what to try next."""

    def __init__(
        self,
        fn: Callable[[int], object],
        maximum: int | None,
        margin: float,
        on_trial: Callable[[Trial], object] | None,
    ) -> None:
        self.trials: list[Trial] = []
        self._good = 0
        self._bad: int | None = None
        self.caps = LoweredCaps()
        self.predicted: int | None = None
        self.oom: OomExplanation | None = None
        self._takes_memory = False
        self._endless = maximum is None
        self._fn, self._maximum, self._margin, self._on_trial = fn, maximum or _LARGEST, margin, on_trial
        self._base: int | None = None
        self._foreseen: list[str] = []

    def run(self, start: int, *, foresee: bool) -> int:
        """Return the largest size that fits, 0 if none does.

        Args:
            start: what is tried first.
            foresee: whether to ask a prediction then where to go on; without one the size is doubled.
        """
        __tracebackhide__ = True
        if self._fits(start):
            self._good = start
        else:
            self._bad = start
        if foresee and self._open and self._takes_memory:
            self.predicted = self._foresee(start)
        if self.predicted is not None:
            self._close_in(self.predicted)
        while self._open:
            self._try(2 * self._good if self._bad is None else (self._good + self._bad) // 2)
        return self._good

    @property
    def _open(self) -> bool:
        """Whether the answer is not known yet, and can be found."""
        if self._endless and not self._takes_memory and len(self.trials) >= _ENOUGH:
            return False
        return self._good < self._maximum if self._bad is None else self._bad - self._good > 1

    def _try(self, size: int) -> bool:
        """Try a size, or the nearest one that is open; returns whether it fits."""
        __tracebackhide__ = True
        most = self._maximum if self._bad is None else self._bad - 1
        size = max(self._good + 1, min(size, most))
        fits = self._fits(size)
        if fits:
            self._good = size
        else:
            self._bad = size
        return fits

    def _close_in(self, expected: int) -> None:
        """Try the size that is expected to be the answer, then sizes further and further from it, until one differs."""
        __tracebackhide__ = True
        fits, step = self._try(expected), 1
        while self._open and self._try(self._good + step if fits else (self._bad or 0) - step) is fits:
            step *= 2

    def _foresee(self, start: int) -> int | None:
        """Return the largest size that fits by prediction, or `None` without one; notes say why, and what it left."""
        clean()
        self.caps.keep_free(self._margin)
        handled = sys.exc_info()[1]
        try:
            rooms = {backend.device(index): room_below_caps(backend, index) for backend, index in ready_devices()}
            expected = largest_batch(self._fn, functools.partial(_run, self._fn), start, self._maximum, rooms)
        except Exception as reason:  # noqa: BLE001 - whatever it is: the trials do without, and say so
            line = next(iter(text_of(reason).splitlines()), "")
            what = line if isinstance(reason, GpumemError) else f"{type(reason).__name__}: {line}"
            release_frames(reason, handled)
            self._foreseen.append(f"no prediction to begin with: {what}"[:300])
            return None
        if expected.not_undone:
            what = "; ".join(expected.not_undone)
            self._foreseen.append(f"the prediction ran fn too, and could not put everything back: {what}")
        if expected.unsaved:
            what = ", ".join(expected.unsaved)
            self._foreseen.append(f"what fn saves was written by the trials only, not by the prediction: {what}")
        return expected.batch

    def _fits(self, size: int) -> bool:
        __tracebackhide__ = True
        clean()
        self.caps.keep_free(self._margin)
        if self._base is None:
            self._base = _allocated()
        began = time.perf_counter()
        with Measure() as measure:
            error = self._attempt(size)
        usages = list(measure.result or ())
        # Where nobody counts allocations, there may have been some.
        self._takes_memory |= error is not None or any(usage.allocation_count != 0 for usage in usages)
        clean()
        trial = Trial(
            batch_size=size,
            fits=error is None,
            peak_allocated=max((u.peak_allocated for u in usages if u.peak_allocated is not None), default=None),
            peak_reserved=max((u.peak_reserved for u in usages if u.peak_reserved is not None), default=None),
            error=error,
            left=_allocated() - self._base,
            elapsed_s=time.perf_counter() - began,
        )
        self.trials.append(trial)
        if self._on_trial is not None:
            self._on_trial(trial)
        return trial.fits

    def leaks(self) -> int | None:
        """Return the bytes that every further trial leaves behind; what only the first ones keep is no leak."""
        growth = [after.left - before.left for before, after in zip(self.trials[1:], self.trials[2:], strict=False)]
        return sum(growth) // len(growth) if len(growth) > 1 and min(growth) >= _A_LEAK else None

    def notes(self, best: int) -> Iterator[str]:
        """Yield what is to be said about the search."""
        yield from self._foreseen
        leaks = self.leaks()
        if leaks is not None:
            yield (
                f"fn leaks: each trial leaves about {format_bytes(leaks)} behind, and a fresh process may run more "
                f"than {best}; %gpumem_who says who holds it"
            )
        elif self.trials and self.trials[-1].left >= _A_LEAK:
            yield self._on_what_stays(self.trials[-1].left, best)
        if not best:
            yield "not even the smallest size tried runs; .oom of this result says why, and so does %gpumem_oom"
        elif not self._takes_memory:
            ended = f": the search ended with {best:,}" if self._endless else ""
            yield f"fn allocated no device memory in {len(self.trials)} trials, so that no batch is too large{ended}"
        elif self._endless and best == self._maximum:
            yield f"fn still runs with {best:,}, and no more are tried: its memory does not grow with the batch"

    def _on_what_stays(self, left: int, best: int) -> str:
        """Say what the trials left behind: in too few of them to tell a leak, or once and for all."""
        first = next((trial.left for trial in self.trials if trial.fits), left)
        if left - first < _A_LEAK:
            return f"fn keeps {format_bytes(left)} from its first run on (optimizer state, buffers)"
        return (
            f"fn keeps {format_bytes(first)} after its first run, and {format_bytes(left)} after the last: if it "
            f"leaks, a fresh process may run more than {best}; %gpumem_who says who holds it"
        )

    def _attempt(self, size: int) -> str | None:
        """Run the iterations; returns the text of an out-of-memory error, whose frames are let go of, or `None`.

        If not even a single sample fits, nothing does: that is explained while it can be.
        """
        __tracebackhide__ = True
        handled, before = sys.exc_info()[1], observer.observe()
        try:
            _run(self._fn, size)
        except BaseException as failure:
            found = find_oom(failure, handled)
            if found is None or found[1].family == "host":
                note_loss(failure)
                raise
            message = str(found[0])
            del found  # or the search would take it for one who holds the error
            if size == 1:
                margin = self._margin if self.caps.binding else 0
                self.oom = explain_error(failure, released=True, handled=handled, margin=margin)
            release_frames(failure, handled)
            return message
        finally:
            if self.oom is None:
                observer.forget(before=before)  # what happens in a trial is how the answer is found
        return None


def _run(fn: Callable[[int], object], size: int) -> None:
    __tracebackhide__ = True
    for _ in range(_ITERATIONS):
        result = fn(size)
        if inspect.isgenerator(result):
            deque(result, maxlen=0)
        del result  # so that an iteration never overlaps with what the one before returned


def _allocated() -> int:
    return sum(backend.stats(index)["allocated_bytes"]["all"]["current"] for backend, index in ready_devices())
