"""The facts this package passes around: frozen, in bytes and seconds, `None` where something is not known.

A record holds numbers and names only: no tensor, frame or namespace can stay alive because a result was kept.
How a record looks is decided in `report`, which registers its renderers here, so that this module stays at the bottom.
"""

from __future__ import annotations

import dataclasses
import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class Renderer:
    """How one kind of record is shown: a function for each medium, both from the record alone."""

    text: Callable[[Any], str]
    html: Callable[[Any], str]


class Record:
    """Base of the results that users get: one text and one HTML form, and `to_dict()` for JSON."""

    __slots__ = ()
    _derived: ClassVar[tuple[str, ...]] = ()
    _renderers: ClassVar[dict[type, Renderer]] = {}

    def __init_subclass__(cls) -> None:
        # IPython looks for this beside the `__repr__` of the same class, and would prefer that one otherwise.
        cls._repr_pretty_ = Record._repr_pretty_  # type: ignore[method-assign]

    @classmethod
    def rendered_by(cls, text: Callable[[Any], str], html: Callable[[Any], str]) -> None:
        """Register how records of this class are shown."""
        Record._renderers[cls] = Renderer(text, html)

    def to_dict(self) -> dict[str, Any]:
        """Return the record as plain containers (bytes as `int`, missing as `None`), ready for `json.dump`."""
        fields = {f.name: _plain(getattr(self, f.name)) for f in dataclasses.fields(self)}  # type: ignore[arg-type]
        return fields | {name: _plain(getattr(self, name)) for name in self._derived}

    def _renderer(self) -> Renderer | None:
        """Return how this is shown. A result can reach the user before anything was shown: then `report` comes now."""
        if type(self) not in self._renderers:
            importlib.import_module("jupyter_gpumem.report")
        return self._renderers.get(type(self))

    def __str__(self) -> str:
        renderer = self._renderer()
        return renderer.text(self) if renderer else repr(self)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:  # noqa: ARG002, FBT001 - IPython's signature
        printer.text(str(self))

    def _repr_html_(self) -> str | None:
        renderer = self._renderer()
        return renderer.html(self) if renderer else None


def _plain(value: Any) -> Any:
    if isinstance(value, Record):
        return value.to_dict()
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value


@dataclass(frozen=True, slots=True)
class Device(Record):
    """Which device a number belongs to, as PyTorch numbers it in this process.

    Attributes:
        kind: PyTorch's device type: `cuda` (NVIDIA and ROCm), `xpu`, `mps`, or that of a back end in tests.
        index: PyTorch's index, which `CUDA_VISIBLE_DEVICES` and `CUDA_DEVICE_ORDER` shape; not the driver's.
        name: the product name.
        total: bytes of device memory that PyTorch can see.
        uuid, pci_bus_id: identities shared with the driver; the only keys under which the driver is asked.
        virtual: whether it is not there but modelled.
    """

    kind: str
    index: int
    name: str | None = None
    total: int | None = None
    uuid: str | None = None
    pci_bus_id: str | None = None
    virtual: bool = False

    @property
    def label(self) -> str:
        """PyTorch's name for the device, such as `cuda:0`."""
        return f"{self.kind}:{self.index}"


@dataclass(frozen=True, slots=True)
class Counters(Record):
    """One reading of an allocator's own counters; see the table of words in the README for their meaning.

    `allocation_count` and `allocation_bytes` count every allocation since the process began; the rest are levels, of
    which `live` is the number of allocations that are not freed.
    """

    allocated: int | None = None
    reserved: int | None = None
    active: int | None = None
    requested: int | None = None
    inactive_split: int | None = None
    live: int | None = None
    peak_allocated: int | None = None
    peak_reserved: int | None = None
    retries: int | None = None
    ooms: int | None = None
    allocation_count: int | None = None
    allocation_bytes: int | None = None


NOTHING_YET = Counters(*[0] * len(dataclasses.fields(Counters)))
"""What an allocator that does not exist yet would have counted."""


@dataclass(frozen=True, slots=True)
class DriverMemory(Record):
    """What the driver says of a card.

    Attributes:
        total, used, free: bytes of the whole card, for all processes.
        process: bytes of this process on it, or `None` where the driver does not tell (containers, WSL, MIG).
        source: who answered: `nvml`, `runtime` for the device's own run-time library, `model` for a virtual card.
    """

    total: int
    used: int
    free: int
    process: int | None
    source: str
