"""A cell under `%%gpumem` runs as it would without it: through a real kernel, as a front end sees it."""

from __future__ import annotations

import itertools
import re
from importlib import metadata

import pytest

from tests.kernel.client import PATIENCE

OLD = metadata.version("ipykernel").startswith("6.")

SAME = {
    "last value": "6 * 7",
    "last of several": "1\n2\n3",
    "none": "None",
    "assignment": "x = 42",
    "semicolon": "6 * 7;",
    "semicolon and comment": "6 * 7;  # quiet",
    "printed": "print('a')\nprint('b', end='')\n'c'",
    "printed to stderr": "print('a', file=sys.stderr)",
    "await": "import asyncio\nawait asyncio.sleep(0)\n'slept'",
    "async for": "async def count():\n    yield 1\n[n async for n in count()]",
    "async with": "import contextlib\nasync with contextlib.AsyncExitStack() as stack:\n    print('in')\n'out'",
    "function": "def f(x):\n    return x + 1\n\nf(1)",
    "class": "class A:\n    def __repr__(self):\n        return 'an A'\n\nA()",
    "rich": "class B:\n    _repr_html_ = lambda self: '<b>B</b>'\n    __repr__ = lambda self: 'B'\nB()",
    "display": "from IPython.display import display\ndisplay(1, 'two')\n3",
    "braces": "print('{x}', f'{1 + 1}', '{{}}', {1: 2})",
    "dollars": "x = 1\nprint('$x', '$$x', '${x}')",
    "percent": "'%s and %%' % 5",
    "backslashes": "print('\\\\n', r'\\n', '\\t')",
    "triple quotes": "'''one\n  two\n\tthree\n\n%%gpumem -q\n%gpumem x\n!ls\n?\n'''",
    "other triple quotes": 'x = """\n%%gpumem\n    indented\n"""\nx.encode()',
    "continued line": "x = 1 + \\\n    2\nx",
    "unicode": "größe = 'π ≈ 3.14 🦀 日本語'\nprint(größe)\ngröße",
    "comments only": "# only\n# comments",
    "blank lines": "\n\n\n1",
    "indented": "    x = 1\n    x",
    "tab": "if True:\n\tprint('tab')",
    "shell": "!echo hello",
    "shell with a name": "word = 'hello'\n!echo {word} $word",
    "shell into a name": "lines = !echo hello\nlines",
    "question": "len?",
    "question at the end": "x = 1\nprint?",
    "line magic": "%precision 3\n3.14159",
    "line magic into a name": "where = %pwd\ntype(where)",
    "input": "input('name? ')",
    "underscore": "_dh is get_ipython().user_ns['_dh']",
    "html magic": "%%html\n<b>bold</b>",
    "shell magic": "%%bash\necho hello",
    "capture": "%%capture caught\nprint('x')\n1",
    "exit": "raise SystemExit",
    "future": "from __future__ import annotations\ndef f(x: nosuch): ...\nf.__annotations__",
    "empty": "",
    "spaces": "   ",
}

_COUNTED = re.compile(r"\bIn ?\[\d+\]|\b\d+\.py\b")
"""What IPython counts up or derives from a cell's text: its number, and the name of its file."""


def seen(reply) -> dict:
    """Return what a front end shows of a cell, besides our report, without the numbers that differ by nature."""
    displays = [bundle for bundle in reply.displays if not bundle["text/plain"].startswith("fake:0 · ")]
    return {
        "status": reply.status,
        "stdout": reply.stdout,
        "stderr": _COUNTED.sub("", reply.stderr),
        "displays": displays,
        "results": reply.results,
        "errors": [tuple(_COUNTED.sub("", text) for text in error) for error in reply.errors],
        "payload": reply.content.get("payload"),
    }


@pytest.mark.parametrize("name", SAME)
def test_a_cell_shows_what_it_shows_without_us(kernel, name):
    """Output, value, status and payload of a measured cell are those of the plain one, and the report comes once."""
    answers = {"answers": ["me"]} if name == "input" else {}
    kernel.run(SAME[name], **answers)  # some things IPython says the first time only
    plain = kernel.run(SAME[name], **answers)
    measured = kernel.run("%%gpumem\n" + SAME[name], **answers)
    assert seen(measured) == seen(plain)
    reports = [bundle for bundle in measured.displays if bundle["text/plain"].startswith("fake:0 · ")]
    assert [sorted(bundle) for bundle in reports] == [["text/html", "text/plain"]]


