"""The cards a virtual GPU can be: that they are found however they are written, and hold what PyTorch sees."""

from __future__ import annotations

import pytest

from jupyter_gpumem.errors import InvalidValueError
from jupyter_gpumem.units import GiB, MiB
from jupyter_gpumem.virtual.cards import CARDS, card_names, find_card, parse_cards

BOXES = (8, 10, 12, 16, 24, 32, 40, 48, 80, 141, 180)

PRINTED = {
    "T4": 14.74,
    "V100-16GB": 15.78,
    "V100-32GB": 31.75,
    "RTX 3080": 9.77,
    "RTX 4090": 23.52,
    "RTX 5090": 31.36,
    "L4": 22.03,
    "A6000": 47.54,
    "A100-40GB": 39.39,
    "A100-80GB": 79.26,
    "H100": 79.19,
    "H200": 139.80,
    "B200": 178.35,
}
"""GiB as PyTorch prints them in public reports."""

WRITTEN = {
    "a100 80gb": "A100-80GB",
    "A100_80G": "A100-80GB",
    "a10080": "A100-80GB",
    "NVIDIA A100-SXM4-80GB": "A100-80GB",
    "NVIDIA A100 80GB PCIe": "A100-80GB",
    "A100-PCIE-40GB": "A100-40GB",
    "tesla t4": "T4",
    "T4-16GB": "T4",
    "Tesla V100-SXM2-32GB": "V100-32GB",
    "4090": "RTX 4090",
    "rtx4090": "RTX 4090",
    "NVIDIA GeForce RTX 3090": "RTX 3090",
    "rtx-3090-24gb": "RTX 3090",
    "4060ti 16gb": "RTX 4060 Ti 16GB",
    "RTX 5060 Ti 16 GB": "RTX 5060 Ti 16GB",
    "NVIDIA H100 80GB HBM3": "H100",
    "H100-SXM5-80GB": "H100",
    "h200": "H200",
    "H200 141GB": "H200",
    "a10g": "A10G",
    "RTX A6000": "A6000",
}

REFUSED = {
    "A100": "'A100' comes in more than one size; write A100-40GB or A100-80GB",
    "v100": "'v100' comes in more than one size; write V100-16GB or V100-32GB",
    "4060 ti": "'4060 ti' comes in more than one size; write RTX-4060-Ti-16GB",
    "T4 é😀": "no card is known as 'T4 é😀'; write a size such as 24GiB, or one of: T4",
    "L40": "no card is known as 'L40'; write a size such as 24GiB, or one of: L40S, L4, RTX-4090",
    "h20": "no card is known as 'h20'; write a size such as 24GiB, or one of: H200, H100, B200",
    "100MiB": "a card of 100.00 MiB is too small for a CUDA context and PyTorch; write 1GiB or more",
}


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.name)
def test_every_card_is_sound(card):
    """A card is found under each of its own names, and what it keeps for itself is a small part of it."""
    assert find_card(card.name) is find_card(card.word.lower()) is card
    box = min(size for size in BOXES if size * GiB >= card.total)
    assert 0.91 < card.total / (box * GiB) < 1
    assert 100 * MiB < card.context < card.total / 10
    assert card.cublas == (32 * MiB if card.capability >= (9, 0) else 8519680)
    assert MiB <= card.cublaslt <= card.cublas
    assert card.label == f"virtual {card.name}"
    assert card.assumed is None


@pytest.mark.parametrize("name", PRINTED)
def test_memory_is_what_pytorch_prints(name):
    """The total is PyTorch's, which is less than what is on the box."""
    assert round(find_card(name).total / GiB, 2) == PRINTED[name]


def test_the_measured_card():
    """The H200's numbers are those of the machine that the package was measured on."""
    assert find_card("H200").total == 150109880320


@pytest.mark.parametrize("text", WRITTEN)
def test_a_card_is_found_however_it_is_written(text):
    """Case, separators, maker, form and the size of a card that comes in one do not matter."""
    assert find_card(text).name == WRITTEN[text]


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_not_a_card_is_refused_in_one_line(text):
    """The text says what there is instead."""
    with pytest.raises(InvalidValueError) as error:
        find_card(text)
    assert str(error.value) == REFUSED[text]


def test_nothing_near_lists_all():
    """Where nothing resembles the text, every card is named."""
    with pytest.raises(InvalidValueError) as error:
        find_card("foo")
    assert str(error.value).endswith(", ".join(card_names()))


@pytest.mark.parametrize(("text", "total"), [("24GiB", 24 * GiB), ("24000MiB", 24000 * MiB), ("1.5 GiB", 3 * GiB // 2)])
def test_a_size_is_a_card_without_a_name(text, total):
    """What its size does not tell is assumed, and said."""
    card = find_card(text)
    assert card.total == total
    assert card.capability == (8, 6)
    assert "compute capability 8.6 assumed" in card.label
    assert not card.context_seen


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("A100-80GB", ["A100-80GB"]),
        ("2xA100-40GB", ["A100-40GB"] * 2),
        ("2 x A100 40GB, t4", ["A100-40GB", "A100-40GB", "T4"]),
        ("A100-40GB,T4", ["A100-40GB", "T4"]),
        ("16xh100", ["H100"] * 16),
        ("2x24GiB", ["24.00 GiB card"] * 2),
    ],
)
def test_machines(text, names):
    """Several cards, alike or not."""
    assert [card.name for card in parse_cards(text)] == names


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no card in ''; write for example A100-80GB, 2xA100-40GB or 24GiB"),
        ("T4,", "no card in 'T4,'; write for example A100-80GB, 2xA100-40GB or 24GiB"),
        ("0xT4", "no card in '0xT4'; write for example A100-80GB, 2xA100-40GB or 24GiB"),
        ("17xT4", "'17xT4' is more than 16 cards; write fewer"),
        ("9xT4,8xH100", "'9xT4,8xH100' is more than 16 cards; write fewer"),
    ],
)
def test_machines_that_are_refused(text, said):
    """One line says what to write."""
    with pytest.raises(InvalidValueError) as error:
        parse_cards(text)
    assert str(error.value) == said


def test_names_for_completion_are_words():
    """Each is one word for a shell, and is understood."""
    assert [find_card(name) for name in card_names()] == list(CARDS)
    assert not any(" " in name for name in card_names())
