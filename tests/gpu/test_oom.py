"""On a real device, through a real kernel: one out-of-memory error for each reason, and advice that is true."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

from tests import oom_cases
from tests.holding_scenarios import PREPARE
from tests.kernel.client import prepared, value
from tests.oom_cases import CASES, FRAGMENTS, RETRY, compare_batch_sizes, provoke


@pytest.fixture(scope="module")
def kernel():
    """A kernel prepared to run out of memory."""
    with prepared(PREPARE + oom_cases.PREPARE) as one:
        yield one


@pytest.fixture
def neighbour():
    """Another process that holds most of the card."""
    code = "import torch; x = torch.empty(int(torch.cuda.mem_get_info()[1] * .7), dtype=torch.uint8, device='cuda')"
    with subprocess.Popen(
        [sys.executable, "-c", code + "; print('there', flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout.readline() == "there\n"
        yield process
        process.communicate("\n", timeout=60)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_explained(kernel, case, request):
    """The reason is right, it is shown once, and what is advised is what must be."""
    if case.verdict == "others":
        request.getfixturevalue("neighbour")
    found = provoke(kernel, case)
    assert found.right, found
    assert found.seen == "when it happened"


@pytest.mark.parametrize(("settings", "fits"), [("", False), ("expandable_segments:True", True)])
def test_the_recommended_setting_is_true(settings, fits):
    """In a fresh process the request fails without the setting, and succeeds with it."""
    assert runs_with(settings) is fits


def runs_with(settings: str) -> bool:
    """Whether the fragmenting code gets through in a process of its own with these settings."""
    prepare = PREPARE.replace("%load_ext jupyter_gpumem", "") + oom_cases.PREPARE
    code = textwrap.dedent(prepare) + "\n".join(FRAGMENTS)
    environment = os.environ | {"PYTORCH_CUDA_ALLOC_CONF": settings}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0 or "OutOfMemoryError" in done.stderr, done.stderr
    return done.returncode == 0


def test_retrying(kernel):
    """No attempt's peak is above that of the first."""
    assert kernel.run(RETRY).status == "ok"
    peaks = value(kernel, "peaks")
    assert len(peaks) == 3
    assert max(peaks) == peaks[0]


@pytest.mark.parametrize("name", ["activations", "training step", "quadratic"])
def test_batch_size(kernel, name):
    """The largest batch size is exactly the one that trying every size gives, with and without a prediction."""
    found = compare_batch_sizes(kernel, name)
    assert found.plain == found.foreseen == found.exhaustive > 0
