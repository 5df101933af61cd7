"""Copies among the virtual cards, as `nn.DataParallel` and `torch.cuda.comm` ask PyTorch for them."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch
from torch._utils import _flatten_dense_tensors, _take_tensors, _unflatten_dense_tensors
from torch.nn.parallel import _functions

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from jupyter_gpumem.virtual.patches import Patches


def install(patches: Patches) -> None:
    """Put everything in place."""
    for function in (scatter, scatter_out, gather, gather_out, broadcast, broadcast_out, broadcast_coalesced):
        patches.set(torch._C, f"_{function.__name__}", function)
    plain_stream = _functions._get_stream

    def stream_of(device: torch.device) -> Any:
        # Where only a number is given, PyTorch's own name of these cards comes out.
        return plain_stream(device if device.type == "cpu" else torch.device("cuda", device.index))

    patches.set(_functions, "_get_stream", stream_of)
    # There is no NCCL among virtual cards: PyTorch adds up itself then, and need not warn at each sum.
    patches.set(torch.cuda.nccl, "is_available", lambda tensors: False)  # noqa: ARG005


def scatter(
    tensor: torch.Tensor,
    devices: Sequence[int],
    chunk_sizes: Sequence[int] | None = None,
    dim: int = 0,
    streams: Sequence[Any] | None = None,
) -> list[torch.Tensor]:
    """Return a part of a tensor on each card; a part that is there already is not copied."""
    parts = tensor.split(list(chunk_sizes), dim) if chunk_sizes is not None else tensor.chunk(len(devices), dim)
    found = []
    for at, (part, index) in enumerate(zip(parts, devices, strict=False)):
        with _on(streams, at):
            found.append(part.to(torch.device("cuda", index), non_blocking=True))
    return found


def scatter_out(
    tensor: torch.Tensor, out: Sequence[torch.Tensor], dim: int = 0, streams: Sequence[Any] | None = None
) -> list[torch.Tensor]:
    """Copy a part of a tensor to each of several others, and return those."""
    for at, (part, target) in enumerate(zip(tensor.split([one.size(dim) for one in out], dim), out, strict=True)):
        with _on(streams, at):
            target.copy_(part, non_blocking=True)
    return list(out)


def gather(tensors: Sequence[torch.Tensor], dim: int, destination: int | None) -> torch.Tensor:
    """Return tensors of several cards one after the other on one card, or in host memory for -1."""
    size = list(tensors[0].size())
    size[dim] = sum(tensor.size(dim) for tensor in tensors)
    device = torch.device("cpu") if destination == -1 else torch.device("cuda", destination)
    if destination is None:
        device = torch.device("cuda", torch.cuda.current_device())
    return gather_out(tensors, torch.empty(size, dtype=tensors[0].dtype, device=device), dim)


def gather_out(tensors: Sequence[torch.Tensor], out: torch.Tensor, dim: int) -> torch.Tensor:
    """Copy tensors of several cards one after the other into another, and return that."""
    for part, tensor in zip(out.split([one.size(dim) for one in tensors], dim), tensors, strict=True):
        part.copy_(tensor, non_blocking=True)
    return out


def broadcast(tensor: torch.Tensor, devices: Iterable[int]) -> list[torch.Tensor]:
    """Return a tensor on each card: itself where it is, and copies."""
    return [tensor.to(torch.device("cuda", index), non_blocking=True) for index in devices]


def broadcast_out(tensor: torch.Tensor, out: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Copy a tensor to each of several others, and return those."""
    for target in out:
        target.copy_(tensor, non_blocking=True)
    return list(out)


def broadcast_coalesced(
    tensors: Sequence[torch.Tensor], devices: Sequence[int], buffer_size: int
) -> list[list[torch.Tensor]]:
    """Return the tensors themselves for the first card, and copies for each other: views of a few buffers.

    Raises:
        RuntimeError: a tensor is not on the first card; the text is PyTorch's.
    """
    if any(tensor.get_device() != devices[0] for tensor in tensors):
        raise RuntimeError("all tensors must be on devices[0]")
    found: list[dict[int, torch.Tensor]] = [{} for _ in devices[1:]]
    place = {id(tensor): at for at, tensor in enumerate(tensors)}
    for chunk in _take_tensors(tensors, buffer_size):
        flat = _flatten_dense_tensors(chunk)
        for copies, index in zip(found, devices[1:], strict=True):
            parts = _unflatten_dense_tensors(flat.to(torch.device("cuda", index), non_blocking=True), chunk)
            copies.update((place[id(tensor)], part) for tensor, part in zip(chunk, parts, strict=True))
    return [list(tensors), *([copies[at] for at in range(len(tensors))] for copies in found)]


def _on(streams: Sequence[Any] | None, at: int) -> contextlib.AbstractContextManager[Any]:
    """Work on a stream of the list, if it has one there."""
    stream = streams[at] if streams is not None and at < len(streams) else None
    return contextlib.nullcontext() if stream is None else torch.cuda.stream(stream)
