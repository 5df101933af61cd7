"""The cards that a virtual GPU can be: how much memory PyTorch sees on each, and what of it is not the user's.

`total` is what `torch.cuda.get_device_properties(i).total_memory` says, which is less than what is printed on the box.
It differs by some MiB between drivers, so each figure is one that somebody printed on Linux with a recent driver; the
table says where it was seen: as bytes, in whole MiB (`_CudaDeviceProperties(...)`), or in hundredths of a GiB (the text
of an out-of-memory error).

`context` is what a process holds of the card outside PyTorch's allocator. It was measured on an H200; for the others it
is what an out-of-memory error left unexplained ("this process has A in use" less what PyTorch reserved), or assumed for
the generation: `context_seen` says which.
"""

from __future__ import annotations

import difflib
import functools
import re
from dataclasses import dataclass

from jupyter_gpumem.arguments import check_text
from jupyter_gpumem.errors import InvalidValueError
from jupyter_gpumem.units import GiB, KiB, MiB, format_bytes, parse_bytes

MOST_CARDS = 16
"""As many as the largest machines have."""

_CUBLAS = 8 * MiB + 8 * 16 * KiB  # ":4096:2:16:8", before compute capability 9.0 (pytorch/pytorch#95668)
_CUBLAS_HOPPER = 32 * MiB
_CUBLASLT = 1 * MiB  # seen in every recording of an H200, torch 2.11; PyTorch's default on all cards


@dataclass(frozen=True, slots=True)
class Card:
    """A kind of card.

    Attributes:
        name: what it is called here, such as `A100-80GB`.
        total: bytes PyTorch sees.
        capability: compute capability, major and minor.
        multiprocessors: streaming multiprocessors, as PyTorch counts them.
        context: bytes that a process holds outside PyTorch's allocator once it uses the card.
        cublas, cublaslt: bytes of one workspace of each library.
        full_name: what `torch.cuda.get_device_name()` says.
        context_seen: whether `context` was seen on such a card; otherwise it is assumed.
        assumed: what else about the card is not known but assumed, in a few words; `None` for a real card.
    """

    name: str
    total: int
    capability: tuple[int, int]
    multiprocessors: int
    context: int
    cublas: int
    cublaslt: int
    full_name: str
    context_seen: bool = False
    assumed: str | None = None

    @property
    def word(self) -> str:
        """The name without blanks, as it is written on a command line."""
        return self.name.replace(" ", "-")

    @property
    def threads(self) -> int:
        """Threads that a multiprocessor can hold (table "Technical Specifications per Compute Capability" of CUDA)."""
        return {(7, 5): 1024, (8, 6): 1536, (8, 9): 1536, (12, 0): 1536, (12, 1): 1536}.get(self.capability, 2048)

    @property
    def label(self) -> str:
        """What reports call it: a card that is not there must never be taken for one that is."""
        return f"virtual {self.name}" + (f", {self.assumed}" if self.assumed else "")


def _card(
    name: str, full: str, capability: tuple[int, int], multiprocessors: int, total: float, context: int, *, seen: bool
) -> Card:
    hopper = capability >= (9, 0)
    return Card(
        name,
        round(total / MiB) * MiB if isinstance(total, float) else total,
        capability,
        multiprocessors,
        context * MiB,
        _CUBLAS_HOPPER if hopper else _CUBLAS,
        _CUBLASLT,
        full,
        seen,
    )


_TURING, _VOLTA, _A100, _AMPERE, _ADA, _HOPPER = (7, 5), (7, 0), (8, 0), (8, 6), (8, 9), (9, 0)
_B200, _BLACKWELL = (10, 0), (12, 0)

