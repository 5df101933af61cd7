"""What `torch.cuda.get_device_properties` answers for a virtual card."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from jupyter_gpumem.units import KiB, MiB

if TYPE_CHECKING:
    from jupyter_gpumem.virtual.cards import Card

# From the table of technical specifications per compute capability in NVIDIA's CUDA C++ programming guide: threads and
# KiB of shared memory of one multiprocessor, and KiB that one block can opt into.
_OF_CAPABILITY = {
    (7, 0): (2048, 96, 96),
    (7, 5): (1024, 64, 64),
    (8, 0): (2048, 164, 163),
    (8, 6): (1536, 100, 99),
    (8, 9): (1536, 100, 99),
    (9, 0): (2048, 228, 227),
    (10, 0): (2048, 228, 227),
    (12, 0): (1536, 100, 99),
}
_NAMESPACE = uuid.UUID("6c1f5a0e-6d7c-4f43-9a53-0d6a6b0f2d11")


class DeviceProperties:
    """The properties of a virtual card, under PyTorch's names. What is not known (clock rates) is not there.

    Attributes:
        gpumem_label: what reports call the card, so that nobody takes it for a real one.
    """

    def __init__(self, card: Card, index: int) -> None:
        threads, shared, optin = _OF_CAPABILITY[card.capability]
        self.name = card.full_name
        self.gpumem_label = card.label
        self.major, self.minor = card.capability
        self.total_memory = card.total
        self.multi_processor_count = card.multiprocessors
        self.max_threads_per_multi_processor = threads
        self.max_threads_per_block = 1024
        self.regs_per_multiprocessor = 65536
        self.shared_memory_per_block = 48 * KiB
        self.shared_memory_per_block_optin = optin * KiB
        self.shared_memory_per_multiprocessor = shared * KiB
        self.warp_size = 32
        self.is_integrated = self.is_multi_gpu_board = 0
        self.gcnArchName = card.full_name
        self.uuid = uuid.uuid5(_NAMESPACE, f"{card.name} {index}")
        self.pci_domain_id, self.pci_bus_id, self.pci_device_id = 0, index + 1, 0

    def __repr__(self) -> str:
        return (
            f"_CudaDeviceProperties(name={self.name!r}, major={self.major}, minor={self.minor}, "
            f"total_memory={self.total_memory // MiB}MB, multi_processor_count={self.multi_processor_count}, "
            f"uuid={self.uuid}, virtual)"
        )
