"""Every magic on one page: its options, its help, and where its work is done.

What does the work is imported when a magic is first used, so that `%load_ext` takes milliseconds.
"""

from __future__ import annotations

from typing import NamedTuple

from .completers import card_names, device_names, reservation_names
from .options import Options, cores, file, file_names, index, positive, ratio, settings, size, variable


class Magic(NamedTuple):
    """A magic: its options, and what it does as a line and, if it can be one, as a cell.

    `line` and `cell` are named as `module:function` of this package. The line's function gets the session, the options
    and the caller's local names; the cell's gets the session, the options and the body.
    """

    options: Options
    line: str
    cell: str | None = None


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
        complete=device_names,
        help="measure this device (0 or cuda:0); repeatable; default: all, shown when they changed",
    )
    .result(cell=True)
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
        examples="examples:\n  %gpumem_auto on\n  %gpumem_auto on --min 1MiB     no line for cells that moved less\n"
        "  %gpumem_auto --free-errors on  after a cell that fails, let go of the error's frames at once",
    )
    .option("state", nargs="?", choices=("on", "off"), help="switch it on or off")
    .option("-d", "--device", action="append", metavar="N", complete=device_names, help="measure this device only")
    .option("--min", type=size, default=0, metavar="SIZE", help="show no line for cells that moved less than this")
    .option(
        "--free-errors",
        choices=("on", "off"),
        help="release the frames of a cell that failed, as %%gpumem_free --errors",
    )
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
    .option("file", nargs="?", type=file, metavar="FILE", complete=file_names, help="where to save it")
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
    .option(
        "file",
        nargs="?",
        type=file,
        metavar="FILE",
        complete=file_names,
        help="a recording, as %%gpumem_record saves it",
    )
    .option(
        "--set",
        action="append",
        dest="settings",
        metavar="KEY:VALUE,...",
        complete=settings,
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

GPUMEM_PANEL = Magic(
    Options(
        "gpumem_panel",
        "Show the live panel: what the allocator holds, also while a cell runs, and a map of every block.\n"
        "In JupyterLab it docks in the right sidebar, if jupyter_gpumem[sidebar] is installed. There is one panel:\n"
        "running this again shows the same one here.",
        usage=("%gpumem_panel [on|off] [--inline]",),
        examples="examples:\n  %gpumem_panel\n  %gpumem_panel on --inline     below the cell only",
    )
    .option("state", nargs="?", choices=("on", "off"), default="on", help="show it or close it")
    .option("--inline", action="store_true", help="never use the sidebar")
    .finish(),
    "panel:panel",
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
        complete=card_names,
        help="the card; repeatable, each is one more; default: A100-80GB",
    )
    .finish(),
    "virtual:switch",
)

GPUMEM_WHO = Magic(
    Options(
        "gpumem_who",
        "Say who holds GPU memory: variables and what is nested in them, outputs, the last error's frames, autograd\n"
        "graphs, hooks, garbage, workspaces, and what no Python object shows. Every allocated byte is counted once.\n"
        "With a name: what keeps the memory of that name alive.",
        usage=("%gpumem_who [NAME] [options]",),
        examples="examples:\n"
        "  %gpumem_who\n"
        "  %gpumem_who batch        a variable, or a local name of the function that failed",
    )
    .option("name", nargs="?", metavar="NAME", help="a variable, or a local name of the last error's frames")
    .option("-d", "--device", action="append", metavar="N", complete=device_names, help="this device only; repeatable")
    .option("--budget", type=positive, default=1_000_000, metavar="N", help="look at N objects at most (1,000,000)")
    .result(stored=True)
    .finish(),
    "holding:who",
)

GPUMEM_FREE = Magic(
    Options(
        "gpumem_free",
        "Release what the notebook itself holds, and say what each step gave back: the last error's frames, displayed\n"
        "outputs that hold GPU memory, garbage in reference cycles, then the unused cache. Your variables are never\n"
        "touched. Without an option: all steps. Afterwards %debug and %tb have no error to show.",
        usage=("%gpumem_free [options]",),
        examples="examples:\n  %gpumem_free\n  %gpumem_free --dry-run       only say what would come back",
    )
    .option("--errors", action="store_true", help="let go of the last error")
    .option("--outputs", action="store_true", help="forget displayed values that hold GPU memory")
    .option("--cycles", action="store_true", help="run the cycle collector")
    .option("--dry-run", action="store_true", help="do nothing, and say what would come back")
    .result(stored=True)
    .finish(),
    "holding:let_go",
)

GPUMEM_OOM = Magic(
    Options(
        "gpumem_oom",
        "Explain the last out-of-memory error: the reason in one sentence, the numbers it rests on, and what would\n"
        "help here. The same is shown once by itself, below the error.",
        usage=("%gpumem_oom [options]",),
    )
    .result(stored=True)
    .finish(),
    "errors:explain",
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
        complete=card_names,
        help="the card; repeatable, each is a row of its own; 2xA100-40GB is a machine of two; default: all",
    )
    .option("--batch", metavar="NAME", type=variable, help="find the largest value of this variable that fits")
    .option("--runs", metavar="N", type=positive, default=16, help="run at most N times for that (16)")
    .result(cell=True)
    .finish(),
    "predict:line",
    "predict:cell",
)

