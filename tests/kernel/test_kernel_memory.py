"""What the measuring leaves in a kernel: the user's counters as they were, and nothing alive."""

from __future__ import annotations

import json

import pytest

ENDLESS = "import time\nkept = fake.allocate(MiB)\nprint('running')\nsys.stdout.flush()\ntime.sleep(600)"


@pytest.mark.parametrize("first_line", ["%%gpumem", "%%gpumem -r 3", "%%time\n%%gpumem"])
def test_an_interrupt_ends_a_measured_cell(kernel, first_line):
    """Ctrl-C ends the cell with its error once and a report, and the kernel is usable, with nothing left open."""
    request = kernel.send(f"{first_line}\n{ENDLESS}")
    kernel.wait_for_output(request, "running")
    kernel.interrupt()
    reply = kernel.wait(request)
    assert (reply.status, reply.error, reply.content["ename"]) == ("error", "KeyboardInterrupt", "KeyboardInterrupt")
    (report,) = reply.reports
    assert "KeyboardInterrupt" in report
    assert "jupyter_gpumem" not in reply.traceback
    assert kernel.value("LEDGER.open_intervals") == "0"
    after = kernel.run("%%gpumem\n6 * 7")
    assert (after.status, after.result, len(after.reports)) == ("ok", "42", 1)


def test_an_interrupt_at_an_await(kernel):
    """Ctrl-C while the cell awaits cancels it, as ipykernel does without us, and the report follows."""
    cell = (
        "import asyncio, os, signal\n"
        "kept = fake.allocate(MiB)\n"
        "asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGINT)\n"
        "await asyncio.sleep(600)"
    )
    plain = kernel.run("# plain\n" + cell)
    measured = kernel.run("%%gpumem\n" + cell)
    for reply in (plain, measured):
        assert (reply.status, reply.error) == ("error", "CancelledError")
    (report,) = measured.reports
    assert report.startswith("fake:0 · scripted device · stopped by CancelledError after ")
    assert "+1.00 MiB" in report
    assert kernel.value("LEDGER.open_intervals") == "0"
    assert kernel.run("%%gpumem\n6 * 7").result == "42"


def test_an_interrupt_ends_a_cell_in_auto_mode(kernel):
    """When every cell is measured, an interrupted one gets its line."""
    kernel.run("%gpumem_auto on")
    request = kernel.send(ENDLESS)
    kernel.wait_for_output(request, "running")
    kernel.interrupt()
    reply = kernel.wait(request)
    assert (reply.status, reply.error) == ("error", "KeyboardInterrupt")
    assert [report.endswith("   stopped by KeyboardInterrupt") for report in reply.reports] == [True]


def test_the_users_peak_is_as_without_us(kernel):
    """`max_memory_allocated` before, during and after a measured cell says what it would have said."""
    cells = (
        "fake.free(fake.allocate(5 * MiB))",
        "{magic}fake.free(fake.allocate(2 * MiB))\ninside = fake.user_peak() // MiB",
        "{magic}kept = fake.allocate(6 * MiB)\ninside = inside, fake.user_peak() // MiB\nfake.free(kept)",
        "fake.free(fake.allocate(MiB))",
    )
    seen = []
    for magic in ("", "%%gpumem\n", "%%gpumem -r 1\n"):
        kernel.run("devices.remove_backend(fake)\nfake = FakeBackend()\ndevices.add_backend(fake)")
        peaks = []
        for cell in cells:
            assert kernel.run(cell.format(magic=magic)).status == "ok"
            peaks.append(kernel.value("fake.user_peak() // MiB"))
        seen.append((peaks, kernel.value("inside")))
    assert seen == [(["5", "5", "6", "6"], "(5, 6)")] * 3


def test_a_reset_by_the_user_is_folded_in_and_honoured(kernel):
    """A reset inside a measured cell costs neither side its maximum: the cell's, and the user's since the reset."""
    reply = kernel.run(
        "%%gpumem -v cost\n"
        "fake.free(fake.allocate(1024 * MiB))\n"
        "before = fake.user_peak() // MiB\n"
        "fake.user_reset_peaks()\n"
        "kept = fake.allocate(MiB)\n"
        "after = fake.user_peak() // MiB"
    )
    assert reply.status == "ok"
    assert kernel.value("before, after, fake.user_peak() // MiB") == "(1024, 1, 1)"
    assert (
        kernel.value("cost[0].peak_allocated // MiB, cost[0].delta_allocated // MiB, cost[0].exact")
        == "(1024, 1, True)"
    )
    kernel.run("%gpumem x = fake.allocate(MiB)")
    assert kernel.value("fake.user_peak() // MiB") == "2"


