"""Replays of several settings at once, in processes of their own.

A child is started as `python -m jupyter_gpumem.allocator.worker` and handed its work on standard input. Neither forking
(a notebook kernel has threads, and a CUDA context) nor `multiprocessing` (which runs the user's script again) is used.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from collections import deque
from pathlib import Path
from typing import IO, TYPE_CHECKING, TypeAlias

from jupyter_gpumem.errors import GpumemError

from .replay import Conditions, Replay, replay

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from .settings import AllocatorSettings
    from .trace import Trace

    Work: TypeAlias = tuple[AllocatorSettings, bool]
    """Settings, and whether what no recording tells turns out otherwise."""

_GLANCE_S = 0.05
"""How often to look whether the children have got further."""


class Replays:
    """Replays one trace under any number of settings; a context manager, at whose end no process is left.

    Args:
        trace: the operations.
        conditions: the device.
        jobs: how many processes work at once, this one included.
    """

    def __init__(self, trace: Trace, conditions: Conditions, jobs: int = 1) -> None:
        self.trace, self.conditions, self.jobs = trace, conditions, max(1, jobs)
        self._children: list[_Child] = []

    def __enter__(self) -> Replays:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for child in self._children:
            child.end()

    def run(
        self,
        choices: Sequence[AllocatorSettings],
        *,
        otherwise: bool = False,
        meanwhile: Callable[[], object] | None = None,
        done: Callable[[int], None] | None = None,
    ) -> list[Replay]:
        """Replay under each of several settings; returns the results in their order.

        Args:
            choices: the settings.
            otherwise: whether what no recording tells turns out otherwise; see `replay`.
            meanwhile: what this process does before it takes a share.
            done: called now and then with the number of replays that have finished.

        Raises:
            GpumemError: a process failed.
        """
        results: dict[int, Replay] = {}
        tasks = deque((number, (choice, otherwise)) for number, choice in enumerate(choices))
        others = min(self.jobs, len(choices) + (meanwhile is not None)) - 1
        while len(self._children) < others:
            self._children.append(_Child(self.trace, self.conditions))
        for child in self._children:
            child.work(tasks, results)
        if meanwhile is not None:
            meanwhile()
        tell = done if done is not None else lambda _: None
        while (task := _next(tasks)) is not None:
            results[task[0]] = _replay(self.trace, self.conditions, task[1])
            tell(len(results))
        for child in self._children:
            while child.busy():
                tell(len(results))
            child.check()
        tell(len(results))
        return [results[index] for index in range(len(choices))]


class _Child:
    """One process, and the thread that hands it one piece of work after the other."""

    def __init__(self, trace: Trace, conditions: Conditions) -> None:
        root = str(Path(__file__).resolve().parents[2])
        path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
        self._process = subprocess.Popen(  # noqa: S603 - our own module
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
            cwd=root,  # Python looks for modules there first: not in the user's folder, where any `pickle.py` may lie
        )
        self._first: tuple[Trace, Conditions] | None = (trace, conditions)
        self._thread: threading.Thread | None = None
        self._failure: str | None = None

    def work(self, tasks: deque[tuple[int, Work]], results: dict[int, Replay]) -> None:
        """Take tasks and leave results until none is left, in the background."""
        self._thread = threading.Thread(target=self._serve, args=(tasks, results), daemon=True)
        self._thread.start()

    def busy(self) -> bool:
        """Wait a moment; true while it still works."""
        assert self._thread is not None  # noqa: S101 - it was given work
        self._thread.join(_GLANCE_S)
        return self._thread.is_alive()

    def check(self) -> None:
        """Raise what went wrong, if anything did.

        Raises:
            GpumemError: the process has ended before its work.
        """
        if self._failure is not None:
            raise GpumemError(f"a replay process failed: {self._failure}; try with one process")

    def end(self) -> None:
        """End the process, whatever it is doing."""
        self._process.kill()
        if self._thread is not None:
            self._thread.join()
        self._process.communicate()

    def _serve(self, tasks: deque[tuple[int, Work]], results: dict[int, Replay]) -> None:
        sink, source = self._process.stdin, self._process.stdout
        assert sink is not None  # noqa: S101 - pipes were asked for
        assert source is not None  # noqa: S101
        try:
            if self._first is not None:
                pickle.dump(self._first, sink, protocol=pickle.HIGHEST_PROTOCOL)
                self._first = None
            while (task := _next(tasks)) is not None:
                pickle.dump(task[1], sink, protocol=pickle.HIGHEST_PROTOCOL)
                sink.flush()
                results[task[0]] = pickle.load(source)  # noqa: S301 - from our own child
        except (OSError, EOFError, pickle.UnpicklingError) as error:
            assert self._process.stderr is not None  # noqa: S101
            self._process.kill()
            last = self._process.stderr.read().decode(errors="replace").strip().splitlines()[-1:]
            self._failure = (last[0] if last else repr(error))[:200]


def _next(tasks: deque[tuple[int, Work]]) -> tuple[int, Work] | None:
    """Take the next task, whichever process it is for; `None` when there are no more."""
    try:
        return tasks.popleft()
    except IndexError:
        return None


def _replay(trace: Trace, conditions: Conditions, work: Work) -> Replay:
    return replay(trace, work[0], conditions, otherwise=work[1])


def main() -> None:
    """Do the work that comes on standard input, and write each result to standard output."""
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    trace, conditions = pickle.load(source)  # noqa: S301 - from our own parent
    while (work := _receive(source)) is not None:
        pickle.dump(_replay(trace, conditions, work), sink, protocol=pickle.HIGHEST_PROTOCOL)
        sink.flush()


def _receive(source: IO[bytes]) -> Work | None:
    try:
        return pickle.load(source)  # type: ignore[no-any-return]  # noqa: S301 - from our own parent
    except EOFError:
        return None  # there is no more work


if __name__ == "__main__":
    main()
