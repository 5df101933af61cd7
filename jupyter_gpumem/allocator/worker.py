"""Replays of several settings at once, in processes of their own.

A child is started as `python -m jupyter_gpumem.allocator.worker` and handed its work on standard input. Neither forking
(a notebook kernel has threads, and a CUDA context) nor `multiprocessing` (which runs the user's script again) is used.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from jupyter_gpumem.errors import GpumemError

from .replay import Conditions, Replay, replay

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .settings import AllocatorSettings
    from .trace import Trace


def replay_all(
    trace: Trace,
    choices: Sequence[AllocatorSettings],
    conditions: Conditions,
    *,
    jobs: int = 1,
    done: Callable[[int], None] | None = None,
) -> list[Replay]:
    """Replay a trace under each of several settings; returns the results in their order.

    Args:
        trace: the operations.
        choices: the settings.
        conditions: the device.
        jobs: how many processes work at once, this one included.
        done: called with the number of replays that have finished since the last call.

    Raises:
        GpumemError: a process failed.
    """
    jobs = max(1, min(jobs, len(choices)))
    shares = [list(range(first, len(choices), jobs)) for first in range(jobs)]
    results: dict[int, Replay] = {}
    children: list[tuple[list[int], subprocess.Popen[bytes]]] = []
    try:
        for share in shares[1:]:
            children.append((share, _start()))  # noqa: PERF401 - those that have started are ended below
        for share, child in children:
            _feed(child, (trace, [choices[index] for index in share], conditions))
        for index in shares[0]:
            results[index] = replay(trace, choices[index], conditions)
            if done is not None:
                done(1)
        for share, child in children:
            output, errors = child.communicate()
            if child.returncode:
                last = errors.decode(errors="replace").strip().splitlines()[-1:]
                raise GpumemError(f"a replay process failed: {''.join(last)[:200]}; try with one process")
            results.update(zip(share, pickle.loads(output), strict=True))  # noqa: S301 - our own child
            if done is not None:
                done(len(share))
    finally:
        for _, child in children:
            if child.poll() is None:
                child.kill()
                child.communicate()
    return [results[index] for index in range(len(choices))]


def _start() -> subprocess.Popen[bytes]:
    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    return subprocess.Popen(  # noqa: S603 - our own module
        [sys.executable, "-m", __name__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
    )


def _feed(child: subprocess.Popen[bytes], work: tuple[Trace, list[AllocatorSettings], Conditions]) -> None:
    assert child.stdin is not None  # noqa: S101 - a pipe was asked for
    # A child that has ended already tells why by its exit status.
    with contextlib.suppress(BrokenPipeError), child.stdin as pipe:
        pickle.dump(work, pipe, protocol=pickle.HIGHEST_PROTOCOL)
    child.stdin = None  # so that `communicate` leaves it alone


def main() -> None:
    """Do the work that is on standard input, and write the results to standard output."""
    trace, choices, conditions = pickle.load(sys.stdin.buffer)  # noqa: S301 - from our own parent
    results = [replay(trace, settings, conditions) for settings in choices]
    pickle.dump(results, sys.stdout.buffer, protocol=pickle.HIGHEST_PROTOCOL)


if __name__ == "__main__":
    main()
