"""Errors of the user's code that pass through functions of this package: IPython shows the user's frames and no others.

What it hides are frames that ask for it; each stands in the traceback once.
"""

from __future__ import annotations

import asyncio
import traceback
from pathlib import Path

import pytest

import jupyter_gpumem as gm

pytest.importorskip("torch")

OURS = str(Path(gm.__file__).parent)


def work(*_):
    raise ValueError("of the user's")


async def work_later(*_):
    raise ValueError("of the user's")


def handed_on(_attempt):
    raise ValueError("of the user's")


def out_of_memory():
    raise MemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


USES = {
    "retried": lambda: gm.retry_on_oom(work)(),
    "retried call": lambda: gm.retry_on_oom().call(work),
    "retried later": lambda: asyncio.run(gm.retry_on_oom(work_later)()),
    "told of a retry": lambda: gm.retry_on_oom(on_retry=handed_on).call(out_of_memory),
    "measured": lambda: gm.measure(work)(),
    "measured later": lambda: asyncio.run(gm.measure(work_later)()),
    "searched": lambda: gm.find_batch_size(work),
    "searched in halves": lambda: gm.find_batch_size(lambda n: work() if n < 8 else out_of_memory(), 8, predict=False),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_only_frames_of_the_user_are_shown(virtual, use):
    """Nothing of ours stands between the line that was written and the line that failed."""
    with pytest.raises(ValueError, match="of the user's") as caught:
        use()
    frames = [frame for frame, _ in traceback.walk_tb(caught.value.__traceback__)]
    ours = [frame for frame in frames if frame.f_code.co_filename.startswith(OURS)]
    assert ours
    assert [frame.f_code.co_name for frame in ours if not frame.f_locals.get("__tracebackhide__")] == []
    assert len(set(map(id, frames))) == len(frames)
