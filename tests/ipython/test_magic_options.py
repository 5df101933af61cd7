"""The options of the magics in a shell: what they do, how they refuse, how they are explained and completed."""

from __future__ import annotations

import pytest

MiB = 2**20
HINT = "; %gpumem --help lists what there is"
AUTO_HINT = "; %gpumem_auto --help lists what there is"

UNKNOWN_OPTION = "%gpumem: unrecognized arguments: --bogus" + HINT
UNKNOWN_INDEX = "%gpumem: no such device: fake:7; visible to this process: fake:0"
UNKNOWN_KIND = "%gpumem: no such device: 'tpu:0'; name one by its index (0) or label (cuda:0)"
BAD_NAME = "%gpumem: argument -v/--variable: not a variable name: '1a'" + HINT
BAD_REPEAT = "%gpumem: argument -r/--repeat: not a number of at least 1: '0'" + HINT

REFUSED_CELLS = {
    "%%gpumem --bogus": UNKNOWN_OPTION,
    "%%gpumem --quie": "%gpumem: unrecognized arguments: --quie" + HINT,
    "%%gpumem -d 7": UNKNOWN_INDEX,
    "%%gpumem -d fake:7": UNKNOWN_INDEX,
    "%%gpumem -d tpu:0": UNKNOWN_KIND,
    "%%gpumem -d 0 -d 7": UNKNOWN_INDEX,
    "%%gpumem -v 1a": BAD_NAME,
    "%%gpumem -v lambda": "%gpumem: argument -v/--variable: not a variable name: 'lambda'" + HINT,
    "%%gpumem -r 0": BAD_REPEAT,
    "%%gpumem -r two": "%gpumem: argument -r/--repeat: not a number of at least 1: 'two'" + HINT,
    "%%gpumem -v": "%gpumem: argument -v/--variable: expected one argument" + HINT,
    "%%gpumem -o": "%gpumem: a cell cannot return the result (-o); store it in a variable with -v NAME",
    "%%gpumem x = 1": (
        "%gpumem: the code of a cell begins on the second line, got 'x = 1' on the first; "
        "for one statement write %gpumem with one percent sign"
    ),
}

REFUSED_LINES = {
    "%gpumem --bogus (ran := True)": UNKNOWN_OPTION,
    "%gpumem -d 7 (ran := True)": UNKNOWN_INDEX,
    "%gpumem -d tpu:0 (ran := True)": UNKNOWN_KIND,
    "%gpumem -d 7": UNKNOWN_INDEX,
    "%gpumem -v 1a (ran := True)": BAD_NAME,
    "%gpumem -r 0 (ran := True)": BAD_REPEAT,
    "%gpumem -v Out (ran := True)": (
        "%gpumem: argument -v/--variable: 'Out' belongs to the notebook; choose another name" + HINT
    ),
    "%gpumem_auto --min 1MiB": "%gpumem_auto: options go with on: %gpumem_auto on --min 1MiB",
    "%gpumem -r": "%gpumem: argument -r/--repeat: expected one argument" + HINT,
    "%gpumem -r 2": "%gpumem: -r needs a statement to repeat: %gpumem -r 3 STATEMENT",
    "%gpumem (ran := True) +": "%gpumem: not Python: invalid syntax ('(ran := True) +')",
    "%gpumem return (ran := True)": "%gpumem: not Python: 'return' outside function ('return (ran := True)')",
    "%gpumem await (ran := True)": (
        "%gpumem: code inside a magic cannot await; begin a cell with %%gpumem, without -r"
    ),
    "%gpumem_auto on off": "%gpumem_auto: unrecognized arguments: off" + AUTO_HINT,
    "%gpumem_auto on -d 7": "%gpumem_auto: no such device: fake:7; visible to this process: fake:0",
    "%gpumem_auto on --min much": (
        "%gpumem_auto: argument --min: not a size: 'much'; write a number and a unit, such as 512MiB or 1.5GiB"
        + AUTO_HINT
    ),
    "%gpumem_auto 'on": """%gpumem_auto: cannot read "'on" (No closing quotation)""" + AUTO_HINT,
}


