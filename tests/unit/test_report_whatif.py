"""How what-if, the recorder's status and a recording look; and that nothing in a file reaches a terminal or a page."""

from __future__ import annotations

import re
import shlex
import sys
from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import pytest
from compared_recordings import recording
from test_report import read, words

from jupyter_gpumem.comparison import whatif
from jupyter_gpumem.recording import Recording
from jupyter_gpumem.records import RecorderStatus
from jupyter_gpumem.report import Sheet, mimebundle, printable, recording_sheets, sheets, to_html, to_text
from jupyter_gpumem.units import GiB, MiB, format_bytes

BASE = 0x7F0000000000


def without_extra():
    """Return a recording as PyTorch alone saves it."""
    return Recording({key: value for key, value in recording().snapshot.items() if key != "jupyter_gpumem"})


def contradicted():
    """Return a recording whose settings are not those under which it was made."""
    return Recording({**recording().snapshot, "allocator_settings": {"expandable_segments": True}}, "changed.pickle")


def begun():
    """Return a recording that begins when one block is alive and more is in the cache, and goes on with a small one."""
    parts = ((30, "active_allocated"), (40, "inactive"))
    blocks = [{"size": size * MiB, "requested_size": size * MiB, "state": state} for size, state in parts]
    segment = {"device": 0, "address": BASE, "total_size": 70 * MiB, "stream": 0, "blocks": blocks}
    event = {"addr": BASE + 30 * MiB, "size": 15 * MiB, "stream": 0}
    events = [event | {"action": action} for action in ("alloc", "free_requested", "free_completed")]
    return Recording({"segments": [segment], "device_traces": [events]}, "begun.pickle")


EXPANDABLE = "expandable_segments:True"
UNSAFE = f"max_split_size_mb:512,{EXPANDABLE}"
CAPPED = "encoder-default-cap4.3-oom"
WHATIF = {
    "whatif_helps": lambda: whatif(recording(), ["max_split_size_mb:128", EXPANDABLE]),
    "whatif_nothing_helps": lambda: whatif(recording(), ["max_split_size_mb:128", "roundup_power2_divisions:[>:1]"]),
    "whatif_nothing_asked": lambda: whatif(recording(), []),
    "whatif_does_not_fit": lambda: whatif(recording(), [EXPANDABLE], memory="1GiB"),
    "whatif_smaller_card": lambda: whatif(recording(), [EXPANDABLE], memory="6GiB"),
    "whatif_cap": lambda: whatif(recording(CAPPED), [EXPANDABLE, "garbage_collection_threshold:0.6"]),
    "whatif_cap_lifted": lambda: whatif(recording(CAPPED), [EXPANDABLE], limit="off"),
    "whatif_check_not_passed": lambda: whatif(contradicted(), ["", EXPANDABLE]),
    "whatif_unsafe": lambda: whatif(recording(), [UNSAFE, "garbage_collection_threshold:0.8"]),
    "whatif_defaults_are_best": lambda: whatif(recording("encoder-maxsplit128"), [""]),
    "whatif_start_does_not_fit": lambda: whatif(begun(), [EXPANDABLE], limit="20MiB"),
    "whatif_unknown_card": lambda: whatif(without_extra(), [EXPANDABLE]),
}  # fmt: skip
STATUS = {
    "recorder_off": RecorderStatus(running=False, ours=False, events=None, max_entries=None, stacks=None),
    "recorder_stopped": RecorderStatus(running=False, ours=False, events=12_345, max_entries=None, stacks=None),
    "recorder_on": RecorderStatus(running=True, ours=True, events=0, max_entries=1_000_000, stacks=True),
    "recorder_without_stacks": RecorderStatus(running=True, ours=True, events=70, max_entries=70, stacks=False),
    "recorder_of_the_users": RecorderStatus(running=True, ours=False, events=5, max_entries=None, stacks=None),
}


@cache
def shown(name):
    return STATUS[name] if name in STATUS else WHATIF[name]()


@pytest.mark.parametrize("name", [*WHATIF, *STATUS])
def test_text(name, golden):
    """The text form is as reviewed."""
    golden(name, str(shown(name)))


