"""Who holds device memory besides the names of the notebook: modules, tasks, garbage, and code that shows nothing.

What a name holds may have other holders that no name leads to, such as a cache in a module. So references are counted,
and the collector is asked who refers to what has more of them than the walk has seen, and to tensors without a name.
"""

from __future__ import annotations

import gc
import itertools
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from . import garbage, roots
from .classes import is_a, module_of, name_of
from .collector import referents
from .counting import references, surplus
from .naming import describe
from .ranking import Root, leading_down
from .tensors import attributes_of
from .upwards import Arrays, leading_to, outsiders

if TYPE_CHECKING:
    from jupyter_gpumem.notebook import Notebook

    from .tensors import Torch
    from .walk import Walk

_CYCLE, _CYCLE_OWNER, _CYCLE_PART, _OTHER = 5, 6, 7, 8
"""Ranks of what no name reaches, after those of `roots`."""


def beyond_names(notebook: Notebook, walk: Walk, torch: Torch) -> list[Root]:
    """Return the roots of what holds device memory, or an error, and is no name: modules, garbage, others."""
    ends, leading = _leading(notebook, walk, torch)
    walk.narrow(leading)
    found = [*roots.of_modules(notebook, walk), *roots.of_tasks(walk, leading)]
    left = [key for key in ends if walk.number(leading[key]) is None]
    if not walk.complete or not left:
        return found
    lost = garbage.unreachable(walk, leading)
    gone = {id(item) for item in lost}
    parts = {id(part) for item in lost if is_a(item, torch.module) for part in _parts(item)}
    for item in lost:
        if _may_own(torch, item):
            module, part = is_a(item, torch.module), id(item) in parts
            rank = _CYCLE_PART if part else _CYCLE if module else _CYCLE_OWNER
            found.append(Root("cycle", f"garbage: {name_of(type(item))}", rank, walk.enter([item])))
    walk.expand()
    found += [
        Root("cycle", "garbage", _CYCLE_PART, walk.enter([item]))
        for item in garbage.unreached(walk, map(leading.__getitem__, left))
        if id(item) in gone
    ]
    walk.expand()  # garbage also holds what only PyTorch sees, such as the tensor that a view is of
    found += [
        Root("other", "a hook of an autograd graph", _OTHER, walk.enter([*dict.values(hooks), hooks]))
        for hooks in _hooks_of_graphs(walk, leading)
    ]
    walk.expand()
    found += [
        Root("other", f"a {describe(item)} that other code holds", _OTHER, walk.enter([item]))
        for item in garbage.unreached(walk, map(leading.__getitem__, left))
    ]
    walk.expand()
    return found


def _leading(notebook: Notebook, walk: Walk, torch: Torch) -> tuple[list[int], dict[int, Any]]:
    """Return the ids of what holds device memory and was not reached, and by its id what leads to any of that."""
    # What refers to reached objects and is known: the walk does not enter it, or passes it over.
    known = walk.barred | {id(item): item for item in (*walk.between(), *roots.running_frames(notebook))}
    ignored = walk.ignored | {id(known), *known}
    ends, routes = _nameless(walk, torch)
    shared = _shared(notebook, walk, torch, known)
    ignored |= {id(one) for one in (ends, routes, shared)}
    arrays = Arrays(walk.numbers)
    ends += outsiders(shared, ignored, torch, arrays)
    if not ends:
        return [], {}
    keys = list(dict.fromkeys(map(id, ends)))
    starts = ends + routes
    return keys, leading_to(starts, ignored, torch, arrays)


def _nameless(walk: Walk, torch: Torch) -> tuple[list[Any], list[Any]]:
    """Return the device tensors that the walk did not reach, and what else may lead to some by way of PyTorch alone.

    Looked for by type: lazy proxies are not touched.
    """
    # By the ids of their types, in one pass: there are a million of them, and a type may have a hash of its own. No
    # comprehension may use the list inside: it would keep it in a cell, which is in it, and both would stay.
    everything = gc.get_objects()
    types = list(map(id, map(type, everything)))
    kinds = dict(zip(types, map(type, everything), strict=True))
    tensors, nodes = ({key for key, kind in kinds.items() if test(kind)} for test in (torch.is_tensor, torch.is_node))
    wanted = tensors | nodes
    both = itertools.compress(everything, map(wanted.__contains__, types))
    new = [item for item in both if walk.number(item) is None]
    found = [item for item in new if id(type(item)) in tensors]
    nameless = [item for item in found if walk.lies_on_a_device(item)]
    # The same memory may also be held by the graph of a tensor on the host, say.
    routes = [item for item in found if torch.leads_on(item)]
    routes += [item for item in new if id(type(item)) in nodes]
    return nameless, routes


def _shared(notebook: Notebook, walk: Walk, torch: Torch, known: dict[int, Any]) -> list[Any]:
    """Return what was reached, leads to device memory or is an error, and has holders that were not reached."""
    errors = (walk.number(error) for error in notebook.exceptions())
    ends = {*walk.located, *(number for number in errors if number is not None)}
    items = [walk.objects[number] for number in leading_down(walk, ends)]
    others = [item for key, item in known.items() if key not in walk.numbers]
    seen = references([*walk.objects, *others], set(map(id, items)))
    return surplus(items, seen, torch, ours=2)  # the walk's list, and this one


def _hooks_of_graphs(walk: Walk, leading: dict[int, Any]) -> list[dict[Any, Any]]:
    """Return what the nodes of autograd graphs keep their hooks in; no node shows its own, to the collector neither."""
    rest = garbage.unreached(walk, leading.values())
    kept = set(map(id, referents(rest)))
    return [
        item
        for item in rest
        if type(item) is OrderedDict and id(item) not in kept and all(type(key) is int for key in item)
    ]


def _parts(module: Any) -> list[Any]:
    """Return the modules that are part of a module."""
    modules = (attributes_of(module) or {}).get("_modules")
    return list(dict.values(modules)) if modules is not None and is_a(modules, dict) else []


def _may_own(torch: Torch, item: Any) -> bool:
    """Whether a person would call garbage by this object's type: by an instance of a class, not by a dict in it."""
    kind = type(item)
    if torch.is_tensor(kind) or torch.is_node(kind):
        return False
    return module_of(kind) not in {"builtins", "collections"} and not issubclass(kind, type)
