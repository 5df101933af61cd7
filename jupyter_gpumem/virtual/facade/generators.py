"""Random generators of virtual cards: they keep a seed and an offset, as CUDA's do, and draw nothing."""

from __future__ import annotations

import secrets
import struct
from typing import TYPE_CHECKING, Any

import torch

from jupyter_gpumem.virtual.refusals import VIRTUAL_GENERATORS

from .classes import is_virtual, substitute

if TYPE_CHECKING:
    from jupyter_gpumem.virtual.patches import Patches

    from .state import State

_STATE = struct.Struct("<Qq")
_DEFAULT_SEED = 67280421310721  # c10::detail::DEFAULT_RNG_SEED
_64_BITS = 2**64


class VirtualGenerator(torch._C.Generator):  # type: ignore[misc]
    """A CUDA generator: `get_state()` are 16 bytes, the seed and the offset."""

    def __new__(cls, index: int) -> VirtualGenerator:
        """Make one for a card."""
        made: VirtualGenerator = super().__new__(cls)
        made._index, made._seed, made._offset = index, _DEFAULT_SEED, 0
        VIRTUAL_GENERATORS[made._cdata] = made
        return made

    _index: int
    _seed: int
    _offset: int

    @property
    def device(self) -> torch.device:
        """The card."""
        return torch.device("cuda", self._index)

    def manual_seed(self, seed: int) -> VirtualGenerator:
        """Set the seed."""
        seed = int(seed)
        if not -(_64_BITS // 2) <= seed < _64_BITS:
            raise RuntimeError("Overflow when unpacking long long")
        self._seed, self._offset = seed % _64_BITS, 0
        return self

    def seed(self) -> int:
        """Set a random seed and return it."""
        self.manual_seed(secrets.randbits(53))
        return self._seed

    def initial_seed(self) -> int:
        """Return the seed."""
        return self._seed

    def get_offset(self) -> int:
        """Return the offset."""
        return self._offset

    def set_offset(self, offset: int) -> None:
        """Set the offset."""
        self._offset = int(offset)

    def get_state(self) -> torch.Tensor:
        """Return seed and offset as a tensor of 16 bytes on the CPU."""
        return torch.frombuffer(bytearray(_STATE.pack(self._seed, self._offset)), dtype=torch.uint8)

    def set_state(self, state: torch.Tensor) -> VirtualGenerator:
        """Take over what `get_state` returned."""
        if state.dtype != torch.uint8 or state.device.type != "cpu":
            raise TypeError("RNG state must be a torch.ByteTensor")
        if state.numel() != _STATE.size:
            raise RuntimeError("RNG state is wrong size")
        self._seed, self._offset = _STATE.unpack(bytes(state.tolist()))
        return self

    def clone_state(self) -> VirtualGenerator:
        """Return another generator in the same state."""
        made = VirtualGenerator(self._index)
        made._seed, made._offset = self._seed, self._offset
        return made

    def graphsafe_get_state(self) -> VirtualGenerator:
        """Return a generator that shares this one's state."""
        return self

    def graphsafe_set_state(self, state: VirtualGenerator) -> VirtualGenerator:
        """Take over another generator's state."""
        self._seed, self._offset = state._seed, state._offset
        return self


def install(state: State, patches: Patches) -> None:
    """Let `torch.Generator(device="cuda")` make one of these, and give every card its default one."""
    patches.set(torch.cuda, "default_generators", tuple(map(VirtualGenerator, range(len(state.cards)))))

    def make(device: Any = "cpu") -> VirtualGenerator | None:
        if not is_virtual(device):
            return None
        index = device if isinstance(device, int) else torch.device(device).index
        return VirtualGenerator(state.selection.device if index is None else index)

    substitute(patches, "Generator", make, lambda: ())
