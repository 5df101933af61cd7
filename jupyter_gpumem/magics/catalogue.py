"""Every magic on one page: its options, its help, and where its work is done.

What does the work is imported when a magic is first used, so that `%load_ext` takes milliseconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from .options import Options, cores, file_names, index, positive, size, variable

if TYPE_CHECKING:
    from collections.abc import Iterable


class Magic(NamedTuple):
    """A magic: its options, and what it does as a line and, if it can be one, as a cell.

    `line` and `cell` are named as `module:function` of this package. The line's function gets the session, the options
    and the caller's local names; the cell's gets the session, the options and the body.
    """

    options: Options
    line: str
    cell: str | None = None


def _device_names() -> Iterable[str]:
    from jupyter_gpumem import devices

    ready = list(devices.ready_devices())
    return [str(index) for _, index in ready] + [f"{backend.kind}:{index}" for backend, index in ready]


def _card_names() -> Iterable[str]:
    from jupyter_gpumem.virtual.cards import card_names

    return card_names()


EXAMPLES_OF_SETTINGS = (
    "expandable_segments:True",
    "garbage_collection_threshold:0.8",
    "max_split_size_mb:128",
    "roundup_power2_divisions:8",
)
"""What Tab offers where allocator settings are expected."""

GPUMEM = Magic(
    Options(
        "gpumem",
        "Measure what code does to GPU memory: its exact peak, what it leaves behind, what it only needed meanwhile.\n"
        "Without a statement: what every device holds now, in layers that add up to the card.\n\n"
        "The code runs as it would without this magic, and torch.cuda.max_memory_allocated() and its relatives keep\n"
        "saying what they would have said.",
        usage=("%gpumem", "%gpumem [options] STATEMENT", "%%gpumem [options]"),
        statement=True,
        examples="examples:\n"
        "  %gpumem                        the status of all devices\n"
        "  %gpumem y = model(x)           one statement\n"
        "  r = %gpumem -o model(x)        keep the result: r[0].peak_allocated, r.to_dict()\n"
        "  %%gpumem -v cost               the cell; the result goes to the variable `cost`\n"
        "  %%gpumem -r 3                  the cell three times: first-use costs against the steady state",
    )
    .option(
        "-d",
        "--device",
        action="append",
        metavar="N",
        complete=_device_names,
        help="measure this device (0 or cuda:0); repeatable; default: all, shown when they changed",
    )
    .option("-q", "--quiet", action="store_true", help="show no report")
    .option("-o", "--output", action="store_true", help="return the result object instead of showing it (line only)")
    .option("-v", "--variable", metavar="NAME", type=variable, help="store the result object in this variable")
    .option("-r", "--repeat", metavar="N", type=positive, help="run N times and show each run, not the value")
    .finish(),
    "gpumem:line",
    "gpumem:cell",
)

GPUMEM_AUTO = Magic(
    Options(
        "gpumem_auto",
        "Measure every cell and show one line below each. Without an argument: say whether that is on.",
        usage=("%gpumem_auto [on|off] [options]",),
        examples="examples:\n  %gpumem_auto on\n  %gpumem_auto on --min 1MiB     no line for cells that moved less",
    )
    .option("state", nargs="?", choices=("on", "off"), help="switch it on or off")
    .option("-d", "--device", action="append", metavar="N", complete=_device_names, help="measure this device only")
    .option("--min", type=size, default=0, metavar="SIZE", help="show no line for cells that moved less than this")
    .finish(),
    "gpumem:auto",
)

GPUMEM_RECORD = Magic(
    Options(
        "gpumem_record",
        "Record what the allocator does, beside whatever you record yourself. The recording is PyTorch's own snapshot\n"
        "format: its viewer reads it too. stop keeps it for %gpumem_whatif, until the next start.",
        usage=("%gpumem_record [start|stop|status] [options]", "%gpumem_record save FILE"),
        examples="examples:\n"
        "  %gpumem_record start\n"
        "  %gpumem_record save run.pickle.gz    packed, because of the name; also while it runs",
    )
    .option("action", nargs="?", choices=("start", "stop", "save", "status"), default="status", help="what to do")
    .option("file", nargs="?", metavar="FILE", complete=file_names, help="where to save it")
    .option("--max-entries", type=positive, default=1_000_000, metavar="N", help="keep the newest N events (1,000,000)")
    .option("--no-stacks", action="store_true", help="do not record where allocations are made: 1 us less for each")
    .finish(),
    "whatif:record",
)

GPUMEM_WHATIF = Magic(
    Options(
        "gpumem_whatif",
        "Replay a recording under other allocator settings or on another card, and say which would help and why.\n"
        "Without a file: the recording that runs, or that was stopped last. Without --set: a sensible set is tried,\n"
        "then what is near the best of it.",
        usage=("%gpumem_whatif [FILE] [options]",),
        examples="examples:\n"
        "  %gpumem_whatif\n"
        "  %gpumem_whatif run.pickle.gz --set expandable_segments:True --set max_split_size_mb:128\n"
        "  %gpumem_whatif run.pickle.gz --memory 24GiB     would it fit on a smaller card?",
    )
    .option("file", nargs="?", metavar="FILE", complete=file_names, help="a recording, as %%gpumem_record saves it")
    .option(
        "--set",
        action="append",
        dest="settings",
        metavar="KEY:VALUE,...",
        complete=lambda: EXAMPLES_OF_SETTINGS,
        help="settings to try; repeatable",
    )
    .option("--memory", metavar="SIZE", help="the card to assume, such as 24GiB; default: the recorded one")
    .option("--limit", metavar="SIZE|off", default="recorded", help="the cap on reserved memory; default: the recorded")
    .option("-d", "--device", type=index, metavar="N", help="which device; default: the one with the most events")
    .option("-j", "--jobs", type=positive, default=cores(), metavar="N", help="how many processes (one for each core)")
    .option("-o", "--output", action="store_true", help="return the result object instead of showing it")
    .finish(),
    "whatif:compare",
)

GPUMEM_VIRTUAL = Magic(
    Options(
        "gpumem_virtual",
        "Give this session a virtual GPU: a CUDA device that computes nothing and costs nothing, whose memory behaves\n"
        "as a real one's. The same code runs, every magic works on it, and beyond its memory PyTorch's own error is\n"
        "raised. Without an argument: what is on, and where a value had to be assumed.",
        usage=("%gpumem_virtual [on [--gpu NAME|SIZE]...|off]",),
        examples="examples:\n"
        "  %gpumem_virtual on                       an A100-80GB\n"
        "  %gpumem_virtual on --gpu T4              case and separators do not matter: rtx4090, a100 80gb\n"
        "  %gpumem_virtual on --gpu 2xA100-40GB     two of them\n"
        "  %gpumem_virtual on --gpu 24GiB           any card of that size",
    )
    .option("state", nargs="?", choices=("on", "off"), help="switch it on or off")
    .option(
        "--gpu",
        action="append",
        metavar="NAME|SIZE",
        complete=_card_names,
        help="the card; repeatable, each is one more; default: A100-80GB",
    )
    .finish(),
    "virtual:switch",
)

GPUMEM_PREDICT = Magic(
    Options(
        "gpumem_predict",
        "Say what code would need on a GPU and on which cards it would fit, without a GPU and without a trace.\n"
        "It runs on a virtual GPU as if the memory had no end: nothing is computed, what it prints is shown only if\n"
        "it fails, and the notebook and the files it writes with open() or torch.save() are as they were afterwards.\n"
        "Shell commands, the network and files that other libraries write are real.",
        usage=("%gpumem_predict [options] STATEMENT", "%%gpumem_predict [options]"),
        statement=True,
        examples="examples:\n"
        "  %%gpumem_predict                               all cards that are known\n"
        "  %%gpumem_predict --gpu T4 --gpu RTX-4090       as on these two\n"
        "  %%gpumem_predict --gpu 24GiB --batch batch     and the largest `batch` that fits\n"
        "  %%gpumem_predict -v need                       the result goes to the variable `need`",
    )
    .option(
        "--gpu",
        action="append",
        metavar="NAME|SIZE",
        complete=_card_names,
        help="the card; repeatable, each is a row of its own; 2xA100-40GB is a machine of two; default: all",
    )
    .option("--batch", metavar="NAME", type=variable, help="find the largest value of this variable that fits")
    .option("--runs", metavar="N", type=positive, default=16, help="run at most N times for that (16)")
    .option("-q", "--quiet", action="store_true", help="show no report")
    .option("-o", "--output", action="store_true", help="return the result object instead of showing it (line only)")
    .option("-v", "--variable", metavar="NAME", type=variable, help="store the result object in this variable")
    .finish(),
    "predict:line",
    "predict:cell",
)

MAGICS = (GPUMEM, GPUMEM_AUTO, GPUMEM_PREDICT, GPUMEM_RECORD, GPUMEM_VIRTUAL, GPUMEM_WHATIF)
