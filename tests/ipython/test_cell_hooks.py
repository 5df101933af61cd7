"""How cells are measured by hooks: pairs that do not match, nesting, lost hooks, every cell by itself."""

from __future__ import annotations

import sys

import pytest

from jupyter_gpumem import devices
from jupyter_gpumem.devices.fake import FakeBackend
from jupyter_gpumem.ledger import LEDGER

MiB = 2**20


def open_cells(cells) -> int:
    """Return how many cells the loaded session believes to be running."""
    from jupyter_gpumem import magics

    return len(magics._sessions[id(cells.shell)].cells._stack)


@pytest.fixture(autouse=True)
def _no_cell_open(request):
    """Assert after each test that no cell is open any more."""
    yield
    assert LEDGER.open_intervals == 0


def at_the_end_of(name):
    """Have a Ctrl-C arrive when one of our functions returns."""

    def profile(frame, event, argument):
        if event == "return" and frame.f_code.co_name == name and "jupyter_gpumem" in frame.f_code.co_filename:
            sys.setprofile(None)
            raise KeyboardInterrupt

    sys.setprofile(profile)


@pytest.mark.parametrize("moment", ["open", "start", "close"])
def test_an_interrupt_in_the_measuring_itself_is_the_users_own(cells, moment):
    """The error is no other one, and what was begun is ended; before the end there is even something to report."""
    cells.shell.push({"at_the_end_of": at_the_end_of})
    outcome = cells(f"at_the_end_of({moment!r})\n%gpumem 1 + 1")
    assert type(outcome.error) is KeyboardInterrupt
    assert outcome.error.__context__ is None
    assert len(outcome.texts) == (moment == "start")
    assert LEDGER.open_intervals == 0


def test_a_cell_is_measured(cells):
    """The report of `%%gpumem` says what the cell took and what stays of it."""
    outcome = cells("%%gpumem\nkept = fake.allocate(MiB)\nfake.free(fake.allocate(MiB))\n'last'")
    assert outcome.value == "last"
    assert outcome.texts[0].splitlines()[1:] == [
        "             start      peak  over start       end      stays",
        "  allocated  0 B    2.00 MiB   +2.00 MiB  1.00 MiB  +1.00 MiB",
        "  reserved   0 B    2.00 MiB   +2.00 MiB  2.00 MiB  +2.00 MiB",
        "  Needed 2.00 MiB on top of what was there; 1.00 MiB of it stays.",
    ]


@pytest.mark.parametrize("empty", ["", "   ", "\n\n"])
def test_an_empty_cell_has_no_pre(cells, empty):
    """IPython sends only `post_run_cell` for an empty cell: nothing happens, and the next cell is measured."""
    cells("%gpumem_auto on")
    outcome = cells(empty)
    assert (outcome.displays, outcome.stderr) == ([], "")
    assert open_cells(cells) == 0
    assert len(cells("%%gpumem\n1").displays) == 1


def test_the_loading_cell_has_no_pre(bare, fake):
    """The cell that loads the extension ends without our `pre_run_cell`: no report, no error."""
    outcome = bare("%load_ext jupyter_gpumem\n%gpumem_auto on\n1")
    assert (outcome.value, outcome.displays, outcome.stderr) == (1, [], "")
    assert open_cells(bare) == 0


def test_an_empty_cell_inside_a_cell(cells):
    """An empty nested run does not end the measurement of the cell around it."""
    outcome = cells("%%gpumem\nget_ipython().run_cell('')\nx = fake.allocate(MiB)")
    assert len(outcome.displays) == 1
    assert "+1.00 MiB" in outcome.texts[0]


def test_a_cell_inside_a_cell(cells):
    """A nested `run_cell` ends neither early nor twice: each gets its own exact report, the inner one first."""
    cells.shell.user_ns["inner"] = "%%gpumem\nfake.free(fake.allocate(3 * MiB))"
    outcome = cells("%%gpumem\nkept = fake.allocate(MiB)\nget_ipython().run_cell(inner)\nmore = fake.allocate(MiB)")
    allocated = [text.splitlines()[2].split() for text in outcome.texts]
    assert [" ".join(row[1:]) for row in allocated] == [
        "1.00 MiB 4.00 MiB +3.00 MiB 1.00 MiB 0 B",
        "0 B 4.00 MiB +4.00 MiB 2.00 MiB +2.00 MiB",
    ]


