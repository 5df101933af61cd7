"""How fast recordings are read and replayed, and how much memory they take: writes `results/whatif-speed.json`.

    python benchmarks/whatif.py [EVENTS]

The recording of a million events is made from real ones: the encoder's training steps, repeated with the fields that
PyTorch 2.11 writes. Each time is the best of several runs. What one process does is measured in CPU time, so that other
work on the machine does not count; two processes in wall time. Memory is the peak of a process of its own on Linux.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import pickle
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from itertools import cycle
from pathlib import Path

from jupyter_gpumem.allocator.check import check
from jupyter_gpumem.allocator.replay import Conditions, replay
from jupyter_gpumem.allocator.settings import AllocatorSettings
from jupyter_gpumem.allocator.worker import Replays
from jupyter_gpumem.comparison import whatif
from jupyter_gpumem.recording import Recording, read_recording

HERE = Path(__file__).parent
DATA = HERE.parent / "tests" / "data" / "recordings"
EIGHT = (
    "",
    "expandable_segments:True",
    "max_split_size_mb:128",
    "max_split_size_mb:512",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:8",
    "expandable_segments:True,roundup_power2_divisions:8",
    "large_segment_size_mb:64",
)


def best(function, runs=3, clock=time.process_time):
    """Return the shortest time of several runs, and what the last one returned."""
    times, result = [], None
    for _ in range(runs):
        result = None  # what the last run made is not in the way of the next
        begin = clock()
        result = function()
        times.append(clock() - begin)
    return min(times), result


def long_trace(count):
    """Return so many events: a real trace, over and over, as far as it leaves nothing behind."""
    source = read_recording(DATA / "encoder-default.pickle.gz").events(0)
    events, live, skip = [], set(), set()
    for number, event in enumerate(cycle(source)):
        action, address = event["action"], event["addr"]
        if number >= len(source) and action.startswith("segment"):
            continue  # made once; from then on they are there
        if action == "alloc":
            if address in live:
                skip.add(address)
                continue
            live.add(address)
        elif action == "free_requested" and address in skip:
            continue
        elif action == "free_completed":
            if address in skip:
                skip.discard(address)
                continue
            live.discard(address)
        events.append(
            event | {"time_us": 1_700_000_000_000_000 + number, "compile_context": "N/A", "user_metadata": ""}
        )
        if len(events) == count:
            return events
    raise AssertionError


def memory_of_reading(path):
    """Return the bytes by which a process grows when it reads a recording."""
    code = (
        "import re, sys; from pathlib import Path; from jupyter_gpumem.recording import read_recording\n"
        "peak = lambda: re.search(r'VmHWM:\\s*(\\d+) kB', Path('/proc/self/status').read_text())[1]\n"
        "start = peak(); recording = read_recording(sys.argv[1]); read = peak()\n"
        "recording.trace(0); print(start, read, peak())"
    )
    output = subprocess.run([sys.executable, "-c", code, str(path)], check=True, capture_output=True, text=True).stdout
    start, read, prepared = map(int, output.split())
    return (read - start) * 1024, (prepared - start) * 1024


def replay_eight(trace, settings, jobs):
    with Replays(trace, Conditions(), jobs) as replays:
        return replays.run(settings)


def plain_load(path):
    with path.open("rb") as file:
        return pickle.load(file)


def main():
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "long.pickle"
        real = read_recording(DATA / "encoder-default.pickle.gz").snapshot
        path.write_bytes(pickle.dumps({**real, "segments": [], "device_traces": [long_trace(count)]}, protocol=4))
        del real
        pairs = []
        for _ in range(7):  # in turn: a machine that slows down slows both
            recording = None  # neither is in the memory that the other one is read into
            plain = best(lambda: plain_load(path), runs=1)[0]
            safe, recording = best(lambda: read_recording(path), runs=1)
            pairs.append((plain, safe))
        read_bytes, prepared_bytes = memory_of_reading(path)
        results["reading"] = {
            "events": count,
            "file_bytes": path.stat().st_size,
            "pickle_load_s": statistics.median(plain for plain, _ in pairs),
            "read_recording_s": statistics.median(safe for _, safe in pairs),
            "ratio": statistics.median(safe / plain for plain, safe in pairs),
            "bytes_per_event": read_bytes / count,
            "bytes_per_event_with_replay_prepared": prepared_bytes / count,
        }
    prepare, trace = best(lambda: recording.trace(0), runs=1)
    settings = [AllocatorSettings.parse(text) for text in EIGHT]
    one, _ = best(lambda: replay_eight(trace, settings, 1), runs=2)
    two, _ = best(lambda: replay_eight(trace, settings, 2), 3, time.perf_counter)
    checking, _ = best(lambda: check(trace, recording.circumstances(0)), runs=1)
    whole, _ = best(lambda: whatif(Recording(recording.snapshot), EIGHT, jobs=2), 1, time.perf_counter)
    results["eight_settings"] = {
        "events": trace.total,
        "allocations": len(trace.addresses),
        "prepare_s": prepare,
        "check_s": checking,
        "replays_one_process_s": one,
        "replays_two_processes_s": two,
        "whole_whatif_two_processes_s": whole,
    }
    results["events_per_second"] = {}
    for file in sorted(DATA.glob("*.gz")):
        source = read_recording(file)
        prepared = source.trace(0)
        speeds = results["events_per_second"][file.name.removesuffix(".pickle.gz")] = {}
        for text in EIGHT[:3]:
            seconds, _ = best(partial(replay, prepared, AllocatorSettings.parse(text), Conditions()), runs=5)
            speeds[text or "default"] = round(prepared.total / seconds)
    report = {
        "date": dt.datetime.now(dt.timezone.utc).date().isoformat(),
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "load_before": os.getloadavg()[0],
        "command": f"python benchmarks/whatif.py {count}",
        **results,
    }
    text = json.dumps(report, indent=2)
    (HERE / "results").mkdir(exist_ok=True)
    (HERE / "results" / "whatif-speed.json").write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
