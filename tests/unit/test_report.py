"""How results look: golden texts, and HTML that says the same."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_gpumem import report
from jupyter_gpumem.records import (
    NOTHING_YET,
    Counters,
    Device,
    DeviceStatus,
    DeviceUsage,
    DriverMemory,
    Fragmentation,
    Measurement,
    OomExplanation,
    OomIncident,
    OomText,
    Series,
    Status,
)
from jupyter_gpumem.report import Sheet, measurement_line, mimebundle, to_html, to_text
from jupyter_gpumem.report.sheet import sentence
from jupyter_gpumem.units import GiB, MiB, format_bytes

H200 = Device("cuda", 0, "NVIDIA H200", 139 * GiB + 820 * MiB, "GPU-1")
A100 = Device("cuda", 1, "NVIDIA A100-SXM4-80GB", 79 * GiB + 256 * MiB, "GPU-2")
APPLE = Device("mps", 0, "Apple GPU", 48 * GiB)


def counters(allocated, reserved, count=0, *, retries=0, ooms=0):
    """Return a reading with the given levels."""
    return Counters(
        allocated=allocated, reserved=reserved, retries=retries, ooms=ooms, allocation_count=count, live=count
    )


def usage(device=H200, **changes):
    """Return a usage in which 3 GiB were needed and 512 MiB stay."""
    fields = {
        "device": device,
        "start": counters(2 * GiB, 3 * GiB, 10),
        "end": counters(2 * GiB + 512 * MiB, 6 * GiB, 500),
        "peak_allocated": 5 * GiB,
        "peak_reserved": 6 * GiB,
    }
    return DeviceUsage(**fields | changes)


def idle(device=H200, level=2 * GiB):
    """Return a usage in which nothing happened."""
    levels = counters(level, level, 10)
    return usage(device, start=levels, end=levels, peak_allocated=level, peak_reserved=level)


def card(used, process):
    """Return the driver's view of the H200."""
    total = 139 * GiB + 820 * MiB
    return DriverMemory(total, used, total - used, process, "nvml")


def result(*usages, **changes):
    """Return a measurement of 1.84 seconds."""
    return Measurement(usages, 1.84, **changes)


FRESH = usage(
    start=NOTHING_YET,
    end=counters(512 * MiB + 64 * MiB, GiB, 400),
    peak_allocated=900 * MiB,
    peak_reserved=GiB,
    first_use=True,
    workspaces=64 * MiB,
    driver_end=card(3 * GiB, GiB + 530 * MiB),
)
OOM = usage(end=counters(2 * GiB, 130 * GiB, 400, retries=1, ooms=1), peak_allocated=129 * GiB, peak_reserved=130 * GiB)
MPS = usage(
    APPLE,
    start=Counters(allocated=GiB, reserved=2 * GiB),
    end=Counters(allocated=2 * GiB, reserved=3 * GiB),
    peak_allocated=None,
    peak_reserved=None,
)
REASON = OomExplanation(
    verdict="too much",
    sentence="Too much for the card: 128.00 GiB are allocated, and 10.00 GiB were missing for 20.00 GiB",
    text=OomText("allocator", "cuda", 20 * GiB),
    device="cuda:0",
    evidence=(),
    details=(),
    actions=(),
    seen="when it happened",
)
MEASURED = {
    "changed": result(usage()),
    "labelled": result(usage(), label="training step", rss_delta=300 * MiB),
    "all_stays": result(usage(end=counters(5 * GiB, 6 * GiB, 500))),
    "nothing_stays": result(usage(end=counters(2 * GiB, 6 * GiB, 500))),
    "left_less": result(usage(end=counters(GiB, 3 * GiB, 11), peak_allocated=2 * GiB, peak_reserved=3 * GiB)),
    "small_numbers": result(
        usage(start=counters(0, 0), end=counters(512, 2 * MiB, 1), peak_allocated=1536, peak_reserved=2 * MiB)
    ),
    "unchanged": result(idle()),
    "one_of_several": result(idle(), usage(A100), idle(Device("cuda", 2), 0)),
    "two_of_several": result(usage(), usage(A100, peak_allocated=4 * GiB)),
    "none_of_several": result(idle(), idle(A100, 0)),
    "lower_bound": result(usage(doubt="the peak counter was reset out of our sight")),
    "mps": result(MPS),
    "out_of_memory": result(OOM, error="OutOfMemoryError"),
    "unchanged_out_of_memory": result(
        replace(idle(), end=counters(2 * GiB, 2 * GiB, 10, retries=1, ooms=1)), error="OutOfMemoryError"
    ),
    "out_of_memory_at_once": result(
        usage(end=counters(2 * GiB, 2 * GiB, 10, retries=1, ooms=1), peak_allocated=2 * GiB, peak_reserved=3 * GiB),
        error="OutOfMemoryError",
    ),
    "out_of_memory_explained": result(OOM, usage(A100), idle(APPLE), error="OutOfMemoryError", oom=REASON),
    "not_measured_explained": result(missing="torch was not imported", error="RuntimeError", oom=REASON),
    "retries": result(usage(end=counters(2 * GiB + 512 * MiB, 6 * GiB, 500, retries=5, ooms=2))),
    "first_use": result(FRESH),
    "other_processes": result(
        usage(driver_start=card(10 * GiB, 4 * GiB), driver_end=card(20 * GiB, 7 * GiB + 40 * MiB))
    ),
    "interrupted": result(usage(), error="KeyboardInterrupt"),
    "not_measured": result(missing="this PyTorch (2.13.0+cpu) is built without GPU support"),
    "not_measured_failing": result(missing="torch was not imported", error="ValueError"),
    "one_of_repeats": result(usage(), repeat=(2, 5)),
}