def test_a_plain_cell_inside_a_cell(cells):
    """A nested cell without the magic is part of the measured one."""
    outcome = cells("%%gpumem\nget_ipython().run_cell('x = fake.allocate(MiB)')")
    assert len(outcome.displays) == 1
    assert "+1.00 MiB" in outcome.texts[0]


def test_a_measured_cell_inside_a_plain_one(cells):
    """`%%gpumem` inside a nested `run_cell` is measured by itself."""
    outcome = cells("get_ipython().run_cell('%%gpumem\\nx = fake.allocate(MiB)')\ny = fake.allocate(MiB)")
    assert len(outcome.displays) == 1
    assert "Needed 1.00 MiB" in outcome.texts[0]


def test_a_failing_cell_inside_a_cell(cells):
    """A nested run that fails leaves the outer cell measured to its end."""
    outcome = cells("%%gpumem\nget_ipython().run_cell('1 / 0')\nx = fake.allocate(MiB)")
    assert outcome.error is None
    assert "+1.00 MiB" in outcome.texts[0]


def test_an_unknown_magic(cells):
    """A cell that names a magic nobody has ends with its own error, and the next one is measured."""
    outcome = cells("%%nosuch\n1")
    assert outcome.stderr == "UsageError: Cell magic `%%nosuch` not found.\n"
    assert open_cells(cells) == 0
    assert len(cells("%%gpumem\n1").displays) == 1


def test_an_unknown_magic_below_ours(cells):
    """Below `%%gpumem` the same error comes, and the report says what stopped the cell."""
    outcome = cells("%%gpumem\n%%nosuch\n1")
    assert outcome.stderr == "UsageError: Cell magic `%%nosuch` not found.\n"
    assert outcome.texts[0].splitlines()[0].startswith("fake:0 · scripted device · stopped by UsageError after ")


def test_a_syntax_error_is_not_measured(cells):
    """A cell that is not Python shows its error and no report: nothing has run."""
    outcome = cells("%%gpumem\nx = (")
    assert isinstance(outcome.error, SyntaxError)
    assert outcome.displays == []


def test_an_error_between_statements_is_reported(cells):
    """IPython compiles statement by statement: what ran before one that does not compile is reported."""
    outcome = cells("%%gpumem\nx = fake.allocate(MiB)\nreturn x")
    assert isinstance(outcome.error, SyntaxError)
    assert outcome.texts[0].startswith("fake:0 · scripted device · stopped by SyntaxError after ")
    assert "Needed 1.00 MiB on top of what was there; all of it stays." in outcome.texts[0]


def test_our_magic_twice(cells):
    """`%%gpumem` below `%%gpumem` measures twice and is no error."""
    outcome = cells("%%gpumem\n%%gpumem\n6 * 7")
    assert (outcome.value, len(outcome.displays)) == (42, 2)


@pytest.mark.parametrize(
    "body", ["    x = 6 * 7\n    x", ">>> x = 6 * 7\n>>> x", "In [1]: x = 6 * 7\n   ...: x", "\n\nx = 6 * 7\nx"]
)
def test_what_ipython_cleans_is_cleaned_below_the_magic_too(cells, body):
    """Indentation, prompts and blank lines at the head of a cell are no error there, and none below `%%gpumem`."""
    assert cells(body).value == 42
    assert cells("%%gpumem\n" + body).value == 42
    assert cells("%%gpumem -r 1\n" + body).error is None


def test_another_magic_below_blank_lines(cells):
    """A cell magic is found below blank lines too."""
    outcome = cells("%%gpumem\n\n%%timeit -n1 -r1\npass")
    assert outcome.error is None
    assert len(outcome.displays) == 1


def test_a_transform_of_the_user_runs_once_for_the_code(cells):
    """Code goes through the user's own input transforms once, whether they stand before ours or after."""
    manager = cells.shell.input_transformer_manager
    double = [lambda lines: [*lines, "count = count + 1\n"]]
    cells.shell.user_ns["count"] = 0
    manager.cleanup_transforms[0:0] = double
    cells("%%gpumem\npass")
    manager.cleanup_transforms.remove(double[0])
    manager.cleanup_transforms += double
    cells("%%gpumem\npass")
    manager.cleanup_transforms.remove(double[0])
    assert cells["count"] == 2


