"""The options of the magics: what belongs to us, what is the user's verbatim, what Tab offers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from IPython.core.error import UsageError

from jupyter_gpumem.magics.catalogue import GPUMEM, GPUMEM_AUTO
from jupyter_gpumem.magics.options import Options
from jupyter_gpumem.units import MiB


@pytest.mark.parametrize(
    "statement",
    [
        "y = model(x)",
        "f('a  b',   \"c -q d\")",
        "x  =   1",
        "x = -1",
        "y;",
        "a; b",
        "100 % 7",
        "'%s %%' % x",
        "x -q",
        "f(x) --help",
        "f(x) -- y",
        "f'{x!r:>{width}}'",
        "print('$HOME', {1: {}})",
        "d['-v']",
        "x if y else -z",
        "\\x",
        "print('ünïcode → 例')",
        "!nvidia-smi -q",
        "'''three   quotes'''",
    ],
)
@pytest.mark.parametrize("before", ["", "-q ", "-d 0 -v r  ", "--repeat=3 "])
def test_a_statement_is_the_users_verbatim(before, statement):
    """From the first word that is no option, every character of the line stays as it is."""
    assert GPUMEM.options.parse(before + statement).statement == statement


@pytest.mark.parametrize("statement", ["-1 + x", "-x", "--x", "-q", "--help", "-- x", "'-q'"])
def test_two_dashes_end_the_options(statement):
    """What follows `--` is the statement, even if it looks like an option."""
    assert GPUMEM.options.parse(f"-q -- {statement}").statement == statement
    assert GPUMEM.options.parse(f"-- {statement}").quiet is False


def test_a_leading_minus_is_an_option_unless_it_follows_two_dashes():
    """`-1` alone is refused rather than guessed at."""
    with pytest.raises(UsageError, match="unrecognized arguments: -1"):
        GPUMEM.options.parse("-1 + x")


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_any_line_is_read_or_refused_in_one_line(text):
    """No line raises anything but a usage error, and what is read ends in the user's own characters."""
    try:
        options, refusal = GPUMEM.options.parse(text), "%gpumem: "
    except UsageError as error:
        options, refusal = None, str(error)
    assert refusal.startswith("%gpumem: ")
    assert options is None or options.help or text.rstrip().endswith(options.statement)


@given(st.text(max_size=30))
def test_any_statement_after_a_word_is_kept(text):
    """Behind the first word of a statement nothing is interpreted."""
    statement = f"x {text}".strip()
    assert GPUMEM.options.parse(f"-q {statement}").statement == statement


def test_the_options_of_a_line():
    """Each option arrives under its name, with its defaults."""
    empty = GPUMEM.options.parse("")
    assert vars(empty) == {
        "device": None, "quiet": False, "output": False, "variable": None, "repeat": None, "help": False,
        "statement": "",
    }  # fmt: skip
    full = GPUMEM.options.parse("-d 0 --device cuda:1 -q -o -v cost -r 3 f()")
    assert (full.device, full.quiet, full.output, full.variable, full.repeat) == (
        ["0", "cuda:1"],
        True,
        True,
        "cost",
        3,
    )
    assert full.statement == "f()"


@pytest.mark.parametrize("line", ["-r3 -qo f()", "--repeat=3 -q -o f()", "-r 3 -oq f()", "-qor3 f()"])
def test_options_may_be_joined(line):
    """Short options join as in any command, and long ones take `=`."""
    options = GPUMEM.options.parse(line)
    assert (options.repeat, options.quiet, options.output, options.statement) == (3, True, True, "f()")


def test_a_joined_option_finds_its_value():
    """The value may follow a group of short options, and is not taken for the statement."""
    options = GPUMEM.options.parse("-qr 3 f()")
    assert (options.quiet, options.repeat, options.statement) == (True, 3, "f()")


def test_equal_lines_share_one_reading():
    """A cell that runs often is parsed once; the shared object has lists of its own line only."""
    assert GPUMEM.options.parse("-d 0 x") is GPUMEM.options.parse("-d 0 x")
    assert GPUMEM.options.parse("-d 1 x").device == ["1"]
    assert GPUMEM.options.parse("x").device is None


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("-z", "unrecognized arguments: -z"),
        ("--devic 0", "unrecognized arguments: --devic"),
        ("-r", "argument -r/--repeat: expected one argument"),
        ("-r x f()", "argument -r/--repeat: not a number of at least 1: 'x'"),
        ("-r 0 f()", "argument -r/--repeat: not a number of at least 1: '0'"),
        ("-r -1 f()", "argument -r/--repeat: not a number of at least 1: '-1'"),
        ("-r 1.5 f()", "argument -r/--repeat: not a number of at least 1: '1.5'"),
        ("-r ² f()", "argument -r/--repeat: not a number of at least 1: '²'"),
        ("-v 1x f()", "argument -v/--variable: not a variable name: '1x'"),
        ("-v class f()", "argument -v/--variable: not a variable name: 'class'"),
        ("-v a.b f()", "argument -v/--variable: not a variable name: 'a.b'"),
        ("-q=1 f()", "argument -q/--quiet: ignored explicit argument"),
    ],
)
def test_what_is_not_understood_is_refused_in_one_line(line, reason):
    """The refusal names the option and the value, and points to the help."""
    with pytest.raises(UsageError) as refusal:
        GPUMEM.options.parse(line)
    message = str(refusal.value)
    assert message.startswith(f"%gpumem: {reason}")
    assert message.endswith("; %gpumem --help lists what there is")
    assert "\n" not in message


