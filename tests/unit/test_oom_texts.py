"""Every known out-of-memory text is read to the right class and numbers, and look-alikes are not taken for one."""

from __future__ import annotations

import builtins
import re
from pathlib import Path

import pytest

import jupyter_gpumem as gm
from jupyter_gpumem.devices import loss_in
from jupyter_gpumem.errors import InvalidValueError
from jupyter_gpumem.oom import find_oom, parse
from jupyter_gpumem.oom.numbers import numbers
from jupyter_gpumem.oom.verdicts import verdict
from jupyter_gpumem.units import GiB, KiB, MiB

DATA = (Path(__file__).parents[1] / "data" / "oom_texts.txt").read_text(encoding="utf-8")
TEXTS = {
    head.split(" | ")[0]: body.strip("\n")
    for head, _, body in (part.partition("\n") for part in re.split(r"^@@ ", DATA, flags=re.MULTILINE)[1:])
}

G, M, K = GiB, MiB, KiB

NUMBERS = {
    "M04": ("cuda", 0, 1.97 * G, 10.92 * G, 1.46 * G, None, 7.63 * G, 1.12 * G, None),
    "M05": ("cuda", 0, 2.26 * G, 6.00 * G, 3.03 * G, None, 781.59 * M, 1.24 * G - 781.59 * M, None),
    "M07": ("cuda", 0, 23.11 * G, 23.70 * G, 20.83 * G, None, 1.54 * G, (1.87 - 1.54) * G, None),
    "M08": ("cuda", 0, 2.00 * M, 47.54 * G, 23.44 * G, 23.77 * G, 23.68 * G, (23.77 - 23.68) * G, None),
    "M10": ("cuda", 3, 4.00 * G, 11.93 * G, 515.38 * M, 11.93 * G, 10.67 * G, (10.92 - 10.67) * G, None),
    "M11": ("cuda", 0, 55.57 * G, 12.00 * G, 9.02 * G, None, 984.52 * M, 463.48 * M, None),
    "M13": ("cuda", 0, 30.00 * G, 15.99 * G, 0, None, 30.00 * G, 0, None),
    "M14": ("cuda", 0, 64.00 * M, 8.00 * G, 0, None, 22.44 * G, 3.16 * M, None),
    "M16": ("cuda", 0, 12.00 * G, 47.54 * G, 11.00 * G, None, 23.57 * G, 12.12 * G, None),
    "M17": ("cuda", 0, 64.00 * M, 79.15 * G, 38.09 * G, None, 39.10 * G, 427.46 * M, None),
    "M19": ("cuda", 0, 2.00 * M, 47.53 * G, 896.00 * K, None, 47.00 * G, 149.10 * M, 46.22 * G),
    "M20": ("cuda", 0, 138.00 * M, 79.15 * G, 2.19 * M, None, 71.57 * G, 611.60 * M, 39.77 * M),
    "M22": ("cuda", 0, 1.95 * G, 14.57 * G, 1.58 * G, None, 734.07 * M, 33.93 * M, None),
    "M23": ("cuda", 0, 18.63 * G, 45.00 * G, 43.66 * G, 2.25 * G, 0, 0, None),
    "M25": ("cuda", 0, 16.00 * G, 44.53 * G, 187.94 * M, None, 43.67 * G, 335.07 * M, None),
    "M26": ("cuda", 0, 22.78 * G, 31.47 * G, 12.73 * G, None, 9.08 * G, 9.35 * G, None),
    "M28": ("cuda", 0, 4.00 * G, 8.00 * G, 0, None, 11.32 * G, 216.03 * M, None),
    "M29": ("hip", 0, 16.00 * G, 15.24 * G, 15.09 * G, None, 0, 0, None),
    "M31": ("hip", 7, 2.00 * M, 287.98 * G, 203.49 * G, None, 68.63 * G, 14.93 * G, None),
    "M32": ("mps", None, 129.21 * M, None, None, 32.00 * G, 7.43 * G, None, None),
    "M34": ("xpu", 0, 2.00 * M, 31.89 * G, 31.82 * G, None, 0, 0, None),
    "M35": ("xpu", 0, 256.00 * M, 11.93 * G, 10.92 * G, 244.32 * M, None, None, None),
    "M37": ("npu", 0, 31.67 * G, 32.00 * G, 24.39 * G, None, 6.30 * G, (6.55 - 6.30) * G, None),
    "M38": ("cuda", 0, 576.00 * M, 8.00 * G, 0, None, 5.79 * G, None, None),
}
FIELDS = ("platform", "device", "requested", "total", "free", "limit", "allocated", "unallocated", "private")

FAMILIES = {
    "M01": "driver",
    "M02": "driver",
    "M40": "assert",
    "M41": "assert",
    "M43": "driver",
    "M44": "host",
} | dict.fromkeys(NUMBERS, "allocator")