CARDS: tuple[Card, ...] = (
    # 15095 MiB: printed properties with uuid (torch >= 2.4). Context: an error on a card of 14.57 GiB.
    _card("T4", "Tesla T4", _TURING, 40, 15095 * MiB, 198, seen=True),
    # Printed properties; 15.77 and 31.75 GiB in errors. Context: assumed.
    _card("V100-16GB", "Tesla V100-SXM2-16GB", _VOLTA, 80, 16160 * MiB, 300, seen=False),
    _card("V100-32GB", "Tesla V100-SXM2-32GB", _VOLTA, 80, 32510 * MiB, 300, seen=False),
    # 11931 MiB: printed properties, torch 2.4.1.
    _card("RTX 3060", "NVIDIA GeForce RTX 3060", _AMPERE, 28, 11931 * MiB, 180, seen=False),
    # 8361213952 bytes: deviceQuery; 7.78 GiB and the context in meta-llama/codellama#82.
    _card("RTX 3070", "NVIDIA GeForce RTX 3070", _AMPERE, 46, 8361213952, 180, seen=True),
    # 9.77 GiB, and the context: bcmi/libcom#54.
    _card("RTX 3080", "NVIDIA GeForce RTX 3080", _AMPERE, 68, 9.77 * GiB, 260, seen=True),
    # 24259 MiB: printed properties; 23.69 GiB.
    _card("RTX 3090", "NVIDIA GeForce RTX 3090", _AMPERE, 82, 24259 * MiB, 260, seen=False),
    # 15.55 GiB, and the context: boson-ai/higgs-audio#48.
    _card("RTX 4060 Ti 16GB", "NVIDIA GeForce RTX 4060 Ti", _ADA, 34, 15.55 * GiB, 250, seen=True),
    # 11.66 GiB: FireRedTeam/FireRedTTS2#17, an Ada card of 12 GB; 11.70 with an older driver (Kwai-Kolors/Kolors#11).
    _card("RTX 4070", "NVIDIA GeForce RTX 4070", _ADA, 46, 11.66 * GiB, 250, seen=False),
    # 16049 MiB: printed properties.
    _card("RTX 4080", "NVIDIA GeForce RTX 4080", _ADA, 76, 16049 * MiB, 350, seen=False),
    # 23.52 GiB, and the context: pytorch/torchchat#1341, Soul-AILab/SoulX-FlashTalk#5.
    _card("RTX 4090", "NVIDIA GeForce RTX 4090", _ADA, 128, 23.52 * GiB, 460, seen=True),
    # 15841 MiB: printed properties; the two other cards of 16 GB taken to have as much.
    _card("RTX 5060 Ti 16GB", "NVIDIA GeForce RTX 5060 Ti", _BLACKWELL, 36, 15841 * MiB, 400, seen=False),
    _card("RTX 5070 Ti", "NVIDIA GeForce RTX 5070 Ti", _BLACKWELL, 70, 15841 * MiB, 450, seen=False),
    _card("RTX 5080", "NVIDIA GeForce RTX 5080", _BLACKWELL, 84, 15841 * MiB, 450, seen=False),
    # 33677180928 bytes: aikitoria/open-gpu-kernel-modules#1; 31.37 GiB and the context: Wan-Video/Wan2.1#465.
    _card("RTX 5090", "NVIDIA GeForce RTX 5090", _BLACKWELL, 170, 33677180928, 590, seen=True),
    # 22587 MiB: printed properties of 2026; 22723 with an older driver.
    _card("A10G", "NVIDIA A10G", _AMPERE, 80, 22587 * MiB, 260, seen=False),
    # 22.03 GiB, and the context: ArcInstitute/evo2#190.
    _card("L4", "NVIDIA L4", _ADA, 58, 22.03 * GiB, 235, seen=True),
    # 44.42 GiB, and the context: stepfun-ai/Step-Video-T2V#8.
    _card("L40S", "NVIDIA L40S", _ADA, 142, 44.42 * GiB, 420, seen=True),
    # 48676 MiB: printed properties; 47.54 GiB.
    _card("A6000", "NVIDIA RTX A6000", _AMPERE, 84, 48676 * MiB, 260, seen=False),
    # 42298834944 bytes: bottlerocket-os/bottlerocket#3873; 39.39 GiB.
    _card("A100-40GB", "NVIDIA A100-SXM4-40GB", _A100, 108, 42298834944, 450, seen=False),
    # 85100068864 bytes: deviceQuery; 79.26 GiB.
    _card("A100-80GB", "NVIDIA A100-SXM4-80GB", _A100, 108, 85100068864, 450, seen=False),
    # 81089 MiB: printed properties, torch 2.7; 79.19 GiB. Context: Kwai-Keye/Keye#11.
    _card("H100", "NVIDIA H100 80GB HBM3", _HOPPER, 132, 81089 * MiB, 510, seen=True),
    # Measured, torch 2.11.0+cu130, driver 580.
    _card("H200", "NVIDIA H200", _HOPPER, 132, 150109880320, 584, seen=True),
    # 182631 MiB: printed properties; 178.35 GiB: pytorch/ao#4002. Context: taken to be the H200's.
    _card("B200", "NVIDIA B200", _B200, 148, 182631 * MiB, 584, seen=False),
)