def test_a_lost_inner_post_is_made_up_for(cells):
    """If the hook after a nested cell is lost, the outer cell's still ends everything."""
    events = cells.shell.events
    from jupyter_gpumem import magics

    after = magics._sessions[id(cells.shell)].cells._after
    cells.shell.user_ns |= {
        "lose": lambda: events.unregister("post_run_cell", after),
        "find": lambda: events.register("post_run_cell", after),
    }
    cells("%gpumem_auto on")
    outcome = cells("get_ipython().run_cell('lose()')\nfind()\nx = fake.allocate(MiB)")
    assert [text.split()[1] for text in outcome.texts] == ["fake:0"]
    assert open_cells(cells) == 0


def test_a_lost_post_does_not_stop_later_measurements(cells):
    """If the hook after a cell is lost, the next cell is measured as ever, and the lost one is given up."""
    events = cells.shell.events
    from jupyter_gpumem import magics

    after = magics._sessions[id(cells.shell)].cells._after
    events.unregister("post_run_cell", after)
    assert cells("%%gpumem\nx = fake.allocate(MiB)").displays == []
    assert LEDGER.open_intervals == 1
    events.register("post_run_cell", after)
    outcome = cells("%%gpumem\nimport asyncio\ny = fake.allocate(MiB)\nawait asyncio.sleep(0)\n'last'")
    assert outcome.value == "last"
    assert [text.splitlines()[2].split()[-2:] for text in outcome.texts] == [["+1.00", "MiB"]]
    assert open_cells(cells) == 0


def test_a_run_cut_off_outside_the_code(cells):
    """Ctrl-C at an `await`, where IPython makes up a second result, ends the measurement and is reported."""

    def interrupted(coroutine):
        coroutine.send(None)
        raise KeyboardInterrupt

    class Pause:
        def __await__(self):
            yield

    cells.shell.user_ns["Pause"] = Pause
    cells.shell.loop_runner = interrupted
    outcome = cells("%%gpumem\nx = fake.allocate(MiB)\nawait Pause()")
    assert isinstance(outcome.error, KeyboardInterrupt)
    assert "stopped by KeyboardInterrupt" in outcome.texts[0]
    assert open_cells(cells) == 0


def test_a_hook_that_fails_leaves_the_cell_alone(cells, fake, monkeypatch):
    """If the device cannot be read, the cell runs and ends as it would, and the next one is measured."""

    def broken(index):
        raise OSError("gone")

    with monkeypatch.context() as patch:
        patch.setattr(fake, "stats", broken)
        outcome = cells("%%gpumem\nx = 6 * 7\nx")
        assert (outcome.value, outcome.error) == (42, None)
        assert open_cells(cells) == 0
    assert len(cells("%%gpumem\n1").displays) == 1


@pytest.mark.parametrize("prefix", ["", "%gpumem ", "%%gpumem\n", "%%gpumem -r 1\n"])
def test_an_error_of_ours_in_the_users_code_is_an_error(cells, prefix):
    """What this package raises inside measured code keeps its type and traceback: it is no refusal of the magic."""
    cells.shell.run_cell("import jupyter_gpumem as gm")
    outcome = cells(prefix + "gm.measure(devices=['tpu:0']).start()")
    assert type(outcome.error).__name__ == "DeviceNotFoundError"
    assert "Traceback (most recent call last)" in outcome.stdout


def test_a_lost_device_is_not_called_out_of_memory(cells):
    """A device-side assert keeps its own name in the report."""
    outcome = cells("%%gpumem\nraise RuntimeError('CUDA error: device-side assert triggered')")
    assert outcome.texts[0].startswith("fake:0 · scripted device · stopped by RuntimeError after ")
    assert "memory" not in outcome.texts[0]


def test_silent_cells_are_left_alone(cells):
    """A silent run has no hooks and no report."""
    cells("%gpumem_auto on")
    assert cells("x = fake.allocate(MiB)", silent=True).displays == []