@pytest.mark.parametrize("name", ["last value", "await", "display", "triple quotes", "shell", "html magic", "empty"])
def test_a_cell_in_auto_mode_shows_what_it_shows_without_us(kernel, name):
    """The same holds when every cell is measured, with one line of text below each that ran anything."""
    plain = kernel.run(SAME[name])
    kernel.run("%gpumem_auto on")
    measured = kernel.run(SAME[name])
    lines = [bundle for bundle in measured.displays if bundle["text/plain"].startswith("gpumem ")]
    measured.displays = [bundle for bundle in measured.displays if bundle not in lines]
    assert seen(measured) == seen(plain)
    assert [list(bundle) for bundle in lines] == ([] if name == "empty" else [["text/plain"]])


PRINTING = """%%gpumem
import sys
print("x" * {size})
print("y" * {size}, file=sys.stderr)
"""


@pytest.mark.parametrize("size", [1, 10_000_000])
def test_a_report_comes_below_what_was_printed(kernel, size):
    """Nothing waits for the output thread, and yet it all comes in its order, however long it takes to send."""
    reply = kernel.run(PRINTING.format(size=size) + "display(1)\nprint(2)")
    order = [kind for kind, _ in itertools.groupby(reply.order)]  # what is long comes in pieces
    assert order == ["stdout", "stderr", "display_data", "stdout", "display_data"]
    assert len(reply.stdout) == size + 3


def test_a_report_in_a_cell_that_goes_on(kernel):
    """The report of a cell within a cell does not wait for the end of the outer one."""
    request = kernel.send("get_ipython().run_cell('%%gpumem\\n1')\ninput()", allow_stdin=True)
    assert kernel.wait_for_report(request)
    kernel.client.get_stdin_msg(timeout=PATIENCE)
    kernel.client.input("")
    assert kernel.wait(request).status == "ok"


@pytest.mark.parametrize("where", ["callback", "thread"])
def test_a_report_that_no_reply_follows(kernel, where):
    """A cell that was run behind the kernel's back gets its report too, though nothing else is sent after it."""
    kernel.run(
        "import asyncio, threading\n"
        "def later():\n    get_ipython().run_cell('%%gpumem\\n1')\n"
        "def start():\n    "
        + {
            "callback": "asyncio.get_event_loop().call_later(0.3, later)",
            "thread": "threading.Timer(0.3, later).start()",
        }[where]
    )
    request = kernel.send("start()")
    kernel.wait(request)
    assert kernel.wait_for_report(request)


def test_a_report_beside_a_stream_of_the_users_own(kernel):
    """One in the place of `sys.stdout` that can do no more than it must is flushed as usual."""
    kernel.run(
        "class Tee:\n"
        "    def __init__(self, stream): self.stream, self.flushed = stream, 0\n"
        "    def write(self, text): return self.stream.write(text)\n"
        "    def flush(self): self.flushed += 1; self.stream.flush()"
    )
    kernel.run("import sys; tee = sys.stdout = Tee(sys.stdout)")
    try:
        assert len(kernel.run("%%gpumem\nprint(1)").reports) == 1
        assert int(kernel.value("tee.flushed")) > 0
    finally:
        kernel.run("sys.stdout = tee.stream")


FAILING = {
    "direct": "a = 1\nb = 2\nc = 3\n1 / 0\nd = 4\ne = 5",
    "in a function": "def f():\n    x = 1\n    return x / 0\n\n\ny = 1\nf()\n",
    "chained": "try:\n    {}['k']\nexcept KeyError as error:\n    raise ValueError('v') from error\n\n",
    "during handling": "try:\n    {}['k']\nexcept KeyError:\n    nosuch\n\n",
    "group": "x = 1\nraise ExceptionGroup('g', [ValueError(1), KeyError(2)])\n\n",
    "after await": "import asyncio\n\n\nawait asyncio.sleep(0)\n1 / 0\n\n",
    "own interrupt": "x = 1\nraise KeyboardInterrupt\n\n",
    "assertion": "x = 1\nassert x == 2, 'not two'\n\n",
    "error with newlines": "raise RuntimeError('two\\nlines')\n\n",
    "library": "import json\n\n\njson.loads('{')\n\n",
    "display fails": (
        "\n\n\nclass Broken:\n    def __repr__(self):\n        raise TypeError('no repr')\n\n\nx = 1\nBroken()\n"
    ),
    "syntax": "a = 1\nb = 2\nc = (\n",
    "syntax in the middle": "a = 1\nb = 2\nc = = 3\nd = 4\n",
    "indentation": "a = 1\nb = 2\nif a:\nc = 3\n",
    "return": "a = 1\nb = 2\nreturn a\n",
    "line magic": "a = 1\nb = 2\nc = 3\n%nosuch\n",
}