@pytest.mark.parametrize("name", [*WHATIF, *STATUS])
def test_html_says_the_same_as_the_text(name):
    """The HTML is well-formed, passive, and has the same words in the same order as the text."""
    bundle = mimebundle(shown(name))
    assert bundle == {"text/plain": str(shown(name)), "text/html": shown(name)._repr_html_()}
    page = read(bundle["text/html"])
    assert words(" ".join(page.text)) == words(bundle["text/plain"])
    assert page.tags <= {"div", "span", "b", "table", "tr", "td", "th"}
    assert {key for key, _ in page.attributes} <= {"style", "scope"}


@pytest.mark.parametrize("name", WHATIF)
def test_a_whatif_says_all_it_must(name):
    """The recorded settings come first, every result says how it was checked, and the best says how to use it."""
    result = shown(name)
    lines = str(result).splitlines()
    assert lines[2].startswith(("  recorded: ", "  recorded settings, replayed: "))
    assert sum(line.startswith("  best: ") for line in lines) == (result.best is not None)
    text = " ".join(" ".join(line.split()) for line in lines)
    assert ("Checked: " in text) == result.check.exact
    assert ("Check not passed: " in text) == (not result.check.exact)
    assert ("To use it: " in text) == (result.best is not None)
    assert all(line == line.rstrip() for line in lines)


# Narrow terminals


LONG = f"{EXPANDABLE},roundup_power2_divisions:[256:1,512:2,1024:4,>:8],garbage_collection_threshold:0.8"
NARROW = {
    "cap": lambda: whatif(recording(CAPPED), [EXPANDABLE, "", LONG]),
    "helps": lambda: whatif(
        recording(), ["max_split_size_mb:128", EXPANDABLE, f"{EXPANDABLE},large_segment_size_mb:40"]
    ),
}


@cache
@pytest.mark.parametrize(
    ("calls", "blocks", "says"),
    [
        (0, 0, "makes no recorded driver call and places no block"),
        (1, 1, "the one recorded driver call and places the one"),
    ],
)
def test_numbers_that_are_no_plural(calls, blocks, says):
    """A recording with one event or none reads like one."""
    result = whatif(recording(), [""])
    few = replace(result, check=replace(result.check, segment_events=calls, blocks=blocks, mismatches=0, misplaced=0))
    assert says in " ".join(words(to_text(sheets(few))))


def narrow(name):
    return NARROW[name]()


@pytest.mark.parametrize("name", NARROW)
@pytest.mark.parametrize("width", [120, 80])
def test_text_of_a_narrow_terminal(name, width, golden):
    """In a terminal the table is as narrow as that is, as reviewed."""
    golden(f"whatif_{name}_in_{width}_columns", to_text(sheets(narrow(name)), width))


@pytest.mark.parametrize("name", NARROW)
@pytest.mark.parametrize("width", [*range(64, 200, 7), 10, 1])
def test_nothing_is_lost_in_a_narrow_terminal(name, width):
    """Whatever the width: no line is wider than it must be, every number is there, settings can be put together."""
    result = narrow(name)
    wide, text = to_text(sheets(result)), to_text(sheets(result), width)
    command = max(len(f"PYTORCH_CUDA_ALLOC_CONF={row.settings}") for row in result.results if row.best)
    assert all(len(line) <= max(width, command + 4, 64) for line in text.splitlines())
    names = "".join(re.split(r" {2,}", line.strip())[0] for line in text.splitlines())
    for row in result.results:
        assert row.settings in names
        assert format_bytes(row.peak_reserved) in text
    assert f"PYTORCH_CUDA_ALLOC_CONF={result.best}" in text
    if width > max(map(len, wide.splitlines())):
        assert text == wide


def test_columns_stay_aligned_in_a_narrow_terminal():
    """The numbers of a column end where its head ends."""
    lines = to_text(sheets(narrow("cap")), 120).splitlines()
    ends = [{match.end() for match in re.finditer(r"\S+( \S+)*", line)} for line in lines[2:5]]
    assert ends[0] & ends[1] & ends[2]


# Recordings


def place(filename="/home/me/train.py", line=12, name="step"):
    return {"filename": filename, "line": line, "name": name}