VERDICTS = {
    "M04": "fragmentation",
    "M05": "unclear",  # free > request, no cap is named
    "M07": "absurd request",
    "M08": "cap",
    "M10": "too much",  # the cap is the whole card
    "M11": "absurd request",
    "M13": "absurd request",
    "M14": "too much",
    "M16": "fragmentation",
    "M17": "unclear",
    "M19": "private pools",
    "M20": "too much",
    "M22": "others",
    "M23": "cap",
    "M25": "too much",  # the process that is named is this one, by its number outside of a container
    "M26": "too much",  # all that is unallocated and free together would not be enough
    "M28": "too much",
    "M29": "absurd request",
    "M31": "unclear",
    "M32": "outside",
    "M34": "unclear",
    "M35": "cap",
    "M37": "absurd request",
    "M38": "too much",  # what cudaMallocAsync has cached is not told: nobody knows what is others'
}


REJECTED = (
    "CUDA out of memory. Allocation was preemptively rejected because it would exceed per_process_memory_fraction "
    "limit. Requested size: 3.00 GiB (reserved memory 1.00 GiB) + requested size would exceed memory limit (2.00 GiB). "
    "Set throw_on_cudamalloc_oom:false to disable."
)


def test_every_text_is_tried():
    """The table leaves out none of the reported texts."""
    assert {name for name in TEXTS if name[0] == "M"} == FAMILIES.keys()


@pytest.mark.parametrize("name", FAMILIES)
def test_family(name):
    """A text belongs to the allocator, the driver, an assertion or main memory."""
    assert parse(TEXTS[name]).family == FAMILIES[name]


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers(name):
    """Every number of a text is found, and none is made up."""
    found = parse(TEXTS[name])
    for field, expected in zip(FIELDS, NUMBERS[name], strict=True):
        got = getattr(found, field)
        if expected is None or isinstance(expected, str):
            assert got == expected, field
        else:
            assert got == pytest.approx(expected, abs=2), field


@pytest.mark.parametrize("name", VERDICTS)
def test_verdict(name):
    """The numbers of a text alone lead to the right reason."""
    assert verdict(numbers(parse(TEXTS[name]), None)) == VERDICTS[name]


def test_values_that_the_driver_does_not_know_are_missing():
    """2^64 bytes, as WSL has it printed, is no number."""
    assert parse(TEXTS["M13"]).own is None
    assert parse(TEXTS["M28"]).own is None
    assert parse(TEXTS["M23"]).processes == ((1459, None),)
    assert parse(TEXTS["M38"]).limit is None


def test_memory_beyond_the_card():
    """More allocated than the card has is said to be in main memory."""
    assert parse(TEXTS["M14"]).oversubscribed == pytest.approx(14.44 * GiB, abs=2)
    assert parse(TEXTS["M16"]).oversubscribed is None


SAID = {
    TEXTS["M32"]: (
        "24.46 GiB of this process lie outside PyTorch's allocator (context, libraries such as NCCL or cuDNN, other "
        "frameworks); 16.57 MiB were missing for 129.21 MiB"
    ),
    TEXTS["M35"]: (
        "A cap is in force: this process may reserve 244.32 MiB, so that 256.00 MiB more were refused while 10.92 GiB "
        "of the card were free"
    ),
    REJECTED: "A cap is in force: this process may reserve 2.00 GiB, so that 3.00 GiB more were refused",
    "CUDA out of memory. Tried to allocate more than 1EB memory.": (
        "One request of more than 1 EiB: no setting helps, the tensor itself is the mistake"
    ),
    "CUDA out of memory. Tried to allocate 2.00 GiB.": (
        "The allocator had no room for 2.00 GiB, and the text does not say what was there"
    ),
}


@pytest.mark.parametrize("text", SAID)
def test_what_a_text_leaves_out_is_not_said(text):
    """A number that is not told is neither shown nor reasoned with."""
    found = parse(text)
    explained = gm.explain_oom(text)
    assert explained.sentence == SAID[text]
    assert (
        dict(explained.evidence)
        .keys()
        .isdisjoint(
            name
            for name, told in (("allocated by tensors", found.allocated), ("reserved, unallocated", found.unallocated))
            if told is None
        )
    )
    assert all("free host memory" not in action.text for action in explained.actions)


@pytest.mark.parametrize("wrong", [5, b"CUDA out of memory", ValueError])
def test_what_is_neither_error_nor_text(wrong):
    """It is refused with what to write."""
    with pytest.raises(InvalidValueError, match="expected an error or its text, got "):
        gm.explain_oom(wrong)


def test_the_cap_to_ask_for_when_nobody_knows_what_is_reserved():
    """It is at most what the cap allows."""
    (action,) = gm.explain_oom(TEXTS["M35"]).actions
    assert (
        "set_per_process_memory_fraction(0.05) or more is enough here; with 1.0 there is this much more" in action.text
    )


def test_processes():
    """Other processes are told from this one."""
    found = parse(TEXTS["M22"])
    assert found.processes == ((2493055, int(12.02 * GiB)),)
    assert found.own == 966 * MiB
    n = numbers(found, None)
    assert (n.pid, n.others) == (2493055, int(12.02 * GiB))
    assert numbers(parse(TEXTS["M25"]), None).others == 0


