"""How users name devices: by index (`0`), by number as text (`"0"`) or by label (`"cuda:1"`)."""

from __future__ import annotations

from collections.abc import Iterable

from jupyter_gpumem.errors import DeviceNotFoundError, InvalidValueError, UnavailableError

from .context import check_context
from .pytorch import explain_absence
from .registry import backends, ready_devices


def device_labels(named: Iterable[object] | object | None) -> frozenset[str] | None:
    """Return the labels (`cuda:0`) of devices named by index, by number, by label or as `torch.device`; `None` is all.

    Raises:
        InvalidValueError: no device is named.
    """
    if named is None:
        return None
    if isinstance(named, str) or not isinstance(named, Iterable):
        named = (named,)
    named = list(named)
    if not named:
        raise InvalidValueError("no device is named: give an index (0), a label (cuda:0), or None for all")
    default = next((backend.kind for backend, _ in ready_devices()), "cuda")

    def label(name: str) -> str:
        kind, colon, index = name.rpartition(":")
        return f"{kind if colon else default}:{int(index)}" if index.isdecimal() else name

    return frozenset(map(label, map(str, named)))


def check_devices(labels: frozenset[str] | None) -> None:
    """Refuse devices that this process cannot have; say nothing while it cannot be known.

    Raises:
        UnavailableError: there is no PyTorch, no GPU or no such kind of device here, or the CUDA context is lost.
        DeviceNotFoundError: the kind exists but not the index.
    """
    if labels is None:
        return
    check_context()
    counts = {backend.kind: backend.count() for backend in backends()}
    for label in sorted(labels):
        kind, _, index = label.partition(":")
        if kind not in counts or not index.isdecimal():
            raise DeviceNotFoundError(f"no such device: {label!r}; name one by its index (0) or label (cuda:0)")
        count = counts[kind]
        if count is None or (count == 0 and kind != "mps"):
            reason = explain_absence()
            if reason is not None:
                raise UnavailableError(f"{label} cannot be measured: {reason}")
        elif int(index) >= count:
            visible = "none" if not count else f"{kind}:0" if count == 1 else f"{kind}:0 to {kind}:{count - 1}"
            raise DeviceNotFoundError(f"no such device: {label}; visible to this process: {visible}")


def explain_unused(labels: frozenset[str] | None) -> str | None:
    """Return in one sentence that devices in `labels` are not in use, or `None` if none are named or none is in use."""
    if labels is None or not any(True for _ in ready_devices()):
        return None
    return f"{', '.join(sorted(labels))} {'was' if len(labels) == 1 else 'were'} not used yet in this process"


def explain_nothing(labels: frozenset[str] | None = None) -> str:
    """Return in one sentence why there is nothing to say of any device, or of those in `labels`.

    Raises:
        UnavailableError: the CUDA context is lost, so that there was something, and nothing may be asked any more.
    """
    check_context()
    return explain_unused(labels) or explain_absence() or "this process has not used a GPU yet"