def runs(*peaks, labels=None, device=H200):
    """Return a series of runs with these peaks over their start."""
    return Series(
        tuple(
            Measurement(
                (usage(device, peak_allocated=2 * GiB + peak),), 1.84 / (number + 1), label=labels and labels[number],
                repeat=None if labels else (number + 1, len(peaks)),
            )
            for number, peak in enumerate(peaks)
        )
    )  # fmt: skip


FAILED = Series((*runs(3 * GiB).runs, replace(runs(GiB).runs[0], error="OutOfMemoryError")))
SERIES = {
    "repeats_explained": Series((*FAILED.runs[:-1], replace(FAILED.runs[-1], oom=REASON))),
    "repeats": runs(3 * GiB, 3 * GiB, 3 * GiB),
    "repeats_first_heavier": runs(4 * GiB, 3 * GiB, 3 * GiB - MiB),
    "repeats_failed": FAILED,
    "repeats_unchanged": Series((result(idle(), repeat=(1, 2)), result(idle(), repeat=(2, 2)))),
    "repeats_lower_bound": Series((result(usage(doubt="x")), result(usage()))),
    "steps": runs(4 * GiB, 3 * GiB, labels=("epoch 0", "epoch 1")),
}

NOW = counters(30 * GiB, 40 * GiB, 100, retries=2, ooms=1)
LAID = Fragmentation(6 * GiB, 4 * GiB, 0, 2 * GiB, 0.25, 20, 300)
VERSIONS = {"torch": "2.13.0", "cuda": "13.0"}
STATUS = {
    "status": Status((DeviceStatus(H200, NOW, card(50 * GiB, 41 * GiB), LAID),), {}, VERSIONS),
    "status_private_pools": Status(
        (DeviceStatus(H200, NOW, card(50 * GiB, 41 * GiB), replace(LAID, private=3 * GiB, stranded=GiB)),), {}, VERSIONS
    ),
    "status_without_driver": Status((DeviceStatus(H200, NOW, None, LAID),), {}, VERSIONS),
    "status_in_container": Status((DeviceStatus(H200, NOW, card(50 * GiB, None), LAID),), {}, VERSIONS),
    "status_with_settings": Status(
        (DeviceStatus(H200, NOW, card(50 * GiB, 41 * GiB), LAID, 100 * GiB),),
        {"expandable_segments": "True", "max_split_size_mb": "128"},
        VERSIONS,
    ),
    "status_several": Status(
        (DeviceStatus(H200, NOW, card(50 * GiB, 41 * GiB), LAID), DeviceStatus(A100, NOTHING_YET, None)), {}, VERSIONS
    ),
    "status_mps": Status((DeviceStatus(APPLE, Counters(allocated=GiB, reserved=2 * GiB), None),), {}, VERSIONS),
    "status_not_initialised": Status(
        (DeviceStatus(Device("GPU", 0, "NVIDIA H200", H200.total, "GPU-1"), None, card(20 * GiB, 0)),),
        {},
        VERSIONS,
        "this process has not used a GPU yet",
    ),
    "status_without_gpu": Status((), {}, {}, "this PyTorch (2.13.0+cpu) is built without GPU support"),
}
AFTERNOON = time.mktime((2026, 3, 1, 14, 3, 12, 0, 0, -1))
STATUS |= {
    "status_after_oom": replace(STATUS["status_several"], last_oom=OomIncident(REASON, AFTERNOON, 7)),
    "status_after_oom_in_script": replace(STATUS["status_several"], last_oom=OomIncident(REASON, AFTERNOON)),
    "status_after_unseen_oom": replace(
        STATUS["status_several"], last_oom=OomIncident(REASON, AFTERNOON, came="raised in the thread 'loader'")
    ),
    "status_after_oom_elsewhere": replace(
        STATUS["status_without_gpu"], last_oom=OomIncident(replace(REASON, device=None), AFTERNOON, 7)
    ),
}
SHOWN = MEASURED | SERIES | STATUS