@pytest.mark.parametrize("first_line", REFUSED_CELLS)
def test_a_cell_is_refused_in_one_line(cells, fake, first_line):
    """Options that cannot be understood or honoured are one `UsageError`, and the cell does not run."""
    before = fake.user_stats()
    outcome = cells(first_line + "\nran = True")
    assert type(outcome.error).__name__ == "UsageError"
    assert outcome.stderr == f"UsageError: {REFUSED_CELLS[first_line]}\n"
    assert (outcome.stdout, outcome.displays, outcome.value) == ("", [], None)
    assert "ran" not in cells
    assert fake.user_stats() == before


@pytest.mark.parametrize("line", REFUSED_LINES)
def test_a_line_is_refused_in_one_line(cells, fake, line):
    """The same holds for a line magic and its statement."""
    before = fake.user_stats()
    outcome = cells(line)
    assert type(outcome.error).__name__ == "UsageError"
    assert outcome.stderr == f"UsageError: {REFUSED_LINES[line]}\n"
    assert (outcome.stdout, outcome.displays, outcome.value) == ("", [], None)
    assert "ran" not in cells
    assert fake.user_stats() == before
    assert cells("%gpumem_auto").texts == ["gpumem measures no cell by itself"]


def test_an_invalid_choice_names_the_choices(cells):
    """`%gpumem_auto maybe` says what it takes instead."""
    outcome = cells("%gpumem_auto maybe")
    assert outcome.stderr.startswith("UsageError: %gpumem_auto: argument state: invalid choice: 'maybe' (choose from ")
    assert outcome.stderr.count("\n") == 1


@pytest.mark.parametrize("code", ["%gpumem --help", "%gpumem -q --help print(1)", "%%gpumem --help\nran = True"])
def test_help_is_printed_and_is_no_error(cells, code):
    """`--help` prints the help, runs nothing and leaves the cell's status good."""
    outcome = cells(code)
    assert outcome.error is None
    assert outcome.stdout.startswith("usage: %gpumem\n       %gpumem [options] STATEMENT\n       %%gpumem [options]\n")
    for flag in ("-d N, --device N", "-q, --quiet", "-o, --output", "-v NAME, --variable NAME", "-r N, --repeat N"):
        assert f"\n  {flag}" in outcome.stdout
    assert (outcome.stderr, outcome.displays) == ("", [])
    assert "ran" not in cells


def test_help_of_auto_is_printed(cells):
    """`%gpumem_auto --help` explains itself and switches nothing on."""
    outcome = cells("%gpumem_auto on --help")
    assert outcome.stdout.startswith("usage: %gpumem_auto [on|off] [options]\n")
    assert cells("%gpumem_auto").texts == ["gpumem measures no cell by itself"]


@pytest.mark.parametrize(("question", "magic"), [("%gpumem?", "%gpumem"), ("%%gpumem?", "%%gpumem")])
def test_a_question_mark_shows_the_help(cells, monkeypatch, question, magic):
    """`%gpumem?` shows, as the docstring, what `--help` prints."""
    shown = []
    monkeypatch.setattr("IPython.core.page.page", lambda data, *rest, **options: shown.append(data["text/plain"]))
    assert cells(question).error is None
    text = cells("%gpumem --help").stdout.strip()
    docstring = cells.shell.object_inspect(magic)["docstring"]
    assert docstring.strip() == text
    assert len(shown) == 1
    assert "Measure what code does to GPU memory" in shown[0]


