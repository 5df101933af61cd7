"""What surrounds a cell under `%%gpumem` works as ever: `Out`, Run All, other magics, history, debugger, completion."""

from __future__ import annotations

import re

import pytest


def test_the_last_value_goes_to_out(kernel):
    """The value is in `Out` under the cell's number, and in `_`."""
    reply = kernel.run("%%gpumem\n['the value']")
    number = reply.content["execution_count"]
    assert kernel.value(f"Out[{number}], _, _{number}") == "(['the value'], ['the value'], ['the value'])"


def test_a_silenced_value_does_not_go_to_out(kernel):
    """With `;` nothing goes to `Out`."""
    reply = kernel.run("%%gpumem\n['the value'];")
    assert kernel.value(f"{reply.content['execution_count']} in Out") == "False"


def test_a_repeated_cell_leaves_nothing_in_out(kernel):
    """`-r` shows the runs and returns nothing."""
    reply = kernel.run("%%gpumem -r 3\nfake.allocate(MiB)")
    assert (reply.status, reply.results) == ("ok", [])
    (report,) = reply.reports
    assert [" ".join(line.split()[:8]) for line in report.splitlines()[2:5]] == [
        "run 1 1.00 MiB +1.00 MiB +1.00 MiB",
        "run 2 2.00 MiB +1.00 MiB +1.00 MiB",
        "run 3 3.00 MiB +1.00 MiB +1.00 MiB",
    ]
    assert kernel.value(f"{reply.content['execution_count']} in Out") == "False"


def test_run_all_stops_at_an_error(kernel, tmp_path):
    """Cells queued behind a measured one that fails are not run."""
    gate = tmp_path / "gate"
    wait = f"import os, time\nwhile not os.path.exists({str(gate)!r}):\n    time.sleep(0.01)\n"
    failing = kernel.send("%%gpumem\n" + wait + "1 / 0")
    queued = [kernel.send("%%gpumem\nnever_run = 1"), kernel.send("never_run = 1")]
    gate.touch()
    assert kernel.wait(failing).status == "error"
    assert [kernel.wait(request).status for request in queued] == ["aborted", "aborted"]
    assert kernel.value("'never_run' in globals()") == "False"


def test_run_all_stops_at_a_refused_cell(kernel, tmp_path):
    """A cell whose options are refused stops Run All as any error does."""
    gate = tmp_path / "gate"
    first = kernel.send(f"import os, time\nwhile not os.path.exists({str(gate)!r}):\n    time.sleep(0.01)\n")
    refused = kernel.send("%%gpumem -d 7\nnever_run = 1")
    queued = kernel.send("never_run = 1")
    gate.touch()
    assert [kernel.wait(request).status for request in (first, refused, queued)] == ["ok", "error", "aborted"]
    assert kernel.value("'never_run' in globals()") == "False"


def test_run_all_goes_on_after_a_good_cell(kernel):
    """Cells queued behind a measured one that ends well are run."""
    requests = [kernel.send("%%gpumem\nx = 1"), kernel.send("%gpumem x + 1"), kernel.send("x + 2")]
    replies = [kernel.wait(request) for request in requests]
    assert [reply.status for reply in replies] == ["ok", "ok", "ok"]
    assert replies[2].result == "3"


def test_time_below_us(kernel):
    """`%%time` below `%%gpumem` times the cell, shows its value, and the report follows."""
    reply = kernel.run("%%gpumem\n%%time\nx = fake.allocate(MiB)\n6 * 7")
    assert (reply.status, reply.result) == ("ok", "42")
    assert reply.stdout.startswith("CPU times: ")
    assert "Wall time: " in reply.stdout
    (report,) = reply.reports
    assert "+1.00 MiB" in report


def test_time_above_us(kernel):
    """`%%gpumem` below `%%time` is measured, timed, and shows its value."""
    reply = kernel.run("%%time\n%%gpumem\nx = fake.allocate(MiB)\n6 * 7")
    assert (reply.status, reply.result) == ("ok", "42")
    assert reply.stdout.startswith("CPU times: ")
    (report,) = reply.reports
    assert "+1.00 MiB" in report


def test_capture_above_us(kernel):
    """Under `%%capture` the report is captured with everything else, in its place."""
    reply = kernel.run("%%capture caught\n%%gpumem\nprint('printed')\nx = fake.allocate(MiB)\n6 * 7")
    assert (reply.status, reply.shown.strip(), reply.displays) == ("ok", "", [])
    assert kernel.value("caught.stdout") == "'printed\\n'"
    assert (
        kernel.value("[sorted(one.data) for one in caught.outputs]") == "[['text/html', 'text/plain'], ['text/plain']]"
    )
    assert "Needed 1.00 MiB on top of what was there" in kernel.value("caught.outputs[0].data['text/plain']")
    assert kernel.value("caught.outputs[1].data['text/plain']") == "'42'"


def test_capture_below_us(kernel):
    """`%%capture` below `%%gpumem` catches the cell's output and not our report."""
    reply = kernel.run("%%gpumem\n%%capture caught\nprint('printed')\nx = fake.allocate(MiB)")
    assert reply.stdout == ""
    (report,) = reply.reports
    assert "+1.00 MiB" in report
    assert kernel.value("caught.stdout") == "'printed\\n'"