def test_help_wins_over_everything_before_the_statement():
    """`--help` is answered even beside an option that would be refused."""
    assert GPUMEM.options.parse("-r x --help").help is True
    assert GPUMEM.options.parse("--help").help is True
    assert GPUMEM.options.parse("f(x) --help").help is False


def test_the_help_names_every_option_and_example():
    """The text comes from the parser, with single percent signs as they are typed."""
    text = GPUMEM.options.format_help()
    assert text.startswith("usage: %gpumem\n       %gpumem [options] STATEMENT\n       %%gpumem [options]\n")
    for flag in (
        "-d N, --device N",
        "-q, --quiet",
        "-o, --output",
        "-v NAME, --variable NAME",
        "-r N, --repeat N",
        "--help",
    ):
        assert flag in text
    assert "  r = %gpumem -o model(x) " in text
    assert max(map(len, text.splitlines())) <= 120


def test_the_options_of_auto():
    """State, threshold and devices; no statement."""
    options = GPUMEM_AUTO.options.parse("on --min 1.5MiB -d 0")
    assert (options.state, options.min, options.device, options.statement) == ("on", 3 * MiB // 2, ["0"], "")
    assert GPUMEM_AUTO.options.parse("").state is None
    assert GPUMEM_AUTO.options.parse("on").min == 0


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("maybe", "argument state: invalid choice: 'maybe'"),
        ("on off", "unrecognized arguments: off"),
        ("on --min lots", "argument --min: not a size: 'lots'"),
        ("on --min", "argument --min: expected one argument"),
        ("on --min -1MiB", "argument --min: not a size: '-1MiB'"),
        ("on 'x", 'cannot read "on \'x" (No closing quotation)'),
    ],
)
def test_bad_options_of_auto(line, reason):
    """Each is refused in one line that names what was wrong."""
    with pytest.raises(UsageError) as refusal:
        GPUMEM_AUTO.options.parse(line)
    assert str(refusal.value).startswith(f"%gpumem_auto: {reason}")
    assert "\n" not in str(refusal.value)


def test_a_semicolon_may_end_a_line_without_a_statement():
    """A habit from cells: it belongs to nothing of ours. One inside the line is not taken away."""
    assert GPUMEM_AUTO.options.parse("on --min 1MiB; ") == GPUMEM_AUTO.options.parse("on --min 1MiB")
    with pytest.raises(UsageError, match="not a size: '1;MiB'"):
        GPUMEM_AUTO.options.parse("on --min '1;MiB';")


@pytest.fixture
def options():
    """Options with every kind of value."""
    return (
        Options("thing", "A thing.", usage=("%thing",), statement=True)
        .option("-d", "--device", complete=lambda word: ["0", "1", "cuda:0"])
        .option("-q", "--quiet", action="store_true")
        .option("-n", "--name")
        .finish()
    )


@pytest.mark.parametrize(
    ("line", "word", "offered"),
    [
        ("", "", ["--device", "--help", "--name", "--quiet"]),
        ("--", "--", ["--device", "--help", "--name", "--quiet"]),
        ("--d", "--d", ["--device"]),
        ("-", "-", ["--device", "--help", "--name", "--quiet", "-d", "-n", "-q"]),
        ("-d ", "", ["0", "1", "cuda:0"]),
        ("-d c", "c", ["cuda:0"]),
        ("--device 1", "1", ["1"]),
        ("-d 0 -", "-", ["--device", "--help", "--name", "--quiet", "-d", "-n", "-q"]),
        ("-d 0 ", "", ["--device", "--help", "--name", "--quiet"]),
        ("-qd ", "", ["0", "1", "cuda:0"]),
        ("-n ", "", []),
        ("f(", "f(", []),
        ("f -", "-", []),
        ("-d 0 f -", "-", []),
        ("x ", "", []),
        ("-- -", "-", []),
        ("-z", "-z", []),
    ],
)
def test_completion(options, line, word, offered):
    """Tab offers options and values where they can stand, and nothing inside a statement."""
    assert options.complete(line, word) == offered


def test_a_comment_is_no_statement():
    """What follows a `#` after the options is not code to be measured."""
    assert GPUMEM.options.parse("-q # the big one").statement == ""
    assert GPUMEM.options.parse("f('#') # why").statement == "f('#') # why"


def test_completion_of_choices():
    """An argument with fixed values offers them."""
    assert GPUMEM_AUTO.options.complete("o", "o") == ["on", "off"]
    assert GPUMEM_AUTO.options.complete("", "") == ["on", "off"]
    assert GPUMEM_AUTO.options.complete("of", "of") == ["off"]


def test_completion_of_devices(fake):
    """Devices in use are offered by index and by label."""
    assert GPUMEM.options.complete("-d ", "") == ["0", "fake:0"]
    assert GPUMEM_AUTO.options.complete("on --device f", "f") == ["fake:0"]