COMPLETIONS = {
    "%gpumem --": ["--device", "--help", "--output", "--quiet", "--repeat", "--variable"],
    "%%gpumem --": ["--device", "--help", "--output", "--quiet", "--repeat", "--variable"],
    "%gpumem -q --de": ["--device"],
    "%gpumem -d": ["-d"],
    "x = %gpumem --o": ["--output"],
    "gpumem --o": ["--output"],
    "%gpumem ": ["--device", "--help", "--output", "--quiet", "--repeat", "--variable"],
    "%gpumem -d ": ["0", "fake:0"],
    "%%gpumem --device ": ["0", "fake:0"],
    "%gpumem -d f": ["fake:0"],
    "%gpumem -d fake:": ["fake:0"],
    "%gpumem_auto ": ["on", "off"],
    "%gpumem_auto of": ["off"],
    "%gpumem_auto on --m": ["--min"],
    "%gpumem_auto on -d ": ["0", "fake:0"],
}


@pytest.mark.parametrize("line", COMPLETIONS)
def test_options_and_values_are_completed(cells, line):
    """Tab offers the magic's options and values, and nothing else beside them."""
    assert cells.complete(line) == COMPLETIONS[line]


@pytest.mark.parametrize("line", ["%gpumem print(first_na", "%gpumem -q y = first_na", "first_na"])
def test_a_statement_is_completed_as_code(cells, line):
    """Inside a statement Tab offers the notebook's names, and no option."""
    cells.shell.user_ns["first_name"] = 1
    assert cells.complete(line) == ["first_name"]


@pytest.mark.parametrize("line", ["%gpumem x --de", "%gpumem x - --de", "%gpumem f(-", "%time --de", "gpu --de"])
def test_no_option_is_offered_elsewhere(cells, line):
    """A dash in a statement, or behind another magic, is not the beginning of one of our options."""
    assert "--device" not in cells.complete(line)


def test_quiet_shows_nothing(cells):
    """`-q` runs and measures without a report."""
    outcome = cells("%gpumem -q -v cost fake.allocate(MiB)")
    assert (outcome.value, outcome.displays) == (1, [])
    assert cells["cost"].peak_allocated == MiB


def test_variable_stores_the_result_of_a_cell(cells):
    """`-v` stores the result object, and the report is shown all the same."""
    outcome = cells("%%gpumem -v cost\nfake.allocate(3 * MiB)")
    assert cells["cost"][0].delta_allocated == 3 * MiB
    assert cells["cost"].to_dict()["devices"][0]["peak_allocated"] == 3 * MiB
    assert outcome.texts == [str(cells["cost"])]


def test_variable_stores_the_result_of_a_failed_cell(cells):
    """`-v` stores the result also when the cell fails, with the name of what stopped it."""
    cells("%%gpumem -q -v cost\nfake.allocate(MiB)\n1 / 0")
    assert (cells["cost"].error, cells["cost"].peak_allocated) == ("ZeroDivisionError", MiB)


def test_output_returns_the_result_instead_of_showing_it(cells):
    """`-o` makes the result object the value of the line, and shows nothing by itself."""
    outcome = cells("%gpumem -o fake.allocate(MiB)")
    assert outcome.value.peak_allocated == MiB
    assert outcome.displays == []


def test_output_of_a_status(cells):
    """`-o` without a statement returns the status object."""
    status = cells("%gpumem -o").value
    assert [one.device.label for one in status.devices] == ["fake:0"]


def test_a_result_can_be_assigned(cells):
    """`x = %gpumem -o f()` binds the result object."""
    outcome = cells("x = %gpumem -o fake.allocate(MiB)")
    assert (outcome.value, outcome.displays) == (None, [])
    assert cells["x"].peak_allocated == MiB


def test_a_value_can_be_assigned(cells):
    """`x = %gpumem f()` binds what `f()` returned, and shows the report."""
    outcome = cells("x = %gpumem 6 * 7")
    assert cells["x"] == 42
    assert len(outcome.displays) == 1


def test_a_statement_binds_names(cells):
    """`%gpumem y = f()` binds `y` in the notebook."""
    cells("%gpumem y = 6 * 7")
    assert cells["y"] == 42


