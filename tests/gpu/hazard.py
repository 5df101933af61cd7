"""A process to be thrown away: lowers `max_split_size_mb` below a split segment by PyTorch's own call, and sees.

Prints one JSON object for each step, so that something is known also when a step ends the process.
"""

from __future__ import annotations

import json
import sys

MiB = 2**20


def say(**facts):
    """Print what is known now."""
    print(json.dumps(facts), flush=True)


def main():
    """Make PyTorch look for room while a block above the new limit lies in a split segment."""
    import torch

    def take(mib):
        return torch.empty(mib * MiB, dtype=torch.uint8, device="cuda")

    def segments():
        found = torch.cuda.memory_snapshot()
        return [[s["total_size"] // MiB, len(s["blocks"])] for s in found if s["total_size"] > 2 * MiB]

    whole = take(1000)
    del whole
    head, live = take(600), take(100)
    live.fill_(7)
    del head
    torch.cuda.synchronize()
    say(step="segment of 1000 MiB: 600 free, 100 live, 300 free", segments=segments(), live_is=int(live[0]))
    text = "max_split_size_mb:128"
    if hasattr(torch._C, "_accelerator_setAllocatorSettings"):
        torch._C._accelerator_setAllocatorSettings(text)
    else:
        torch._C._cuda_cudaCachingAllocator_set_allocator_settings(text)
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(1100 * MiB / total)
    free = torch.cuda.mem_get_info()[0]
    try:
        new = take(500)
        say(
            step="request of 500 MiB under a cap of 1100 MiB",
            segments=segments(),
            returned_mib=(torch.cuda.mem_get_info()[0] - free) // MiB + 500,
            live_at=hex(live.data_ptr()),
            new_at=hex(new.data_ptr()),
        )
        new.fill_(1)
        torch.cuda.synchronize()
        say(step="the new tensor is written", live_is=int(live[0]), expected=7, intact=bool((live == 7).all()))
    except Exception as error:
        say(step="failed", error=f"{type(error).__name__}: {str(error).splitlines()[0]}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
