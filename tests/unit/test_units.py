"""Sizes and durations as text, and back."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from jupyter_gpumem.errors import InvalidValueError
from jupyter_gpumem.units import GiB, KiB, MiB, TiB, format_bytes, format_delta, format_seconds, parse_bytes


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (None, "-"),
        (0, "0 B"),
        (512, "512 B"),
        (1023, "1023 B"),
        (KiB, "1.00 KiB"),
        (1536, "1.50 KiB"),
        (MiB - 6, "1023.99 KiB"),
        (MiB - 5, "1.00 MiB"),
        (65 * MiB, "65.00 MiB"),
        (GiB - 1, "1.00 GiB"),
        (139 * GiB + 820 * MiB, "139.80 GiB"),
        (TiB - 1, "1.00 TiB"),
        (5000 * TiB, "5000.00 TiB"),
        (-3 * GiB, "-3.00 GiB"),
        (-12, "-12 B"),
    ],
)
def test_sizes_are_written_with_the_unit_that_fits(size, text):
    """Each size is shown in the largest unit that leaves a number of at least one."""
    assert format_bytes(size) == text


@pytest.mark.parametrize(
    ("size", "text"), [(None, "-"), (0, "0 B"), (65 * MiB, "+65.00 MiB"), (-GiB, "-1.00 GiB"), (1, "+1 B")]
)
def test_changes_carry_their_sign(size, text):
    """A change says its direction, and none where nothing changed or nothing is known."""
    assert format_delta(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 us"),
        (312e-6, "312 us"),
        (0.9994e-3, "999 us"),
        (0.9996e-3, "1.00 ms"),
        (45.1e-3, "45.1 ms"),
        (0.9994, "999 ms"),
        (0.9996, "1.00 s"),
        (1.84, "1.84 s"),
        (59.94, "59.9 s"),
        (59.96, "1 min 00 s"),
        (125, "2 min 05 s"),
        (3599.6, "1 h 00 min"),
        (7384, "2 h 03 min"),
    ],
)
def test_durations_are_written_with_about_three_digits(seconds, text):
    """Each duration is shown in the unit that people would say, also beside the border to the next one."""
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4096", 4096),
        ("0", 0),
        ("1b", 1),
        ("512MiB", 512 * MiB),
        ("512 mib", 512 * MiB),
        (" 1.5 GiB ", 3 * GiB // 2),
        (".5k", 512),
        ("2g", 2 * GiB),
        ("3T", 3 * TiB),
        ("80GB", 80 * 10**9),
        ("1kB", 1000),
        ("2 tb", 2 * 10**12),
        ("9007199254740993", 9007199254740993),
    ],
)
def test_sizes_are_read(text, size):
    """Binary and decimal units are read in any case and spacing, whole numbers without loss."""
    assert parse_bytes(text) == size


@given(st.integers(0, 2**62))
@example(0)
@example(MiB - 1)
@example(GiB * 1023 + 1019 * MiB)
def test_a_written_size_reads_back_within_its_rounding(size):
    """What is shown reads back as the same size, up to the two decimals that were shown."""
    text = format_bytes(size)
    unit = {"B": 1, "KiB": KiB, "MiB": MiB, "GiB": GiB, "TiB": TiB}[text.split()[1]]
    allowed = 0 if unit == 1 else 0.005 * unit + 1 + size * 2**-50  # half of the last digit, and the float's own
    assert abs(parse_bytes(text) - size) <= allowed


@given(st.integers(-(2**62), 2**62), st.integers(-(2**62), 2**62))
def test_a_larger_size_never_reads_smaller(a, b):
    """Rounding keeps the order of sizes, across units too."""
    small, large = sorted((a, b))

    def read(text):
        return -parse_bytes(text[1:]) if text.startswith("-") else parse_bytes(text)

    assert read(format_bytes(small)) <= read(format_bytes(large))


BAD = [
    "",
    " ",
    "x",
    "MiB",
    "12 XiB",
    "1.2.3",
    "-5",
    "+5",
    "1e9",
    "5 Mi B",
    "1,5GiB",
    "nan",
    "0x10",
    "5%",
    "1.MiB",
    "12MiBs",
    "1.5",
    "1.0 B",
    ".5b",
]


@pytest.mark.parametrize("text", BAD)
def test_what_is_no_size_is_refused_in_one_line(text):
    """A bad size is named in the refusal, which is one line and says how to write one."""
    with pytest.raises(InvalidValueError) as refusal:
        parse_bytes(text)
    message = str(refusal.value)
    assert repr(text) in message
    assert "512MiB" in message
    assert "\n" not in message


@given(st.text(max_size=20))
def test_any_text_is_a_size_or_refused_in_one_line(text):
    """No text, however odd, raises anything but our own error, or reads as a negative size."""
    try:
        outcome = parse_bytes(text)
    except InvalidValueError as refusal:
        outcome = str(refusal)
    assert outcome >= 0 if isinstance(outcome, int) else "\n" not in outcome