def test_every_cell_gets_one_line(cells):
    """`%gpumem_auto on` shows one line below each cell from the next one on."""
    assert cells("%gpumem_auto on").displays == []
    outcome = cells("x = fake.allocate(MiB)")
    assert len(outcome.displays) == 1
    assert list(outcome.displays[0]) == ["text/plain"]
    assert outcome.texts[0].startswith(
        "gpumem   fake:0  peak 1.00 MiB (+1.00 MiB)   stays +1.00 MiB   reserved 2.00 MiB   "
    )
    assert [text.split("   ")[:2] for text in cells("1").texts] == [["gpumem", "fake:0 unchanged"]]
    assert cells("%gpumem_auto off").displays == []
    assert cells("x = fake.allocate(MiB)").displays == []


def test_the_line_names_what_stopped_a_cell(cells):
    """The line of a failed cell ends with the error's name."""
    cells("%gpumem_auto on")
    outcome = cells("1 / 0")
    assert isinstance(outcome.error, ZeroDivisionError)
    assert outcome.texts[0].endswith("   stopped by ZeroDivisionError")


def test_a_measured_cell_gets_its_report_and_no_line(cells):
    """`%%gpumem` in auto mode shows its report alone."""
    cells("%gpumem_auto on")
    outcome = cells("%%gpumem\nx = fake.allocate(MiB)")
    assert [sorted(bundle) for bundle in outcome.displays] == [["text/html", "text/plain"]]


def test_nested_cells_get_no_line_of_their_own(cells):
    """One line for what the user ran, not one for each `run_cell` inside it."""
    cells("%gpumem_auto on")
    assert len(cells("get_ipython().run_cell('x = fake.allocate(MiB)')").displays) == 1


def test_a_threshold_silences_small_cells(cells):
    """`--min` shows no line for cells that moved less, and one for those that peaked or freed as much."""
    cells("%gpumem_auto on --min 2MiB")
    assert cells("small = fake.allocate(MiB)").displays == []
    assert len(cells("large = fake.allocate(2 * MiB)").displays) == 1
    assert len(cells("fake.free(large)").displays) == 1
    assert len(cells("fake.free(fake.allocate(2 * MiB))").displays) == 1
    assert cells("%gpumem_auto").texts == ["gpumem measures every cell, those that move at least 2.00 MiB"]


def test_one_of_two_devices(cells):
    """What did not change is said of the device that was looked at; others may have."""
    second = FakeBackend(kind="other")
    devices.add_backend(second)
    try:
        cells("%gpumem_auto on -d other:0")
        cells.shell.user_ns["second"] = second
        assert cells("x = fake.allocate(MiB)").texts[0].split("   ")[:2] == ["gpumem", "other:0 unchanged"]
        assert cells("y = second.allocate(MiB)").texts[0].startswith("gpumem   other:0  peak 1.00 MiB")
        assert cells("%gpumem_auto").texts[0] == "gpumem measures every cell on other:0 only"
        cells("%gpumem_auto on")
        assert cells("1").texts[0].split("   ")[:2] == ["gpumem", "2 devices unchanged"]
    finally:
        devices.remove_backend(second)


def test_trouble_passes_the_threshold(cells):
    """Running out of memory, or failing at all, is never too small for a line."""
    cells("import torch\n%gpumem_auto on --min 1GiB")  # only errors of a process that has it are looked at
    line, explanation = cells("fake.allocate(2**40)").texts
    assert line.endswith("stopped by FakeOutOfMemoryError")
    assert explanation.startswith("Out of memory")
    assert len(cells("1 / 0").texts) == 1
    assert cells("1 + 1").displays == []


def test_the_setting_is_told(cells):
    """`%gpumem_auto` alone says whether every cell is measured."""
    assert cells("%gpumem_auto").texts == ["gpumem measures no cell by itself"]
    cells("%gpumem_auto on")
    assert cells("%gpumem_auto").texts[0] == "gpumem measures every cell"
    cells("%gpumem_auto off")
    assert cells("%gpumem_auto").texts == ["gpumem measures no cell by itself"]


def test_one_line_after_a_reload(cells):
    """`%reload_ext` does not make every cell report twice."""
    cells("%gpumem_auto on")
    assert cells("%reload_ext jupyter_gpumem").displays == []
    cells("%gpumem_auto on")
    assert len(cells("x = fake.allocate(MiB)").displays) == 1