@pytest.mark.parametrize(
    ("text", "family", "requested"),
    [
        ("RuntimeError: CUDA out of memory. Tried to allocate more than 1EB memory.", "allocator", None),
        ("Out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 8.00 GiB", "allocator", 2 * GiB),
        (REJECTED, "allocator", 3 * GiB),
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", "library", None),
        ("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`", "library", None),
        ("cuDNN error: CUDNN_STATUS_ALLOC_FAILED", "library", None),
        ("cuFFT error: CUFFT_ALLOC_FAILED", "library", None),
        ("NCCL error: unhandled cuda error, Cuda failure 2 'out of memory'", "library", None),
        ("Failed: Cuda failure 2 'out of memory'", "driver", None),
        ("HIP error: out of memory", "driver", None),
    ],
)
def test_further_texts(text, family, requested):
    """Texts that PyTorch's sources contain, and those of its libraries."""
    found = parse(text)
    assert (found.family, found.requested) == (family, requested)


@pytest.mark.parametrize(
    ("text", "platform"),
    [
        ("OutOfMemoryError: CUDA out of memory.", "cuda"),
        ("torch.cuda.OutOfMemoryError: the batch is too large", "cuda"),
        ("OutOfMemoryError: ", "cuda"),
        ("OutOfMemoryError: XPU out of memory", "xpu"),
        ("RuntimeError: HIP out of memory", "hip"),
        ("MPS backend out of memory", "mps"),
    ],
)
def test_what_is_raised_by_hand_has_no_numbers(text, platform):
    """It is about memory all the same, and no more is said of it than that."""
    found = parse(text)
    assert (found.family, found.platform, found.requested) == ("bare", platform, None)
    explained = gm.explain_oom(text)
    assert (explained.verdict, explained.evidence, explained.actions) == ("unclear", (), ())
    assert "raised by hand" in explained.sentence


@pytest.mark.parametrize("name", [name for name in TEXTS if name[0] == "N"])
def test_look_alikes(name):
    """What is no out-of-memory error is not taken for one."""
    assert parse(TEXTS[name]) is None


@pytest.mark.parametrize(
    "text",
    [
        "ValueError: out of memory of the past",
        "ValueError: a smaller batch avoids CUDA out of memory",
        "java.lang.OutOfMemoryError: Java heap space",
        "I ran out of memory",
        "memory: Tried to allocate 2 GiB",
        "",
    ],
)
def test_other_texts(text):
    """Ordinary sentences are none either."""
    assert parse(text) is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (TEXTS["N01"], "device-side assert"),
        ("CUDA error: an illegal memory access was encountered", "an illegal memory access"),
        ("HIP error: unspecified launch failure", "unspecified launch failure"),
        ("CUDA error: out of memory", None),
        ("AssertionError: a device-side assert is a nuisance", None),
    ],
)
def test_lost_context(text, reason):
    """Errors after which only a restart helps are recognised, and no others."""
    assert loss_in(RuntimeError(text)) == reason


def test_wrapped_errors_are_found():
    """An error that was raised from, during, or groups an out-of-memory error leads to it."""
    inner = RuntimeError(TEXTS["M22"])
    try:
        try:
            raise inner
        except RuntimeError as error:
            raise ValueError("step 3 failed") from error
    except ValueError as outer:
        assert find_oom(outer)[0] is inner
    try:
        try:
            raise inner
        except RuntimeError:
            raise KeyError("while handling") from None
    except KeyError as outer:
        assert find_oom(outer)[0] is inner
    group = getattr(builtins, "ExceptionGroup", None) or pytest.importorskip("exceptiongroup").ExceptionGroup
    assert find_oom(group("several", [ValueError("other"), inner]))[0] is inner
    assert find_oom(ValueError("no memory was involved")) is None


def test_a_second_request_that_failed_while_the_first_was_handled_is_the_one():
    """Whoever tries a smaller batch in an `except` is told why that one failed, as the traceback does."""
    first, second = (
        RuntimeError(f"CUDA out of memory. Tried to allocate {size} GiB. GPU 0 has 1.00 GiB free.") for size in (4, 2)
    )
    second.__context__ = first
    assert find_oom(second)[0] is second
    outer = ValueError("training failed")
    outer.__cause__ = second
    assert find_oom(outer)[0] is second
    shortened = RuntimeError("step 3: CUDA out of memory. Tried to allocate 2.00 GiB")
    shortened.__cause__ = second
    assert find_oom(shortened)[0] is second


def test_a_repeated_text_leads_to_the_original():
    """A trainer that repeats the text in its own error does not hide the original one."""
    inner = RuntimeError(TEXTS["M22"])
    outer = RuntimeError(f"training failed: {inner}")
    outer.__cause__ = inner
    assert find_oom(outer)[0] is inner