TORCH = place("/opt/venv/lib/python3.12/site-packages/torch/nn/modules/linear.py", 134, "forward")


def block(size, frames=None, state="active_allocated"):
    found = {"size": size, "requested_size": size, "state": state}
    return found if frames is None else found | {"frames": frames}


def small(*blocks, device=0, extra=None, source="run.pickle", settings=None):
    """Return a recording of a device with one segment of these blocks."""
    segment = {"device": device, "address": BASE, "total_size": 64 * MiB, "stream": 0, "segment_type": "large"}
    free = block(64 * MiB - sum(one["size"] for one in blocks), state="inactive")
    event = {"action": "segment_alloc", "addr": BASE, "size": 64 * MiB, "stream": 0}
    about = {"torch": "2.13.0", "device_name": "NVIDIA H200", "total_memory": 140 * GiB, "memory_fraction": 1.0}
    snapshot = {
        "segments": [segment | {"blocks": [*blocks, free]}],
        "device_traces": [[event] if index == device else [] for index in range(device + 1)],
        "allocator_settings": settings or {},
        "jupyter_gpumem": about if extra is None else extra,
    }
    return Recording(snapshot, source)


def two_devices():
    first, second = small(block(MiB)), small(block(2 * MiB), block(3 * MiB), device=1)
    both = {**second.snapshot, "segments": first.snapshot["segments"] + second.snapshot["segments"]}
    both["device_traces"] = [first.events(0), second.events(1)]
    return Recording(both, "both.pickle")


RECORDINGS = {
    "recording": lambda: recording(CAPPED),
    "recording_with_stacks": lambda: small(
        block(20 * MiB, [TORCH, place(line=40, name="forward"), place()]),
        block(4 * MiB, [TORCH, place(line=40, name="forward"), place(line=99)]),
        block(8 * MiB, [TORCH]),
        block(2 * MiB, [place("/a/very/long/way/" + 9 * "to/another/" + "place.py", 7, "a_name_that_never_ends_" * 4)]),
        block(MiB, [{"filename": "only.py"}]),
        block(MiB),
    ),
    "recording_of_torch_alone": lambda: small(block(MiB), extra={}, settings={"expandable_segments": True}),
    "recording_of_two": two_devices,
}


@pytest.mark.parametrize("name", RECORDINGS)
def test_text_of_a_recording(name, golden):
    """What a recording holds is shown as reviewed, in text and in HTML."""
    sheets = recording_sheets(RECORDINGS[name]())
    golden(name, to_text(sheets))
    assert words(" ".join(read(to_html(sheets)).text)) == words(to_text(sheets))
    assert all(len(line) <= 120 for line in to_text(sheets).splitlines())


def test_the_largest_sites_are_shown():
    """Of many places the eight that hold most are listed, the largest first."""
    many = small(*(block(size * 1024, [place(line=size)]) for size in range(1, 30)))
    (sheet,) = recording_sheets(many)[1:]
    assert [row[1] for row in sheet.rows] == [f"{size}.00 KiB" for size in range(29, 21, -1)]


def test_a_cell_of_this_notebook_is_called_by_its_number(monkeypatch):
    """A recording that was made in the same session names the cell, not the file that stands for it."""
    cells = {"ipykernel_7/1234.py": ("Cell", "In[5]")}
    shell = SimpleNamespace(compile=SimpleNamespace(format_code_name=cells.get))
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    frame = {"filename": "ipykernel_7/1234.py", "line": 23, "name": "train"}
    (sheet,) = recording_sheets(small(block(MiB, [frame])))[1:]
    assert sheet.rows == (("In[5], line 23 in train", "1.00 MiB"),)


# What a hostile file says


EVIL = "<script>alert(1)</script>\x1b[31m\r\n\t\x07\x9b2J\u202egnp\u2028\ud800"
SPELT = "<script>alert(1)</script>\\x1b[31m\\r\\n\\t\\x07\\x9b2J\\u202egnp\\u2028\\ud800"
ABOUT = {"torch": "2.13.0", "device_name": "H200", "total_memory": GiB, "memory_fraction": 1.0}


def hostile_note():
    noted = small(block(MiB))
    noted._notes.append(EVIL)
    return noted


