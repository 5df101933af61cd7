"""CPU tensors that count as a device's: a stand-in whose snapshot lists the storages that live now."""

from __future__ import annotations

import gc

import torch

from jupyter_gpumem.devices.fake import FakeBackend

MiB = 2**20


class CpuDevice(FakeBackend):
    """The CPU as a device: every live CPU storage that Python can see, and what is `pretended`, is an allocation.

    Attributes:
        pretended: `{address: (bytes, pool id, frames)}` of allocations that no tensor shows.
        freed: address and bytes of what is not allocated any more; found by comparing.
    """

    def __init__(self) -> None:
        super().__init__("cpu", 8 * 2**30)
        self.pretended: dict[int, tuple[int, tuple[int, int], list]] = {}
        self.hidden: set[int] = set()

    def _live(self) -> dict[int, tuple[int, tuple[int, int], list]]:
        found = {}
        for item in gc.get_objects():
            if issubclass(type(item), torch.Tensor):
                try:
                    storage = item.untyped_storage()
                except (NotImplementedError, RuntimeError):
                    continue
                if storage.device.type == "cpu" and storage.nbytes():
                    found[storage.data_ptr()] = (-(-storage.nbytes() // 512) * 512, (0, 0), [])
        return found | self.pretended
