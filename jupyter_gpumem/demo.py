"""A recording to look at where there is no GPU: training on batches of growing and changing length, by the model alone.

The lengths are the point. Every longer batch needs activations that fit into none of the segments that shorter ones
left in the cache, which is where expandable segments help.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from .allocator.tape import TapedAllocator
from .devices import counters
from .fragments import fragmentation
from .recording import Recording
from .records import Device, DeviceStatus, DriverMemory, Status
from .snapshots import KEY
from .units import GiB

_CARD = Device("cuda", 0, "a made-up card", 24 * GiB)
_LAYERS, _WIDTH, _BATCH = 12, 1024, 16
_STEPS = 60
_SHORTEST, _LONGEST = 64, 768
_FLOAT = 4


@dataclass(frozen=True, slots=True)
class Demo:
    """The recording, and what `jupyter_gpumem.status()` would have said at its end."""

    recording: Recording
    status: Status


def make_demo() -> Demo:
    """Return the same demo every time: AdamW on a small transformer, 60 steps, each of another sequence length."""
    tape = TapedAllocator(total_memory=_CARD.total)
    _train(tape)
    extra = {"device_name": _CARD.name, "total_memory": _CARD.total, "memory_fraction": 1.0, "alloc_conf": ""}
    return Demo(Recording(tape.snapshot() | {KEY: extra}, "demo"), _status(tape))


def _train(tape: TapedAllocator) -> None:
    chance = random.Random(7)  # noqa: S311 - the same numbers every time
    shapes = [size for _ in range(_LAYERS) for size in (4 * _WIDTH**2, 4 * _WIDTH**2, 4 * _WIDTH**2, _WIDTH)]
    weights = [tape.malloc(count * _FLOAT) for count in shapes]
    moments: list[int] = []
    for step in range(_STEPS):
        # The longest batch so far gets longer as training goes on.
        length = chance.randint(_SHORTEST, _SHORTEST + (_LONGEST - _SHORTEST) * (step + 1) // _STEPS)
        gradients = _forward_and_backward(tape, length, shapes)
        if not moments:
            moments = [tape.malloc(count * _FLOAT) for count in shapes for _ in range(2)]
        for address in gradients:
            tape.free(address)
    assert len(weights) == len(shapes)  # noqa: S101 - they live on


def _forward_and_backward(tape: TapedAllocator, length: int, shapes: list[int]) -> list[int]:
    tokens = _BATCH * length
    saved = []
    for _ in range(_LAYERS):
        kept = [tape.malloc(tokens * _WIDTH * _FLOAT) for _ in range(4)]
        kept.append(tape.malloc(tokens * 4 * _WIDTH * _FLOAT))
        scratch = tape.malloc(_BATCH * 16 * length * length * _FLOAT)
        kept.append(tape.malloc(_BATCH * 16 * length * length * _FLOAT))
        tape.free(scratch)
        saved.append(kept)
    gradients = []
    for layer in range(_LAYERS - 1, -1, -1):
        flowing = tape.malloc(tokens * _WIDTH * _FLOAT)
        gradients += [tape.malloc(count * _FLOAT) for count in shapes[4 * layer : 4 * layer + 4]]
        for address in [*saved.pop()[::-1], flowing]:
            tape.free(address)
    return gradients


def _status(tape: TapedAllocator) -> Status:
    allocator = tape.allocator
    total, used = allocator.total_memory or 0, allocator.reserved
    driver = DriverMemory(total, used, total - used, used, "demo")  # it has no context, and nobody else
    lies = fragmentation(allocator.snapshot(), device_free=driver.free)
    return Status((DeviceStatus(_CARD, counters(allocator.stats()), driver, lies),), {}, {})
