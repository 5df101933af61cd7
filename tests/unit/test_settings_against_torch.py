"""The parser of settings against PyTorch's own, which the CPU build has for the keys that all devices share.

What we accept PyTorch accepts and means the same by; what PyTorch refuses we refuse first, and say why in one line.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys

import pytest

from jupyter_gpumem.allocator.settings import AllocatorSettings
from jupyter_gpumem.errors import InvalidValueError
from jupyter_gpumem.units import MiB

pytest.importorskip("torch")

SERVER = """
import ctypes, json, os, sys, torch
library = ctypes.CDLL(os.path.join(os.path.dirname(torch.__file__), "lib", "libc10.so"))
instance = library._ZN3c1016CachingAllocator26AcceleratorAllocatorConfig8instanceEv
instance.restype = ctypes.c_void_p
at = instance()
number = lambda offset: ctypes.c_size_t.from_address(at + offset).value
def values():
    divisions = [ctypes.c_size_t.from_address(address).value for address in range(number(24), number(32), 8)]
    return {"large_segment_size": number(0), "max_split_size": number(8), "max_non_split_rounding": number(16),
            "roundup_power2_divisions": divisions,
            "garbage_collection_threshold": ctypes.c_double.from_address(at + 48).value,
            "expandable_segments": ctypes.c_bool.from_address(at + 56).value}
print(json.dumps(values()))
for line in sys.stdin:
    reset, text = json.loads(line)
    if reset:
        torch._C._accelerator_setAllocatorSettings(
            "expandable_segments:False,large_segment_size_mb:20,pinned_use_background_threads:False")
    try:
        torch._C._accelerator_setAllocatorSettings(text)
        refusal = None
    except Exception as error:
        refusal = f"{type(error).__name__}: {error}"
    print(json.dumps([refusal, values()]))
