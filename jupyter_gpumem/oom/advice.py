"""What would help: two or three actions with the bytes that each gives, tried out where that is possible."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from jupyter_gpumem.holding.books import reservation_name
from jupyter_gpumem.holding.classes import is_a
from jupyter_gpumem.records import OomAction
from jupyter_gpumem.units import format_bytes

from .numbers import CONTEXT
from .rehearsal import Rehearsal

if TYPE_CHECKING:
    from jupyter_gpumem.holding import Survey
    from jupyter_gpumem.records import Holder

    from .numbers import Numbers
    from .observer import OomState

_MOST_ACTIONS = 3
_WORTH_NAMING = 0.02
_MOST_CANDIDATES = 5
_NOTEBOOK = frozenset({"error", "output", "cycle"})
RELEASED = frozenset({"error", "cycle"})
"""Kinds of holders that go with the error: its frames, and what IPython's traceback leaves in cycles."""
EXPANDABLE = "expandable_segments:True"
_CONVOLUTION = ("conv", "cudnn")


class Place(NamedTuple):
    """Where memory ran out.

    Attributes:
        notebook: whether that is a session with magics, cells and a kernel, and not a script.
        released: whether what only the error's frames and garbage hold is let go of as soon as it is explained.
        margin: the share of each card that was kept free by a cap of ours, if that is the cap in force.
    """

    notebook: bool = True
    released: bool = False
    margin: float = 0