def test_the_history_holds_the_cell_as_typed(kernel):
    """`_i`, `%history` and the history database hold the cell with its magic line."""
    cell = "%%gpumem -v cost\nmarker = 'as typed'"
    number = kernel.run(cell).content["execution_count"]
    assert kernel.run(f"_i{number}").result == repr(cell)
    assert kernel.run(f"%history {number}").stdout == cell + "\n"
    assert kernel.value(f"get_ipython().history_manager.input_hist_raw[{number}]") == repr(cell)
    assert kernel.value(f"In[{number}]") == repr("\nmarker = 'as typed'")


def test_a_cell_is_measured_again_from_the_history(kernel):
    """`%rerun` measures a cell that was measured."""
    number = kernel.run("%%gpumem\nx = fake.allocate(MiB)").content["execution_count"]
    reply = kernel.run(f"%rerun {number}")
    assert reply.status == "ok"
    (report,) = reply.reports
    assert "Needed 1.00 MiB on top of what was there; all of it stays." in report


def test_the_debugger_works_after_a_failed_cell(kernel):
    """`%debug` lands in the user's frame, with its names and its line."""
    kernel.run("%%gpumem\ndef f(secret):\n    return secret / 0\n\nf(4711)")
    reply = kernel.run("%debug", answers=["p secret", "up", "q"])
    assert (reply.status, reply.errors) == ("ok", [])
    assert "4711" in reply.stdout
    assert "----> 3     return secret / 0" in re.sub(r"\x1b\[[0-9;]*m", "", reply.stdout)
    assert "----> 5 f(4711)" in re.sub(r"\x1b\[[0-9;]*m", "", reply.stdout)


def test_the_traceback_can_be_shown_again(kernel):
    """`%tb` shows the traceback of a measured cell as it was."""
    kernel.run("%%gpumem\n\nx = 1\n1 / 0")
    reply = kernel.run("%tb")
    assert "----> 4 1 / 0" in reply.traceback
    assert "jupyter_gpumem" not in reply.traceback


def test_code_inside_a_measured_cell_is_completed(kernel):
    """Tab and Shift-Tab work below the magic's line."""
    kernel.run("some_dictionary = {}")
    assert "some_dictionary" in kernel.complete("%%gpumem\nx = some_dic")
    assert "popitem" in kernel.complete("%%gpumem -q\nx = 1\nsome_dictionary.pop")[1:]
    assert "Create a new dictionary" in kernel.inspect("%%gpumem\nsome_dictionary.fromkeys")


def test_options_are_completed(kernel):
    """Tab offers the magic's options and nothing else."""
    flags = ["--device", "--help", "--output", "--quiet", "--repeat", "--variable"]
    assert kernel.complete("%%gpumem --") == flags
    assert kernel.complete("%gpumem -d ") == ["0", "fake:0"]
    assert kernel.complete("%gpumem_auto o") == ["on", "off"]


def test_a_terminal_waits_for_the_rest_of_a_measured_cell(kernel):
    """A cell magic is complete after a blank line, as others are; a line magic at once."""
    assert kernel.is_complete("%%gpumem") == kernel.is_complete("%%time") == "incomplete"
    assert kernel.is_complete("%%gpumem\nx = 1") == kernel.is_complete("%%time\nx = 1") == "incomplete"
    assert kernel.is_complete("%%gpumem\nx = 1\n\n") == kernel.is_complete("%%time\nx = 1\n\n") == "complete"
    assert kernel.is_complete("%gpumem x = 1") == "complete"


@pytest.mark.parametrize(
    ("first_line", "message"),
    [
        ("%%gpumem --bogus", "unrecognized arguments: --bogus; %gpumem --help lists what there is"),
        ("%%gpumem -d 7", "no such device: fake:7; visible to this process: fake:0"),
        (
            "%%gpumem -r many",
            "argument -r/--repeat: not a number of at least 1: 'many'; %gpumem --help lists what there is",
        ),
        ("%%gpumem -o", "a cell cannot return the result (-o); store it in a variable with -v NAME"),
    ],
)
def test_a_refused_cell_does_not_run(kernel, first_line, message):
    """Options that cannot be honoured are one line and status error; nothing has run and nothing has changed."""
    before = kernel.value("fake.user_stats(), fake.watched")
    reply = kernel.run(first_line + "\nhas_run = fake.allocate(MiB)")
    assert reply.status == "error"
    assert reply.content["ename"] == "UsageError"
    assert reply.shown.strip() == f"UsageError: %gpumem: {message}"
    assert (reply.stderr.count("\n"), reply.errors) == (1, [])
    assert kernel.value("'has_run' in globals()") == "False"
    assert kernel.value("fake.user_stats(), fake.watched") == before


def test_code_that_asks_is_measured(kernel):
    """`input()` in a measured cell reaches the front end."""
    reply = kernel.run("%%gpumem\nname = input('name? ')\nx = fake.allocate(MiB)", answers=["me"])
    assert reply.status == "ok"
    assert kernel.value("name") == "'me'"
    assert "+1.00 MiB" in reply.reports[0]


def test_help_is_a_good_cell(kernel):
    """`--help` and `?` are no errors for the front end."""
    reply = kernel.run("%%gpumem --help\nhas_run = 1")
    assert (reply.status, reply.displays, reply.stderr) == ("ok", [], "")
    assert reply.stdout.startswith("usage: %gpumem\n")
    reply = kernel.run("%gpumem?")
    assert reply.status == "ok"
    assert "Measure what code does to GPU memory" in reply.content["payload"][0]["data"]["text/plain"]