GPUMEM_CONFIG = Magic(
    Options(
        "gpumem_config",
        "Show or change the settings of PyTorch's allocator, for the whole process and from now on.\n"
        "What is not named keeps its value; KEY:default takes a key back to PyTorch's default. A change is checked,\n"
        "read back, and made as a whole or not at all.",
        usage=("%gpumem_config [KEY:VALUE,...] [options]",),
        examples="examples:\n"
        "  %gpumem_config                             what is in force, and where it comes from\n"
        "  %gpumem_config expandable_segments:True\n"
        "  %gpumem_config roundup_power2_divisions:[256:1,512:2,>:8],max_split_size_mb:default\n"
        "  %gpumem_config --undo                      take the latest change back",
    )
    .option("settings", nargs="*", metavar="KEY:VALUE", complete=settings, help="settings, separated by commas")
    .option("--undo", action="store_true", help="take the latest change back; repeatable")
    .option("--reset", action="store_true", help="go back to what the process started with")
    .option("--force", action="store_true", help="also make a change that is refused as unsafe or without effect")
    .result()
    .finish(),
    "control:config",
)

GPUMEM_EMPTY = Magic(
    Options(
        "gpumem_empty",
        "Give unused cached memory back to the driver, and say how much, and why the rest stays.\n"
        "Works on every device the process uses, and waits for their work.",
        usage=("%gpumem_empty [options]",),
    )
    .option("--workspaces", action="store_true", help="also let go of the cuBLAS workspaces")
    .result()
    .finish(),
    "control:empty",
)

GPUMEM_RESERVE = Magic(
    Options(
        "gpumem_reserve",
        "Put memory aside: into PyTorch's cache, where later tensors find it, or held as a guard band.\n"
        "Without a size: what is put aside.",
        usage=("%gpumem_reserve SIZE [options]", "%gpumem_reserve --release [NAME]"),
        examples="examples:\n"
        "  %gpumem_reserve 20GiB                   later tensors are cut out of it\n"
        "  %gpumem_reserve 80%free -d 0            80 % of what is free; 80% alone is of the whole card\n"
        "  %gpumem_reserve 2GiB --hold --name spare\n"
        "  %gpumem_reserve --release spare         to the cache; without a name: everything",
    )
    .option(
        "size",
        nargs="?",
        complete=lambda word: ("512MiB", "1GiB", "80%", "80%free"),  # noqa: ARG005
        help="512MiB, 80%% (of the card) or 80%%free (of what is free)",
    )
    .option("--hold", action="store_true", help="keep it allocated until it is released: nothing else gets it")
    .option("--name", metavar="NAME", help="what to release it by; default: reserve-1, ...")
    .option(
        "--release",
        nargs="?",
        const=True,
        metavar="NAME",
        complete=reservation_names,
        help="give it to the cache again",
    )
    .option(
        "-d",
        "--device",
        action="append",  # so that a second one is refused, and not silently the only one
        metavar="N",
        complete=device_names,
        help="which device; needed if several are in use",
    )
    .result()
    .finish(),
    "control:reserve_memory",
)

GPUMEM_LIMIT = Magic(
    Options(
        "gpumem_limit",
        "Cap what this process may reserve on a card. Without a size: the cap in force.\n"
        "It protects the others on the card: PyTorch gives cached memory back, or fails, rather than go above it.",
        usage=("%gpumem_limit [SIZE|PERCENT|off] [options]",),
        examples="examples:\n  %gpumem_limit 20GiB\n  %gpumem_limit 80% -d 1\n  %gpumem_limit off",
    )
    .option(
        "size",
        nargs="?",
        complete=lambda word: ("off", "20GiB", "80%"),  # noqa: ARG005
        help="20GiB, 80%% (of the card) or off",
    )
    .option(
        "-d",
        "--device",
        action="append",
        metavar="N",
        complete=device_names,
        help="cap this device; repeatable; default: all in use",
    )
    .result()
    .finish(),
    "control:cap",
)

GPUMEM_AUDIT = Magic(
    Options(
        "gpumem_audit",
        "Say how badly the memory of each card is fragmented: by pool and stream, against a threshold, and what helps.",
        usage=("%gpumem_audit [options]",),
        examples="examples:\n"
        "  %gpumem_audit\n"
        "  %gpumem_audit --threshold 0.3 --compact     mend what can be mended now",
    )
    .option("--threshold", type=ratio, default=0.45, metavar="R", help="the unallocated ratio that is too much (0.45)")
    .option("--compact", action="store_true", help="collect reference cycles and give unused segments back")
    .option(
        "-d",
        "--device",
        action="append",
        metavar="N",
        complete=device_names,
        help="audit this device; repeatable; default: all in use",
    )
    .result()
    .finish(),
    "control:audit_memory",
)

MAGICS = (
    GPUMEM,
    GPUMEM_AUTO,
    GPUMEM_PREDICT,
    GPUMEM_RECORD,
    GPUMEM_WHATIF,
    GPUMEM_VIRTUAL,
    GPUMEM_CONFIG,
    GPUMEM_EMPTY,
    GPUMEM_RESERVE,
    GPUMEM_LIMIT,
    GPUMEM_AUDIT,
    GPUMEM_WHO,
    GPUMEM_FREE,
    GPUMEM_OOM,
    GPUMEM_PANEL,
)
