"""The command line as the tests use it: what a command left, and the command that is installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from compared_recordings import DATA

import jupyter_gpumem

RESNET = str(DATA / "resnet50-default.pickle.gz")
CAPPED = str(DATA / "encoder-default-cap4.3-oom.pickle.gz")
SCRIPT = Path(sys.executable).with_name("jupyter-gpumem")


class Call:
    """What a command left: its exit code and what it printed."""

    def __init__(self, code, out, err):
        self.code, self.out, self.err = code, out, err

    @property
    def json(self):
        """What it printed, as JSON."""
        return json.loads(self.out)


def installed(*arguments, **options):
    """Run the installed command in a process of its own."""
    package = str(Path(jupyter_gpumem.__file__).parents[1])
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH")))),
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONIOENCODING": "utf-8",
    }
    found = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    done = subprocess.run(
        [SCRIPT, *arguments], env=environment, encoding="utf-8", stdin=subprocess.DEVNULL, check=False, **found
    )
    return Call(done.returncode, done.stdout, done.stderr)
