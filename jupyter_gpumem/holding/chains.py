"""What keeps the memory of one name alive: who else holds it, and by which way."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jupyter_gpumem.errors import InvalidValueError
from jupyter_gpumem.notebook import Notebook
from jupyter_gpumem.records import Chain
from jupyter_gpumem.units import format_bytes

from .naming import describe
from .survey import leaving_nothing, survey
from .walk import BUDGET

if TYPE_CHECKING:
    from .ranking import Ranking


@dataclass(slots=True)
class _Shared:
    """What another root holds of a name's memory: how many storages, their bytes, and the largest one."""

    storages: int = 0
    allocated: int = 0
    largest: int = 0
    number: int = 0

    def add(self, allocated: int, number: int) -> None:
        """Count a storage, and the number of the object that shows it."""
        self.storages += 1
        self.allocated += allocated
        if allocated > self.largest:
            self.largest, self.number = allocated, number


@leaving_nothing()
def chain(name: str, notebook: Notebook | None = None, *, budget: int = BUDGET) -> Chain:
    """Return what keeps the memory of a name alive: of a variable, or of a local name of the last error's frames.

    Raises:
        InvalidValueError: no such name holds device memory.
    """
    notebook = Notebook.current() if notebook is None else notebook
    found = survey(notebook, budget=budget)
    ranking = found.ranking
    wanted = [n for n, root in enumerate(ranking.roots) if root.name == name or root.name.endswith(f": {name}")]
    held = [entry for entry in found.storages() if any(root in entry[2] for root in wanted)]
    if not held:
        known = "" if wanted or name in notebook.names else "; there is no such variable"
        if known and not name.isidentifier():
            known = "; write a name alone: what is nested in it counts with it"
        if any(name in ledger.reservations.values() for _, _, ledger in found.ledgers.values()):
            release = f"%gpumem_reserve --release {shlex.quote(name)}"
            raise InvalidValueError(f"{name!r} is memory put aside; {release} gives it to the cache")
        raise InvalidValueError(f"{name!r} holds no device memory{known}; %gpumem_who without a name lists what does")
    allocated: dict[str, int] = {}
    others: dict[int, _Shared] = {}
    alone = 0
    for label, storage, holding in held:
        allocated[label] = allocated.get(label, 0) + storage.allocated
        rest = [
            root for root in holding if not any(ranking.roots[root].goes_with(ranking.roots[own]) for own in wanted)
        ]
        alone += storage.allocated if not rest else 0
        for root in rest:
            others.setdefault(root, _Shared()).add(storage.allocated, holding[root][2])
    first = next(root for root in wanted if any(root in entry[2] for entry in held))
    objects = ranking.walk.objects
    return Chain(
        name=ranking.roots[first].name,
        kind=ranking.roots[first].kind,
        what=describe(objects[ranking.roots[first].items[0]]),
        allocated=allocated,
        alone=alone,
        chains=tuple(
            _sentence(ranking, root, others[root]) for root in sorted(others, key=lambda root: -others[root].allocated)
        ),
        complete=found.complete,
    )


def _sentence(ranking: Ranking, root: int, shared: _Shared) -> str:
    text = ranking.text(shared.number, root)
    held = f"{format_bytes(shared.allocated)} of it are also held by"
    if shared.storages == 1:
        return f"{held} {text}"
    others = "1 other" if shared.storages == 2 else f"{shared.storages - 1} others"
    return f"{held} {ranking.roots[root].name}: {text} ({format_bytes(shared.largest)}) and {others}"
