"""`jupyter gpumem`: the status of the cards, and recordings of any training script, in a terminal.

Exit codes: 0 for success, 1 when nothing could be shown, 2 for what was asked in a wrong way or cannot be read.
"""

from __future__ import annotations

import argparse
import dataclasses
import io
import json
import os
import sys
from importlib import metadata
from typing import TYPE_CHECKING, Any, NoReturn

from . import report
from .comparison import whatif
from .demo import make_demo
from .errors import GpumemError, RecordingError
from .overview import status
from .recording import read_recording
from .report.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .recording import Recording
    from .records import Record, WhatIf


_NO_CARD = "the driver shows no GPU on this machine; try nvidia-smi"
_DEMO = (
    "A made-up training run: 60 steps on batches of changing length, played by the allocator model. No GPU was used.",
    "For a run of your own, on its machine:",
    "in a notebook: %load_ext jupyter_gpumem, then %gpumem_record start, train, %gpumem_record save run.pickle.gz",
    'in a script: with jupyter_gpumem.record("run.pickle.gz"): train()',
    "then anywhere: jupyter gpumem whatif run.pickle.gz",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without Unicode gets a `?`, not a traceback
    options = _parser().parse_args(arguments)
    try:
        code, text = options.run(options)
        return code if _printed(text) else 1
    except GpumemError as error:
        print(report.printable(f"jupyter gpumem: {error}"), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def _printed(text: str) -> bool:
    """Print what a command has to say; false when nobody takes it, which is said unless it was a reader who left."""
    if sys.stdout is None:  # closed by whoever started us
        print("jupyter gpumem: the output cannot be written: it is closed", file=sys.stderr)
        return False
    try:
        print(text, flush=True)
    except OSError as error:
        if not isinstance(error, BrokenPipeError):  # `... | head`
            print(f"jupyter gpumem: the output cannot be written: {error.strerror}", file=sys.stderr)
        # What is left must go somewhere when Python ends, or Python complains.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return False
    return True


class _Parser(argparse.ArgumentParser):
    """Refuses in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, report.printable(f"{self.prog}: {message}; {self.prog} --help lists what there is") + "\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="jupyter gpumem", description="PyTorch GPU memory, in a terminal.")
    parser.add_argument("--version", action="version", version=f"jupyter_gpumem {metadata.version('jupyter_gpumem')}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    command = commands.add_parser("status", help="what every card holds now, as its driver sees it")
    command.set_defaults(run=_status)
    _add_json(command)

    command = commands.add_parser(
        "whatif",
        help="replay a recording under other allocator settings or on another card",
        description="Replay a recording (%gpumem_record save, or torch.cuda.memory._dump_snapshot) under other "
        "allocator settings or on another card, and say which would help and why.",
    )
    _add_recording(command)
    command.add_argument(
        "--set",
        action="append",
        dest="settings",
        metavar="KEY:VALUE,...",
        help="settings to try; repeatable; default: a sensible set, then what is near the best of it",
    )
    command.set_defaults(run=_whatif)

    command = commands.add_parser("report", help="what a recording holds, and what other settings would do to it")
    _add_recording(command)
    command.set_defaults(run=_report, settings=None)

    command = commands.add_parser(
        "demo",
        help="status, report and what-if of a made-up training run, without a GPU",
        description="Show what status, report and whatif say about a made-up training run on batches of changing "
        "length. The allocator model makes it up: no GPU and no PyTorch is needed.",
    )
    _add_jobs(command)
    command.set_defaults(run=_demo)
    return parser


def _add_recording(command: argparse.ArgumentParser) -> None:
    command.add_argument("file", metavar="FILE", help="a recording")
    command.add_argument(
        "--memory",
        metavar="SIZE",
        help="the card to assume, such as 24GiB; default: the recorded one (JSON: assumed_memory; the recorded one is "
        "total_memory)",
    )
    command.add_argument(
        "--limit",
        metavar="SIZE|off",
        default="recorded",
        help="the cap on reserved memory to assume; default: the recorded one (JSON: assumed_limit; the recorded one "
        "is limit)",
    )
    command.add_argument("-d", "--device", type=int, metavar="N", help="which device; default: that with most events")
    _add_jobs(command)


def _add_jobs(command: argparse.ArgumentParser) -> None:
    command.add_argument("-j", "--jobs", type=int, default=1, metavar="N", help="how many processes work at once")
    _add_json(command)


def _add_json(command: argparse.ArgumentParser) -> None:
    command.add_argument("--json", action="store_true", help="print JSON: sizes in bytes, missing ones as null")


def _shown(record: Record, *, as_json: bool) -> str:
    return json.dumps(record.to_dict(), indent=1) if as_json else _text(report.sheets(record))


def _text(sheets: list[report.Sheet]) -> str:
    """Return sheets as text, no wider than the terminal if there is one."""
    return report.to_text(sheets, report.terminal_width())


def _status(options: argparse.Namespace) -> tuple[int, str]:
    found = status()
    if all(one.counters is None for one in found.devices):
        # What this process has done with a GPU says nothing: those that were asked about are others.
        missing = None if found.devices else _NO_CARD
        found = dataclasses.replace(found, missing=missing)
    return 0 if found.devices else 1, _shown(found, as_json=options.json)


def _report(options: argparse.Namespace) -> tuple[int, str]:
    recording = read_recording(options.file)
    if not recording.devices:
        raise RecordingError(f"{recording.source} holds neither segments nor events; record while memory is in use")
    if not any(map(recording.events, recording.devices)):  # a snapshot of the memory alone: nothing to replay
        about: dict[str, Any] = {"recording": recording.summary().to_dict(), "check": None, "results": []}
        return 0, json.dumps(about, indent=1) if options.json else _text(report.recording_sheets(recording))
    result = _compared(recording, options)
    if options.json:
        return 0, json.dumps(result.to_dict(), indent=1)
    return 0, _text([*report.recording_sheets(recording), *report.whatif_sheets(result)])


def _demo(options: argparse.Namespace) -> tuple[int, str]:
    demo = make_demo()
    with Progress.on_terminal(sys.stderr) as progress:
        result = whatif(demo.recording, jobs=options.jobs, progress=progress)
    if options.json:
        return 0, json.dumps({"status": demo.status.to_dict(), **result.to_dict()}, indent=1)
    sheets = [
        report.Sheet((_DEMO[0],)),
        *report.sheets(demo.status),
        *report.recording_sheets(demo.recording),
        *report.sheets(result),
        report.Sheet(_DEMO[1:2], notes=_DEMO[2:]),
    ]
    return 0, _text(sheets)


def _whatif(options: argparse.Namespace) -> tuple[int, str]:
    return 0, _shown(_compared(read_recording(options.file), options), as_json=options.json)


def _compared(recording: Recording, options: argparse.Namespace) -> WhatIf:
    """Run the replays, with a progress bar if someone looks."""
    with Progress.on_terminal(sys.stderr) as progress:
        return whatif(
            recording,
            options.settings,
            memory=options.memory,
            limit=options.limit,
            jobs=options.jobs,
            device=options.device,
            progress=progress,
        )


if __name__ == "__main__":
    sys.exit(main())