@pytest.mark.parametrize("name", SHOWN)
def test_text(name, golden):
    """The text form is as reviewed."""
    golden(name, str(SHOWN[name]))


def test_lines(golden):
    """The one-line form of every measurement is as reviewed, and one line."""
    lines = [measurement_line(one) for one in MEASURED.values()]
    assert not any("\n" in line for line in lines)
    golden("lines", "\n".join(lines))


@pytest.mark.parametrize("name", SHOWN)
def test_text_is_tidy(name):
    """No line ends in blanks or is wider than a terminal's 120 columns, except for sentences."""
    for line in str(SHOWN[name]).splitlines():
        assert line == line.rstrip()
        assert len(line) <= 120 or line.endswith(".")


class Page(HTMLParser):
    """A strict reader: elements must nest, and what a page could load or run is written down."""

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.open, self.text, self.tags, self.attributes = [], [], set(), []

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        self.tags.add(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def read(html):
    """Return the parsed page; it must be complete."""
    page = Page()
    page.feed(html)
    page.close()
    assert page.open == []
    return page


def words(text):
    """Return the words of a text, without what only sets parts of a heading apart."""
    return text.replace("·", " ").split()


@pytest.mark.parametrize("name", SHOWN)
def test_html_says_the_same_as_the_text(name):
    """Both forms have the same words and numbers in the same order."""
    page = read(SHOWN[name]._repr_html_())
    assert words(" ".join(page.text)) == words(str(SHOWN[name]))


@pytest.mark.parametrize("name", SHOWN)
def test_html_is_small_and_passive(name):
    """Nothing runs, nothing is loaded, nothing reaches beyond its own element."""
    html = SHOWN[name]._repr_html_()
    page = read(html)
    assert page.tags <= {"div", "span", "b", "table", "tr", "td", "th"}
    assert {key for key, _ in page.attributes} <= {"style", "scope", "role"}
    assert not re.search(r"url\(|@import|https?:|javascript|expression|position:", html)
    assert len(html) < 8000


@pytest.mark.parametrize("name", STATUS)
def test_bars_are_valid_widths(name):
    """Every piece of the bar is a share of the whole."""
    widths = [float(w) for w in re.findall(r'<span style="width:(-?[\d.]+)%', STATUS[name]._repr_html_())]
    assert all(0 <= width <= 100 for width in widths)
    assert not widths or sum(widths) == pytest.approx(100, abs=0.1)


def test_a_card_with_more_than_it_has_still_draws():
    """Where the driver's numbers contradict the allocator's, as under Windows, no piece has a negative width."""
    odd = Status((DeviceStatus(H200, NOW, card(50 * GiB, 35 * GiB), LAID),), {}, {})
    html = odd._repr_html_()
    read(html)
    assert "width:-" not in html


EVIL = "<img src=x onerror=alert(1)> & \"quoted\" 'too'"


def test_names_are_escaped():
    """Whatever a device, label, setting or error is called, it is text and never markup."""
    device = replace(H200, name=EVIL)
    for record in (
        result(usage(device), label=EVIL, error=EVIL),
        result(missing=EVIL),
        Series((result(usage(device), label=EVIL),)),
        Status((DeviceStatus(device, NOW, None),), {EVIL: EVIL}, {}),
        Status((), {}, {}, EVIL),
        result(usage(device), oom=replace(REASON, sentence=EVIL)),
        replace(STATUS["status"], last_oom=OomIncident(replace(REASON, sentence=EVIL), AFTERNOON)),
    ):
        html = record._repr_html_()
        assert "<img" not in html
        assert EVIL in "".join(read(html).text)


def test_one_display_call_gets_both_forms():
    """The bundle has text and HTML of the same record."""
    record = MEASURED["changed"]
    assert mimebundle(record) == {"text/plain": str(record), "text/html": record._repr_html_()}


def test_a_narrow_terminal(monkeypatch):
    """There the text is no wider than a line; what is not for a terminal stays as it is."""

    class Terminal:
        """What `print` writes to."""

        def isatty(self):
            return True

    record = MEASURED["changed"]
    monkeypatch.setattr("sys.stdout", Terminal())
    monkeypatch.setenv("COLUMNS", "60")
    narrow = mimebundle(record)["text/plain"]
    assert max(map(len, str(record).splitlines())) > 60 >= max(map(len, narrow.splitlines()))
    monkeypatch.setattr("sys.stdout", None)
    assert mimebundle(record)["text/plain"] == str(record)


sizes = st.one_of(st.integers(0, 2000), st.integers(0, 2**45)).map(format_bytes)
tables = st.integers(1, 4).flatmap(lambda n: st.lists(st.tuples(st.text("abc ", max_size=9), *[sizes] * n), min_size=1))


@given(tables)
def test_columns_line_up(table):
    """The numbers of a column end at the same place in every row, whatever their units."""
    lines = to_text([Sheet(("heading",), (), tuple(table))]).splitlines()
    assert lines[0] == "heading"
    ends = {tuple(match.start() for match in re.finditer(r"\d(?= [KMGTB])", line)) for line in lines[1:]}
    assert len(lines) == len(table) + 1
    assert len(ends) == 1
    assert len(ends.pop()) == len(table[0]) - 1


def test_units_stand_below_each_other():
    """`0 B` is padded so that its number stands under those of larger sizes."""
    text = to_text([Sheet(("h",), ("peak",), (("a", "65.00 MiB"), ("b", "0 B"), ("c", "1.50 KiB")))])
    assert text.splitlines() == ["h", "          peak", "  a  65.00 MiB", "  b      0 B", "  c   1.50 KiB"]


def test_a_device_keeps_its_name():
    """A sentence begins with a capital, but no device is called so."""
    assert sentence("this process has not used a GPU yet") == "This process has not used a GPU yet."
    assert sentence("cuda:0 was not used yet in this process") == "cuda:0 was not used yet in this process."
    assert sentence("unsafe: x") == "Unsafe: x."


def test_every_sheet_is_its_own_block():
    """Blank lines part the sheets in text, elements in HTML."""
    sheets = [Sheet(("one",)), Sheet(("two", "more"))]
    assert to_text(sheets) == "one\n\ntwo · more"
    assert to_html(sheets).count('<div style="margin') == 2
    assert report.to_text([]) == ""