@pytest.mark.parametrize("name", FAILING)
def test_an_error_shows_what_it_shows_without_us(kernel, name):
    """A failing cell has the status, the error and the traceback of the plain one, line for line, once."""
    plain = kernel.run("# plain\n\n\n\n\n" + FAILING[name])
    measured = kernel.run("%%gpumem\n\n\n\n\n" + FAILING[name])
    good = name == "display fails" and OLD  # what ipykernel 6 calls it
    assert plain.status == measured.status == ("ok" if good else "error")
    assert seen(measured) == seen(plain)
    assert "jupyter_gpumem" not in measured.shown
    assert measured.content.get("ename") == plain.content.get("ename")


@pytest.mark.parametrize("name", FAILING)
def test_a_report_follows_what_has_run(kernel, name):
    """The report of a failed cell names the error; there is none when nothing has run."""
    measured = kernel.run("%%gpumem\n" + FAILING[name])
    headings = [report.splitlines()[0] for report in measured.reports]
    if name in ("syntax", "syntax in the middle", "indentation", "return"):
        assert headings == []
    elif name == "display fails":
        assert len(headings) == 1
    else:
        assert len(headings) == 1
        assert headings[0].startswith(f"fake:0 · scripted device · stopped by {measured.content['ename']} after ")


def test_a_traceback_has_the_users_line_numbers(kernel):
    """The traceback points at the lines as they stand in the cell, the magic's line being the first."""
    reply = kernel.run("%%gpumem\n\ndef f():\n    1 / 0\n\nf()")
    number = reply.content["execution_count"]
    assert re.findall(r"Cell In\[(\d+)\], line (\d+)", reply.traceback) == [(str(number), "6"), (str(number), "4")]
    assert "----> 6 f()" in reply.traceback
    assert "----> 4     1 / 0" in reply.traceback
    assert reply.error == "ZeroDivisionError"


def test_out_of_memory(kernel):
    """A cell that fails for lack of memory keeps its error, and the report says how far it came."""
    reply = kernel.run("%%gpumem\nkept = fake.allocate(4096 * MiB)\n\nfake.allocate(8192 * MiB)")
    assert (reply.status, reply.error) == ("error", "FakeOutOfMemoryError")
    assert "----> 4 fake.allocate(8192 * MiB)" in reply.traceback
    (report,) = reply.reports
    assert report.splitlines()[0].startswith("fake:0 · scripted device · stopped by FakeOutOfMemoryError after ")
    assert report.splitlines()[2:] == [
        "  allocated  0 B    4.00 GiB   +4.00 GiB  4.00 GiB  +4.00 GiB",
        "  reserved   0 B    4.00 GiB   +4.00 GiB  4.00 GiB  +4.00 GiB",
        "  Got 4.00 GiB on top of what was there before memory ran out; all of it stays.",
        "  Ran out of memory once.",
    ]


@pytest.mark.parametrize(
    ("code", "line"),
    [
        ("%%gpumem -r 3\n\nx = 1\n1 / 0", 4),
        ("%%gpumem -r 1\n1 / 0\n\n\n", 2),
        ("%%time\n%%gpumem\n\nx = 1\n1 / 0", 5),
        ("a = 1\n\n%gpumem 1 / 0", 3),
    ],
)
def test_the_magic_itself_points_at_the_users_lines(kernel, code, line):
    """Where the magic runs the code itself, the last entry of the traceback is still the user's cell and line."""
    reply = kernel.run(code)
    assert (reply.status, reply.error) == ("error", "ZeroDivisionError")
    places = re.findall(r"Cell In\[(\d+)\], line (\d+)", reply.traceback)
    assert places[-1] == (str(reply.content["execution_count"]), str(line))
    assert f"----> {line} 1 / 0" in reply.traceback
    assert "jupyter_gpumem" not in reply.traceback
    assert len(reply.reports) == 1


def test_a_report_is_one_display_of_two_forms(kernel):
    """A report is one `display_data` with text and HTML, after the cell's output, and no `execute_result` of ours."""
    reply = kernel.run("%%gpumem\nx = fake.allocate(MiB)")
    assert [sorted(bundle) for bundle in reply.displays] == [["text/html", "text/plain"]]
    assert (reply.results, reply.stdout, reply.stderr) == ([], "", "")
    html = reply.displays[0]["text/html"]
    assert "<table" in html
    assert "<script" not in html
    for code in ("%gpumem", "%gpumem fake.allocate(MiB);", "%%gpumem -r 2\nx = 1"):
        reply = kernel.run(code)
        assert [sorted(bundle) for bundle in reply.displays] == [["text/html", "text/plain"]]
        assert reply.results == []