def test_a_statement_sees_the_locals_of_a_function(cells):
    """Inside a function the statement reads the function's own names."""
    assert cells("def f(inner):\n    return get_ipython().run_line_magic('gpumem', '-q inner + 1')\nf(1)").value == 2


@pytest.mark.parametrize("prefix", ["%gpumem ", "%%gpumem\n", "%%gpumem -r 1\n"])
def test_braces_and_dollars_reach_the_code_unchanged(cells, prefix):
    """`{x}` and `$x` are not expanded, though a variable of that name exists."""
    cells.shell.user_ns["x"] = "expanded"
    assert cells(prefix + "print('{x}', '$x', '$$x', '{{x}}')").stdout == "{x} $x $$x {{x}}\n"


def test_a_statement_may_begin_with_a_dash(cells):
    """After `--` everything is the statement."""
    assert cells("%gpumem -q -- -5").value == -5
    assert cells("%gpumem -- -5").value == -5


@pytest.mark.parametrize(
    ("statement", "value"),
    [("'a   b'", "a   b"), ('"%d" % 5', "5"), ("r'\\n'", "\\n"), ("[1,2][-1]", 2), ("'-q'", "-q")],
)
def test_a_statement_is_not_rewritten(cells, statement, value):
    """Quotes, spaces, percent signs and backslashes of the statement reach Python as typed."""
    assert cells(f"%gpumem {statement}").value == value


def test_repeats_show_each_run(cells):
    """`-r 3` runs the statement three times, shows a row for each run and returns nothing."""
    outcome = cells("%gpumem -r 3 -v runs fake.allocate(MiB)")
    assert outcome.value is None
    assert [run.peak_allocated for run in cells["runs"].runs] == [MiB, 2 * MiB, 3 * MiB]
    assert [line.split()[:2] for line in outcome.texts[0].splitlines()[2:5]] == [
        ["run", "1"],
        ["run", "2"],
        ["run", "3"],
    ]


def test_repeats_of_a_cell_stop_at_an_error(cells):
    """A run that fails is the last one, and the runs so far are shown."""
    outcome = cells("%%gpumem -r 3 -v runs\nfake.allocate(MiB)\nif fake.user_peak() > MiB:\n    raise KeyError('stop')")
    assert repr(outcome.error) == "KeyError('stop')"
    assert [run.error for run in cells["runs"].runs] == [None, "KeyError"]
    assert len(outcome.displays) == 1


def test_devices_can_be_chosen(cells, fake):
    """`-d` measures that device only, by index or by label."""
    assert [use.device.label for use in cells("%gpumem -o -d 0 1").value.devices] == ["fake:0"]
    assert [use.device.label for use in cells("%gpumem -o -d fake:0 -d 0 1").value.devices] == ["fake:0"]


def test_status_adds_up_to_the_card(cells, fake):
    """`%gpumem` shows layers that sum to the device's memory."""
    fake.allocate(3 * MiB)
    status = cells("%gpumem -o").value
    assert sum(size for _, size in status.devices[0].layers) == 8 * 2**30
    text = cells("%gpumem").texts[0]
    assert text.splitlines()[0] == "fake:0 · scripted device · 8.00 GiB"
    assert "  allocated by tensors            3.00 MiB   0.0 %" in text.splitlines()


def test_status_changes_no_counter(cells, fake):
    """Looking at the status leaves the user's counters as they are."""
    fake.free(fake.allocate(MiB))
    before = fake.user_stats()
    cells("%gpumem")
    assert fake.user_stats() == before


def test_status_without_a_device(bare):
    """Before a GPU is used, the status says so in one line and is no error."""
    bare("%load_ext jupyter_gpumem")
    bare.shell.run_cell("from jupyter_gpumem import devices")
    outcome = bare("%gpumem -o")
    assert outcome.error is None
    assert outcome.value.devices == ()
    assert str(outcome.value).count("\n") == 0