HOSTILE = {
    "source": lambda: small(block(MiB), source=EVIL),
    "device name": lambda: small(block(MiB), extra={**ABOUT, "device_name": EVIL}),
    "version": lambda: small(block(MiB), extra={**ABOUT, "torch": EVIL}),
    "file of a frame": lambda: small(block(MiB, [place(EVIL)])),
    "line of a frame": lambda: small(block(MiB, [place(line=EVIL)])),
    "name of a frame": lambda: small(block(MiB, [place(name=EVIL)])),
    "settings": lambda: small(block(MiB), settings={"PYTORCH_CUDA_ALLOC_CONF": f"{EVIL}:1"}),
    "other settings": lambda: small(block(MiB), extra={**ABOUT, "alloc_conf": f"backend:{EVIL}"}),
    "a setting": lambda: small(block(MiB), settings={"max_split_size": EVIL}),
    "a note": hostile_note,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_recording_is_shown_harmlessly(name):
    """Nothing that a file says moves a cursor, breaks a line, colours or reverses text, or becomes markup."""
    found = HOSTILE[name]()
    result = whatif(found, [EXPANDABLE])
    sheets = recording_sheets(found)
    for text in (str(result), to_text(sheets)):
        assert all(line.isprintable() for line in text.split("\n"))
        text.encode()
    for html in (mimebundle(result)["text/html"], to_html(sheets)):
        assert html.isprintable()
        assert "<script" not in html
        read(html)
    if name in {"source", "device name", "a note"}:
        assert SPELT in " ".join(to_text(sheets).split())
        assert SPELT in "".join(read(result._repr_html_()).text)


def test_settings_from_a_file_are_safe_to_paste():
    """What is advised to be put into a shell holds nothing that the shell would run, whatever the recording says."""
    source = recording().snapshot
    for evil in ("backend:$(reboot)", "backend:`reboot`", "backend:x|reboot", "backend:x&reboot", "backend:x>y"):
        about = {**source["jupyter_gpumem"], "alloc_conf": evil}
        result = whatif(Recording({**source, "jupyter_gpumem": about}), [EXPANDABLE])
        assert result.best == EXPANDABLE
        assert "reboot" not in str(result.to_dict()["results"])
        assert any("is not understood" in note for note in result.notes)


def test_what_a_shell_would_take_otherwise_is_quoted():
    """`>` in a settings string would send the rest of it to a file."""
    choice = "roundup_power2_divisions:[256:1,>:4]"
    text = str(whatif(recording("encoder-maxsplit128"), [choice]))
    (told,) = re.findall(r"set (PYTORCH_CUDA_ALLOC_CONF=.*) before Python starts", text)
    assert shlex.split(told) == [f"PYTORCH_CUDA_ALLOC_CONF={choice}"]
    assert list(shlex.shlex(told, posix=True, punctuation_chars=True)) == shlex.split(told)


@pytest.mark.parametrize("frames", [None, 5, "text", {}, {"a": 1}, (1, 2), [None], [5], ["a"], [[]], [{}], [{1: 2}]])
def test_odd_frames_are_passed_over(frames):
    """Frames that are not what PyTorch writes are no reason to fail."""
    text = to_text(recording_sheets(small(block(MiB, frames))))
    assert "allocated at the end   1.00 MiB" in text
    assert ("most of what lives" in text) == (type(frames) is list and type(frames[0]) is dict)


PLAIN = ["", "a b", "Größe", "日本語", "🦀", "a·b", "$x `y` \\n"]


@pytest.mark.parametrize("text", PLAIN)
def test_ordinary_texts_are_shown_as_they_are(text):
    """Letters of every script, symbols and blanks stay."""
    assert printable(text) == text


def test_every_part_of_a_sheet_is_made_printable():
    """Headings, columns, rows and notes alike."""
    sheet = Sheet((EVIL, EVIL), (EVIL,), ((EVIL, EVIL),), (EVIL,))
    assert to_text([sheet]).count("\n") == 3
    assert to_text([sheet]).count(SPELT) == 6
    assert not re.search(r"<script|[\x00-\x1f]", to_html([sheet]))