"""
UNLIMITED = 2**64 - 1


@pytest.fixture(scope="module")
def ask():
    """A function that hands settings strings to PyTorch, in a process of its own, and returns what came of each."""

    def ask(texts, *, reset=True):
        lines = "\n".join(json.dumps([reset, text]) for text in texts)
        done = subprocess.run(
            [sys.executable, "-c", SERVER], input=lines, capture_output=True, text=True, timeout=120, check=False
        )
        if "undefined symbol" in done.stderr:
            pytest.skip("this PyTorch keeps its settings elsewhere")
        assert done.returncode == 0, done.stderr
        first, *answers = map(json.loads, done.stdout.splitlines())
        assert first == as_torch_keeps(AllocatorSettings()), "the settings do not lie in memory as this test reads them"
        assert len(answers) == len(texts)
        return answers

    return ask


def as_torch_keeps(settings):
    """Return settings as the numbers that PyTorch keeps."""
    return {
        "large_segment_size": settings.large_segment_size,
        "max_split_size": UNLIMITED if settings.max_split_size is None else settings.max_split_size,
        "max_non_split_rounding": settings.max_non_split_rounding or settings.large_segment_size,
        "roundup_power2_divisions": list(settings.roundup_power2_divisions),
        "garbage_collection_threshold": settings.garbage_collection_threshold,
        "expandable_segments": settings.expandable_segments,
    }


class Writer:
    """Writes settings strings, of good and of bad parts."""

    NUMBERS = ("0", "1", "2", "3", "4", "8", "10", "11", "16", "19", "20", "21", "32", "64", "127", "128", "256", "512",
               "1024", "65536", "131072", "4194304", "64.5", "64abc", "-1", "+64", "0x40", "1e3", "", "abc", "020",
               "99999999999999", "8796093022207", "18446744073709551616", " 64 ", "6 4", "6\t4")  # fmt: skip
    SHARES = ("0", "0.0", "1", "1.0", "0.5", ".5", "5.", "0.", "0.8", "0.999999", "1.5", "-0.5", "nan", "inf", "0.5x",
              "5e-1", "0,5", "", "0.1.2", "00.5", "0." + "0" * 320 + "1", "0." + "9" * 30)  # fmt: skip
    FLAGS = ("True", "False", "true", "FALSE", "1", "0", "yes", "None", "", "True ", '"True"', "Tr ue")
    SEPARATORS = (",", ",", ",", ",", ",", ", ", " , ", ";", "=", " ", ",,")

    def __init__(self, seed):
        self.pick = random.Random(seed)

    def text(self):
        """Return one string."""
        pick = self.pick
        if pick.random() < 0.05:
            return "".join(pick.choice("max_split:,[]> 0128\"'=;TrueFals") for _ in range(pick.randrange(30)))
        parts = [self.part() for _ in range(pick.choice((1, 1, 1, 2, 2, 3, 4)))]
        text = pick.choice(self.SEPARATORS).join(parts)
        return text + pick.choice(("", "", "", "", "", ",", " "))

    def part(self):
        """Return one `KEY:VALUE`, or something like it."""
        pick = self.pick
        key = pick.choice(
            ("max_split_size_mb", "max_non_split_rounding_mb", "large_segment_size_mb", "garbage_collection_threshold",
             "roundup_power2_divisions", "expandable_segments", "pinned_use_background_threads")
        )  # fmt: skip
        good = pick.random() < 0.6
        if key == "garbage_collection_threshold":
            value = f"0.{pick.randrange(1, 10**6):06}" if good else pick.choice(self.SHARES)
        elif key in {"expandable_segments", "pinned_use_background_threads"}:
            value = pick.choice(("True", "False")) if good else pick.choice(self.FLAGS)
        elif key == "roundup_power2_divisions":
            value = self.divisions(good=good)
        else:
            value = str(pick.randrange(20, 3000)) if good else pick.choice(self.NUMBERS)
        colon = ":" if good or pick.random() < 0.85 else pick.choice(("", "=", " ", "::", " : "))
        return key + colon + value

    def divisions(self, *, good):
        """Return a value of `roundup_power2_divisions`."""
        pick = self.pick

        def power(most):
            return str(1 << pick.randrange(most)) if good or pick.random() < 0.7 else pick.choice(self.NUMBERS)

        if pick.random() < 0.4:
            return power(8)
        pairs = [f"{power(18)}:{power(8) if pick.random() < 0.9 else '0'}" for _ in range(pick.randrange(1, 5))]
        if pick.random() < 0.5:
            pairs.append(f">:{power(8)}")
        text = f"[{','.join(pairs)}]"
        return text if good or pick.random() < 0.8 else pick.choice((text[1:], text[:-1], text + "]", "[]", text + "4"))


def read(text):
    """Return the settings, or the refusal."""
    try:
        return AllocatorSettings.parse(text), None
    except InvalidValueError as error:
        return None, str(error)


WRITER = Writer(20)
TEXTS = sorted({WRITER.text() for _ in range(1500)})


def test_two_parsers_agree(ask):
    """Over a thousand strings: the same meaning where we accept, a refusal of ours wherever PyTorch has one."""
    answers = ask(TEXTS)
    both_accept = both_refuse = 0
    for text, (refusal, values) in zip(TEXTS, answers, strict=True):
        settings, ours = read(text)
        if settings is not None:
            both_accept += 1
            assert refusal is None, f"we accept {text!r}, PyTorch does not: {refusal}"
            assert values == as_torch_keeps(settings), text
        elif refusal is not None:
            both_refuse += 1
            assert "\n" not in ours
            assert "INTERNAL" not in ours
            assert len(ours) < 250
    assert len(TEXTS) > 1000
    assert both_accept > 300
    assert both_refuse > 300


def test_lenient_numbers_are_refused(ask):
    """What PyTorch reads as something else than is written, we do not let through."""
    texts = ["max_split_size_mb:64.5", "max_split_size_mb:64abc", "garbage_collection_threshold:0.5x"]
    texts += ["max_split_size_mb:-1", "max_split_size_mb:6 4", "roundup_power2_divisions:4x"]
    for text, (refusal, _) in zip(texts, ask(texts), strict=True):
        assert refusal is None, text
        assert read(text)[0] is None, text


def test_calls_one_after_the_other(ask):
    """What a call resets and what it keeps: the settings after each of hundreds are PyTorch's own."""
    texts = [text for text in TEXTS if read(text)[0] is not None]
    random.Random(3).shuffle(texts)
    settings, sent, wanted = AllocatorSettings(), [], []
    for text in texts:
        try:
            settings = settings.then(text)
        except InvalidValueError:
            continue  # a size below a large_segment_size of an earlier call
        sent.append(text)
        wanted.append(as_torch_keeps(settings))
    answers = ask(sent, reset=False)
    assert len(sent) > 200
    for text, (refusal, values), expected in zip(sent, answers, wanted, strict=True):
        assert (refusal, values) == (None, expected), text


def test_merged_changes(ask):
    """The string that a change sends makes PyTorch have just what the change asks for, whatever was before."""
    pick = random.Random(5)
    parts = ["expandable_segments:True", "max_split_size_mb:256", "roundup_power2_divisions:[256:1,512:2,>:8]",
             "large_segment_size_mb:64", "garbage_collection_threshold:0.7",
             "max_non_split_rounding_mb:100"]  # fmt: skip
    parts += [f"{part.partition(':')[0]}:default" for part in parts] + ["roundup_power2_divisions:4"]
    settings, sent, wanted = AllocatorSettings(), [], []
    for _ in range(300):
        after = settings.merged(",".join(pick.sample(parts, pick.choice((1, 1, 2, 3)))))
        sent.append(after.command(settings))
        wanted.append(as_torch_keeps(after))
        settings = after
    answers = ask(sent, reset=False)
    assert [[None, values] for values in wanted] == answers


def test_the_half_applied_call(ask):
    """PyTorch applies what stands before a bad key; so a refused call has to be taken back, as ours is."""
    before = "expandable_segments:True,max_split_size_mb:300"
    answers = ask([before, "large_segment_size_mb:64,max_split_size_mb:abc"], reset=False)
    assert answers[1][0] is not None
    assert answers[1][1]["large_segment_size"] == 64 * MiB
    assert answers[1][1]["max_split_size"] == UNLIMITED
    start = AllocatorSettings.parse(before)
    taken_back = start.command(start.merged("large_segment_size_mb:64,max_split_size_mb:512"))
    answers = ask([before, "large_segment_size_mb:64,max_split_size_mb:abc", taken_back], reset=False)
    assert answers[-1] == [None, as_torch_keeps(start)]