def test_a_reset_out_of_sight_makes_a_lower_bound(kernel):
    """A reset that nobody sees is noticed, and the report says that its peak is a lower bound."""
    reply = kernel.run(
        "%%gpumem -v cost\nkept = fake.allocate(64 * MiB)\n%gpumem -q pass\n"
        "fake.free(kept)\nfake.reset_peaks(0)\nkept = fake.allocate(MiB)"
    )
    assert reply.status == "ok"
    assert kernel.value("cost[0].exact") == "False"
    assert "The peaks are lower bounds: the peak counter was reset out of our sight." in reply.reports[0]
    assert ">= 64.00 MiB" in reply.reports[0]


def test_nested_measurements_are_exact(kernel):
    """Three measurements inside one another each get their own exact peak."""
    kernel.run(
        "%%gpumem -v outer\n"
        "fake.free(fake.allocate(8 * MiB))\n"
        "middle = %gpumem -o get_ipython().run_line_magic('gpumem', '-v inner fake.free(fake.allocate(2 * MiB))')\n"
        "fake.free(fake.allocate(4 * MiB))"
    )
    peaks = "[one.peak_allocated // MiB for one in (outer, middle, inner)]"
    assert kernel.value(peaks) == "[8, 2, 2]"


THING = "import weakref\nclass Thing:\n    pass\n\n"


@pytest.mark.parametrize("first_line", ["%%gpumem", "%%gpumem -r 1", "%%gpumem -v cost", "%%time\n%%gpumem"])
def test_the_result_of_a_cell_is_not_held(kernel, first_line):
    """A silenced value is dead once the next cell has run: only IPython ever held it."""
    kernel.run(THING)
    assert kernel.run(f"{first_line}\nthing = Thing()\nreference = weakref.ref(thing)\nthing;").status == "ok"
    kernel.run("del thing")
    kernel.run("import gc")
    assert kernel.value("reference() is None") == "True"


@pytest.mark.parametrize("statement", ["%gpumem thing;", "%gpumem -o thing;", "x = %gpumem -o thing"])
def test_the_value_of_a_statement_is_not_held(kernel, statement):
    """The same holds for the value of a measured statement, also where the result object is kept."""
    kernel.run(THING + "thing = Thing()\nreference = weakref.ref(thing)")
    assert kernel.run(statement).status == "ok"
    kernel.run("del thing")
    kernel.run("pass")
    assert kernel.value("reference() is None") == "True"


def test_a_displayed_value_is_held_by_ipython_alone(kernel):
    """Once the user has cleared IPython's own references to a displayed value, nothing holds it."""
    kernel.run(THING)
    kernel.run("%%gpumem\nthing = Thing()\nreference = weakref.ref(thing)\nthing")
    kernel.run("del thing")
    kernel.run("%reset -f out")
    kernel.run("for name in ('_', '__', '___'):\n    get_ipython().user_ns_hidden.pop(name, None)")
    kernel.run("hook = get_ipython().displayhook\nhook._ = hook.__ = hook.___ = ''")
    assert kernel.value("reference() is None") == "True"


@pytest.mark.parametrize("first_line", ["%%gpumem", "%%gpumem -r 1"])
def test_the_frames_of_an_error_are_not_held(kernel, first_line):
    """After the next error, which replaces the last one in IPython, nothing holds the failed cell's frames."""
    kernel.run(THING)
    body = "def f():\n    thing = Thing()\n    global reference\n    reference = weakref.ref(thing)\n    1 / 0\nf()"
    assert kernel.run(f"{first_line}\n{body}").status == "error"
    assert kernel.value("reference() is None") == "False"
    kernel.run("1 / 0")
    kernel.run("import gc\ngc.collect();")
    assert kernel.value("reference() is None") == "True"


MANY = """
import asyncio, gc, psutil
from IPython.utils.capture import capture_output

def run_cells(count):
    shell = get_ipython()
    shown = 0
    for _ in range(count):
        with capture_output() as caught:
            assert shell.run_cell(CELL).success
        shown += len(caught.outputs)
    del caught
    gc.collect()
    ours = sum(str(type(item).__module__).startswith("jupyter_gpumem") for item in gc.get_objects())
    return shown, psutil.Process().memory_info().rss, ours

def measure(done):
    run_cells(1000)
    _, rss, ours = run_cells(1)
    shown, rss_after, ours_after = run_cells(10_000)
    done.set_result([shown, rss_after - rss, ours_after - ours])
"""


@pytest.mark.slow
@pytest.mark.parametrize("cell", ["%%gpumem\\npass", "pass"])
def test_ten_thousand_cells_leave_no_memory_behind(kernel, cell):
    """10,000 measured empty cells, each with its report, grow the kernel by less than 2 MiB and leave no object."""
    kernel.run(MANY + f"CELL = '{cell}'")
    if cell == "pass":
        kernel.run("%gpumem_auto on")
    # From the event loop and not inside a cell: so each is measured as a cell of its own.
    reply = kernel.run("done = asyncio.Future()\nasyncio.get_running_loop().call_soon(measure, done)\nawait done")
    kernel.run("%gpumem_auto off")
    assert reply.status == "ok", reply.traceback
    shown, growth, objects = json.loads(reply.result)
    assert (shown, objects) == (10_000, 0)
    assert growth < 2 * 2**20
