"""The live panel through a real kernel: its messages arrive while cells run, whatever the main thread does."""

from __future__ import annotations

import ast
import re
import time

import pytest
from client import Kernel

OPEN = """
%load_ext jupyter_gpumem
from jupyter_gpumem import devices, live
from jupyter_gpumem.ledger import LEDGER
from tests.model_backend import ModelBackend
import threading, time, warnings
gpu = ModelBackend()
devices.add_backend(gpu)
block = gpu.allocate(2**20)
"""

BUSY = {
    "sleeping": "time.sleep(2.5)",
    "python": "end = time.monotonic() + 2.5\nwhile time.monotonic() < end: sum(range(50))",
    "sorting": "numbers, end = [*range(20_000)], time.monotonic() + 2.5\nwhile time.monotonic() < end: sorted(numbers)",
}


@pytest.fixture(scope="module")
def panel_kernel():
    """A kernel with an open panel, shared by the tests that only watch it."""
    with Kernel() as kernel:
        assert kernel.run(OPEN).status == "ok"
        reply = kernel.run("%gpumem_panel --inline")
        assert reply.status == "ok", reply.shown
        yield kernel


@pytest.fixture
def opened(fresh_kernel):
    """A kernel of its own with the device, in which the panel is not open yet."""
    assert fresh_kernel.run(OPEN).status == "ok"
    return fresh_kernel


def value(kernel, expression):
    """Return the value of an expression in the kernel."""
    return ast.literal_eval(kernel.value(expression))


def samples(reply):
    """Return how many samples a cell's reply holds."""
    return sum(comm.get("content", {}).get("kind") == "samples" for comm in reply.comms)


@pytest.mark.parametrize("code", BUSY.values(), ids=BUSY)
def test_samples_arrive_while_a_cell_runs(panel_kernel, code):
    """At least 60 % of the samples that are due arrive between busy and idle, sleeping or computing."""
    began = time.monotonic()
    reply = panel_kernel.run(code)
    assert reply.status == "ok"
    due = (time.monotonic() - began) / 0.25
    assert samples(reply) >= 0.6 * min(due, 10)


def test_samples_go_the_short_way_and_belong_to_the_cell_that_runs(panel_kernel):
    """On ipykernel messages are not built anew; the client takes them, signed, for those of the cell."""
    assert value(panel_kernel, "live.opened()._channel._post is not None") is True
    for _ in range(2):
        assert samples(panel_kernel.run("time.sleep(1)")) > 0


def test_the_panel_is_shown_as_a_widget_and_a_line(panel_kernel):
    """The display has the widget, and the newest numbers for those that cannot show it; a second one is the same."""
    first, second = panel_kernel.run("%gpumem_panel"), panel_kernel.run("%gpumem_panel on --inline")
    mime = "application/vnd.jupyter.widget-view+json"
    (one,), (two,) = first.displays, second.displays
    assert one[mime] == two[mime]
    assert re.fullmatch(r"GPU memory panel: fake:0 1.00 MiB allocated, \S+ MiB reserved", one["text/plain"])
    assert value(panel_kernel, "sum('gpumem' in t.name for t in threading.enumerate())") == 1
    assert first.stdout + first.stderr == ""


def test_cells_stay_what_they_are(panel_kernel):
    """Values, errors and measurements are those of a kernel without a panel, and nothing is printed."""
    assert panel_kernel.run("6 * 7").result == "42"
    assert panel_kernel.run("1 / 0").error == "ZeroDivisionError"
    reply = panel_kernel.run("%%gpumem\ngpu.free(gpu.allocate(5 * 2**20))\n'value'")
    assert reply.result == "'value'"
    assert "5.00 MiB" in reply.reports[0]
    assert panel_kernel.run("%gpumem_auto on\n%gpumem_auto off").stderr == ""


def test_spans_have_the_cells_numbers(panel_kernel):
    """The panel knows the number, the peak and the error of a cell that ran."""
    number = int(panel_kernel.value("get_ipython().execution_count"))
    panel_kernel.run("gpu.free(gpu.allocate(7 * 2**20)); raise KeyError")
    span = value(panel_kernel, "live.opened()._spans.all()[-1]")
    assert span["number"] == number
    assert span["error"] == "KeyError"
    assert span["devices"]["fake:0"]["over"] == 7 * 2**20