_SIZED = re.compile(r"\s*[\d.]+\s*(?:[KMG]i?B?)\s*", re.IGNORECASE)
_COUNTED = re.compile(r"\s*(\d+)\s*[x×*]\s*(.*)", re.IGNORECASE)  # noqa: RUF001 - the multiplication sign is meant
_INESSENTIAL = re.compile(r"nvidia|geforce|tesla|sxm\d?|pcie|hbm\d?e?|gpu|rtx|[®™]|[^a-z0-9\x80-\U0010ffff]")
_SIZE = re.compile(r"(\d+)gi?b$")
_BOXES = (8, 10, 12, 16, 24, 32, 40, 48, 80, 141, 180)


def _bare(text: str) -> str:
    """Return a name without its maker, the form it is built in and all separators: `a10080gb`."""
    return _SIZE.sub(r"\1gb", _INESSENTIAL.sub("", text.lower()))


@functools.cache
def _names() -> dict[str, Card]:
    """Return every way of writing a card, bare; the size on the box may follow where there is only one."""
    found: dict[str, Card] = {}
    for card in CARDS:
        bare = _bare(card.name)
        found[bare] = card
        if not bare.endswith("gb"):
            box = next(size for size in _BOXES if size * GiB >= card.total)
            found[f"{bare}{box}gb"] = card
    return found


@functools.cache
def _families() -> dict[str, list[str]]:
    """Return what is written where cards of one name have several sizes: `{"a100": ["A100-40GB", "A100-80GB"]}`."""
    found: dict[str, list[str]] = {}
    for card in CARDS:
        family, sized = re.subn(r"\d\dgb$", "", _bare(card.name))
        if sized:
            found.setdefault(family, []).append(card.word)
    return found


def find_card(text: str) -> Card:
    """Return the card of that name, or an anonymous one of that size.

    Case, separators, `NVIDIA`, `GeForce`, `SXM4` and the like do not matter: `a100 80gb`, `NVIDIA A100-SXM4-80GB`,
    `rtx4090` and `4090` are understood, and so are `24GiB` and `24000MiB`.

    Raises:
        InvalidValueError: there is no such card; the text names the nearest ones.
    """
    if _SIZED.fullmatch(text):
        return _anonymous(parse_bytes(text))
    bare = _bare(text)
    names = _names()
    card = names.get(bare) or names.get(f"{bare}b" if bare.endswith("g") else f"{bare}gb")
    if card is not None:
        return card
    sizes = _families().get(bare)
    if sizes is not None:
        raise InvalidValueError(f"{text.strip()!r} comes in more than one size; write {' or '.join(sizes)}")
    near = dict.fromkeys(names[name].word for name in difflib.get_close_matches(bare, names, n=6, cutoff=0.5))
    nearest = ", ".join(list(near)[:3] or card_names())
    raise InvalidValueError(f"no card is known as {text.strip()!r}; write a size such as 24GiB, or one of: {nearest}")


def _anonymous(total: int) -> Card:
    """Return a card of that size; what its size does not tell is taken from the generation most cards are of."""
    context = 260 * MiB
    if total < 2 * context:
        raise InvalidValueError(
            f"a card of {format_bytes(total)} is too small for a CUDA context and PyTorch; write 1GiB or more"
        )
    name = f"{format_bytes(total)} card"
    assumed = "compute capability 8.6 assumed"
    return Card(name, total, _AMPERE, 80, context, _CUBLAS, _CUBLASLT, f"Virtual {name}", assumed=assumed)


def parse_cards(text: str) -> tuple[Card, ...]:
    """Return the cards of a machine: `A100-80GB`, `2xA100-40GB`, `A100-40GB,T4`.

    Raises:
        InvalidValueError: a card is not known, none is named, or there are more than 16.
    """
    check_text("a card", text, "A100-80GB")
    cards: list[Card] = []
    for part in text.split(","):
        counted = _COUNTED.fullmatch(part)
        count, name = (int(counted[1]), counted[2]) if counted else (1, part)
        if not name.strip() or not count:
            raise InvalidValueError(f"no card in {text!r}; write for example A100-80GB, 2xA100-40GB or 24GiB")
        card = find_card(name)
        if len(cards) + count > MOST_CARDS:
            raise InvalidValueError(f"{text!r} is more than {MOST_CARDS} cards; write fewer")
        cards += [card] * count
    return tuple(cards)


def card_names() -> tuple[str, ...]:
    """Return the known cards as one word each, for completion."""
    return tuple(card.word for card in CARDS)