class Advisor:
    """Looks for what would help against one error.

    Args:
        kind: the verdict.
        n: its numbers.
        state: what was kept, or `None`.
        found: who holds memory, or `None` where nobody was searched for.
        replayed: the settings under which a replay of the running recording gets through, or `None`.
        place: where it ran out.
    """

    def __init__(
        self,
        kind: str,
        n: Numbers,
        state: OomState | None,
        found: Survey | None,
        replayed: str | None = None,
        place: Place = Place(),  # noqa: B008 - a constant
    ) -> None:
        self._kind, self._n, self._state, self._found, self._replayed = kind, n, state, found, replayed
        self._place = place
        self._rehearsal = Rehearsal(state) if state is not None else None
        self._usable = self._rehearsal is not None and self._rehearsal.usable

    def actions(self, holders: tuple[Holder, ...]) -> tuple[OomAction, ...]:
        """Return the best actions, those that were tried out first."""
        found = [
            *self._about_the_reason(),
            *self._settings(),
            *self._release(),
            *self._give_back(holders),
            *self._benchmark(),
            *self._largest(holders),
        ]
        found.sort(key=lambda action: not action.checked)
        return tuple(found[:_MOST_ACTIONS])

    def _about_the_reason(self) -> list[OomAction]:
        n, kind = self._n, self._kind
        if kind == "cap":
            return self._lift_cap()
        if kind == "others":
            size = n.others if n.others is not None else n.elsewhere
            return [OomAction("wait until the other processes are done, or use another card", size)]
        if kind == "private pools":
            free = "%gpumem_free" if self._place.notebook else "gm.free()"
            text = f"let go of CUDA graphs: delete them and what was compiled, torch._dynamo.reset(), then {free}"
            return [OomAction(text, n.private)]
        if kind == "outside":
            size = max(0, (n.outside or 0) - CONTEXT)
            what = "kernel" if self._place.notebook else "process"
            return [OomAction(f"restart the {what}, and leave out what took memory outside PyTorch", size)]
        if kind == "absurd request":
            return [OomAction("look at the shapes where it failed: a broadcast or a product of two large dimensions")]
        if kind == "unclear" and n.free is not None:
            return [OomAction("look for a cap (torch.cuda.get_per_process_memory_fraction()) and for free host memory")]
        return []

    def _lift_cap(self) -> list[OomAction]:
        n = self._n
        if n.limit is None or n.request is None or not n.total:
            return []
        reserved = n.reserved if n.allocated_known else n.limit  # it cannot be more
        fraction = math.ceil(100 * (reserved + n.request) / n.total) / 100
        checked = self._usable and self._rehearsal is not None and self._rehearsal.succeeds(capped=False) is True
        if self._place.margin:
            text = f"keep less free than {100 * self._place.margin:.3g} % of the card: a smaller margin, or margin=0"
            return [OomAction(text, min(n.free or 0, n.total - n.limit), checked)]
        setting = f"torch.cuda.set_per_process_memory_fraction({min(1.0, fraction):.2f})"
        text = f"raise the cap: {setting} or more is enough here; with 1.0 there is this much more"
        return [OomAction(text, min(n.free or 0, n.total - n.limit), checked)]

    def _settings(self) -> list[OomAction]:
        """Return a setting, only when a replay shows that the request succeeds with it, and it is not on."""
        if self._replayed is not None:
            text = f"restart with PYTORCH_CUDA_ALLOC_CONF={self._replayed}: a replay of the recording gets through"
            return [OomAction(text, None, checked=True, settings=self._replayed)]
        rehearsal = self._rehearsal
        if not self._usable or rehearsal is None or rehearsal.settings.expandable_segments:
            return []
        if rehearsal.settings.max_split_size is not None or self._kind != "fragmentation":
            return []
        if rehearsal.succeeds_expandable() is not True:
            return []
        text = (
            f"restart with PYTORCH_CUDA_ALLOC_CONF={EXPANDABLE}: with every tensor where it lies now, the request "
            "succeeds (memory that is held already would not change)"
        )
        return [OomAction(text, self._n.unallocated - self._n.private_free, checked=True, settings=EXPANDABLE)]

    def _release(self) -> list[OomAction]:
        """Return that what the notebook itself holds can go, or in a script the error, with what they alone hold."""
        if self._found is None or self._state is None:
            return []
        kinds = _NOTEBOOK if self._place.notebook else RELEASED
        freed = {
            address: size
            for address, (size, holding) in self._held(kinds).items()
            if not (self._place.released and holding <= RELEASED)
        }
        size = sum(freed.values())
        if size < _WORTH_NAMING * max(1, self._n.allocated):
            return []
        checked = self._usable and self._rehearsal is not None and self._rehearsal.succeeds(freed=set(freed)) is True
        if not self._place.notebook:
            text = "drop the error before trying again: leave its except block, keep it nowhere, then gm.free()"
        elif self._place.released:
            text = "%gpumem_free: outputs let go of it"
        else:
            text = "%gpumem_free: the failed cell, outputs and garbage let go of it"
        return [OomAction(text, size, checked)]

    def released(self) -> int:
        """Return the bytes that come back with the error's frames and garbage, on the device where memory ran out."""
        return sum(size for size, _ in self._held(RELEASED).values())

    def _held(self, kinds: frozenset[str]) -> dict[int, tuple[int, set[str]]]:
        """Return what only holders of some kinds keep there: by its address, the size in bytes and these kinds."""
        if self._found is None or self._state is None:
            return {}
        kind_of = self._kinds_of_roots(self._found)
        held = (
            (storage, {kind_of[root] for root in holding})
            for where, storage, holding in self._found.storages()
            if where == self._state.device.label
        )
        return {storage.address: (storage.allocated, those) for storage, those in held if those <= kinds}

    def _kinds_of_roots(self, found: Survey) -> list[str]:
        """Return what kind each root is; in a script, a name that an error is bound to goes with the error."""
        objects = found.ranking.walk.objects
        return [
            "error"
            if not self._place.notebook and root.items and all(is_a(objects[n], BaseException) for n in root.items)
            else root.kind
            for root in found.ranking.roots
        ]

    def _give_back(self, holders: tuple[Holder, ...]) -> list[OomAction]:
        """Return which guard band could go: the smallest that is enough, or else the largest."""
        spare = [holder for holder in holders if holder.kind == "reservation"]
        if self._found is None or self._state is None or not spare or self._kind in {"absurd request", "unclear"}:
            return []
        ledger = self._found.ledgers[self._state.device.label][2]
        addresses = {reservation_name(name): address for address, name in ledger.reservations.items()}
        rehearsal = self._rehearsal if self._usable else None
        enough = [
            holder
            for holder in reversed(spare)
            if rehearsal is not None and rehearsal.succeeds(freed={addresses[holder.name]}) is True
        ]
        chosen = (enough or spare)[0]
        return [OomAction(f"let go of {chosen.name}: {chosen.note}", chosen.alone, bool(enough))]

    def _benchmark(self) -> list[OomAction]:
        state = self._state
        if state is None or not state.benchmark or self._kind == "cap":
            return []
        if not any(word in place.lower() for place in state.places[:4] for word in _CONVOLUTION):
            return []
        return [OomAction("torch.backends.cudnn.benchmark = False: its search for algorithms tries large workspaces")]

    def _largest(self, holders: tuple[Holder, ...]) -> list[OomAction]:
        """Return which of the user's own holders could go, the smallest that is enough first, and what else is less."""
        n = self._n
        if self._kind in {"absurd request", "cap", "others", "unclear"} or n.short is None:
            return []
        mine = [h for h in holders if h.kind in {"variable", "graph", "hook"} and h.alone][:_MOST_CANDIDATES]
        found = []
        enough = [holder for holder in reversed(mine) if self._succeeds_without(holder)]
        chosen = enough[:1] or [h for h in mine[:1] if h.alone >= _WORTH_NAMING * max(1, n.allocated)]
        for holder in chosen:
            what = f"the autograd graph of {holder.name}" if holder.kind == "graph" else holder.name
            found.append(OomAction(f"let go of {what}, if it is not needed", holder.alone, bool(enough)))
        if self._kind == "too much" and n.allocated:
            share = 100 * n.short / (n.allocated + n.short)
            text = f"a smaller batch or model: {format_bytes(n.short)} or {share:.1f} % less is enough for this request"
            found.append(OomAction(text, n.short))
        return found

    def _succeeds_without(self, holder: Holder) -> bool:
        if not self._usable or self._rehearsal is None or self._found is None or self._state is None:
            return False
        roots = self._found.ranking.roots
        freed = {
            storage.address
            for where, storage, holding in self._found.storages()
            if where == self._state.device.label and [roots[root].name for root in holding] == [holder.name]
        }
        return bool(freed) and self._rehearsal.succeeds(freed=freed) is True