def test_an_error_of_the_thread_is_raised_once_by_the_next_magic(opened):
    """The panel's own failure is never printed; the next magic raises it, and the panel can be reopened."""
    opened.run("%gpumem_panel --inline")
    quiet = opened.run(
        "gpu.broken = ZeroDivisionError('broken counters')\nlive.opened()._heart._thread.join(30)\n"
        "gpu.broken = None\n'done'"
    )
    assert (quiet.result, quiet.stdout + quiet.stderr) == ("'done'", "")
    reply = opened.run("%gpumem")
    assert reply.error == "ZeroDivisionError"
    assert "broken counters" in reply.message
    assert opened.run("%gpumem").status == "ok"
    assert opened.run("%gpumem_panel --inline").status == "ok"
    assert value(opened, "live.opened().failed") is False


def test_off_and_unload_end_everything(opened):
    """Afterwards there is no thread, no interval, no widget; and the panel can be opened again."""
    left = "(sum('gpumem' in t.name for t in threading.enumerate()), LEDGER.open_intervals, len(instances))"
    opened.run("from ipywidgets.widgets.widget import _instances as instances")
    for ending in ("%gpumem_panel off", "%unload_ext jupyter_gpumem"):
        assert opened.run("%gpumem_panel --inline").status == "ok"
        assert opened.run(ending).shown.strip() == ""
        assert value(opened, left) == (0, 0, 0)


def test_the_panel_of_the_python_interface(opened):
    """`gm.panel()` as a cell's last value is the same panel, displayed."""
    opened.run("%gpumem_panel --inline")
    reply = opened.run("import jupyter_gpumem as gm\ngm.panel(inline=True)")
    assert "application/vnd.jupyter.widget-view+json" in reply.results[0]
    assert value(opened, "gm.panel(inline=True) is live.opened()") is True


def test_data_loaders_with_workers_run_with_the_panel_open(opened):
    """Four forked workers load data while the panel samples at 100 Hz, in every round to the end."""
    opened.run("%gpumem_panel --inline\nlive.opened()._heart.interval = 0.01")
    reply = opened.run(
        "import torch\nfrom torch.utils.data import DataLoader\nrounds = []\n"
        "with warnings.catch_warnings():\n    warnings.simplefilter('ignore')\n"
        "    for _ in range(3):\n"
        "        loader = DataLoader(list(range(64)), batch_size=4, num_workers=4, multiprocessing_context='fork')\n"
        "        rounds.append(sum(int(batch.sum()) for batch in loader))\n"
        "rounds, live.opened()._heart.running"
    )
    assert reply.status == "ok", reply.shown
    assert reply.result == "([2016, 2016, 2016], True)"


def test_a_fork_has_no_panel(opened):
    """In a forked child there is no panel and no thread, and its end leaves the parent's alone."""
    opened.run("%gpumem_panel --inline")
    reply = opened.run(
        "import os\nchild = os.fork()\n"
        "if child == 0:\n    os._exit(0 if live.opened() is None and threading.active_count() == 1 else 1)\n"
        "os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), live.opened()._heart.running"
    )
    assert reply.result == "(0, True)"


def test_buttons_reach_the_kernel_and_are_answered(panel_kernel):
    """A message from the browser, sent through the widget's own channel, is acted on and answered."""
    comm = value(panel_kernel, "live.opened()._channel.widget.comm.comm_id")
    data = {"method": "custom", "content": {"kind": "act", "id": "from-a-test", "name": "empty"}}
    message = panel_kernel.client.session.msg("comm_msg", {"comm_id": comm, "data": data})
    panel_kernel.client.shell_channel.send(message)
    reply = panel_kernel.run("time.sleep(0.6)")
    assert value(panel_kernel, "gpu.emptied") >= 1
    answers = [comm["content"]["answer"] for comm in panel_kernel.comms if "answer" in comm.get("content", {})]
    assert [answer["id"] for answer in answers] == ["from-a-test"], reply


def test_panels_are_refused_on_ipykernel_7_0(opened):
    """On an ipykernel whose threads cannot send, one line says to upgrade, and nothing is left open."""
    opened.run(
        "from jupyter_gpumem.live import widget\nkeep, widget.installed = widget.installed, lambda package: '7.0.1'"
    )
    reply = opened.run("%gpumem_panel")
    assert reply.status == "error"
    assert "%gpumem_panel: ipykernel 7.0.1 cannot show" in reply.stderr
    assert len(reply.stderr.strip().splitlines()) == 1
    assert value(opened, "LEDGER.open_intervals") == 0
