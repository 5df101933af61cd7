"""Formulas for what kernels take while they run, from the events of measured calls.

A temporary is a block that a call asked for and gave back itself. Its size is explained by one operand:
`fixed + elements * (bytes + items * item size)`, in the terms of `jupyter_gpumem/virtual/kernels.json`. What no formula
explains is reported, with examples, and left out of the table.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from dataclasses import dataclass

_TENSOR = re.compile(r"\b(bf|f|i|u|c|b)(\d*)\[([\d,]*)\](?:/[\d,]+)?(?![\w@])")
_NAMES = {"bf": "bfloat", "f": "float", "i": "int", "u": "uint", "c": "complex", "b": "bool"}
_SLACK = 512  # libraries round what they ask for
_TOLERANCE = 0.002


@dataclass(frozen=True)
class Operand:
    """A tensor that a call was given or returned: elements, bytes of one, and the type's name."""

    count: int
    itemsize: int
    dtype: str


@dataclass(frozen=True)
class Sample:
    """One measured temporary, with the operands it may be explained by."""

    size: int
    operands: dict[str, Operand]
    text: str


def fit(calls: list[dict]) -> tuple[dict[str, list[dict]], list[str]]:
    """Return `{operator: terms}` and a line for each operator that has temporaries, explained or not.

    Args:
        calls: objects with the operator, its arguments and results in short, and its events.
    """
    groups, without = defaultdict(list), Counter()
    for call in calls:
        name = call["op"].split(".")[1]
        found = temporaries(call["events"])
        if not found:
            without[name] += 1
        operands = operands_of(call)
        for place, size in enumerate(found):
            first = next(iter(operands.values()), None)
            dtype = first.dtype if first else ""
            text = f"{call['op']}({', '.join(call['args'])[:150]}) {call['events']}"
            groups[name, place, dtype].append(Sample(size, operands, text))
    table, report = defaultdict(list), []
    for (name, place, dtype), samples in sorted(groups.items()):
        term = explained(samples)
        head = f"{name} #{place} {dtype}: {len(samples)} samples, {without[name]} calls of the operator without any"
        if term is None:
            sizes = sorted(samples, key=lambda s: s.size)
            report.append(f"{head}: NOT EXPLAINED\n    {sizes[0].size:,} in {sizes[0].text}")
            report.append(f"    {sizes[-1].size:,} in {sizes[-1].text}")
            continue
        report.append(f"{head}: {term}")
        table[name].append((place, term, dtype))
    return {name: merged(terms) for name, terms in table.items()}, report


def temporaries(events: list[int]) -> list[int]:
    """Return the sizes of blocks that were both asked for and given back, in the order they were asked for."""
    open_blocks, found = [], []
    for place, event in enumerate(events):
        if event > 0:
            open_blocks.append((place, event))
        else:
            mine = next((block for block in reversed(open_blocks) if block[1] == -event), None)
            if mine:
                open_blocks.remove(mine)
                found.append(mine)
    return [size for _, size in sorted(found)]


def operands_of(call: dict) -> dict[str, Operand]:
    """Return the tensors of a call as `{"in0": ..., "out0": ...}`; long lists are left out, and what is on a CPU."""
    given = [match for text in call["args"] for match in _TENSOR.finditer(text)]
    returned = [match for text in call["outs"] for match in _TENSOR.finditer(text)]
    sides = (("in", given), ("out", returned))
    return {f"{side}{number}": operand(match) for side, found in sides for number, match in enumerate(found)}


def operand(match: re.Match) -> Operand:
    kind, bits, sizes = match.groups()
    count = math.prod(int(size) for size in sizes.split(",") if size)
    return Operand(count, int(bits) // 8 if bits else 1, _NAMES[kind] + bits)


def explained(samples: list[Sample]) -> dict | None:
    """Return the simplest term that holds for all samples, or `None`."""
    smallest, largest = (pick(samples, key=lambda s: s.size) for pick in (min, max))
    if largest.size - smallest.size <= _SLACK and len(samples) > 1:
        return {"fixed": largest.size}
    for name in largest.operands:
        if not all(name in s.operands and s.operands[name].count for s in samples):
            continue
        ends = largest.operands[name], smallest.operands[name]
        slope = (largest.size - smallest.size) / ((ends[0].count - ends[1].count) or math.inf)
        fixed = round(largest.size - slope * ends[0].count)
        for per_element, constant in ((largest.size / ends[0].count, 0), (slope, fixed)):
            rounded = round(per_element * 16) / 16 or per_element
            if all(near(s.size, constant + rounded * s.operands[name].count) for s in samples):
                return {"operand": name, "bytes": rounded} | ({"fixed": constant} if constant else {})
    return None


def near(size: int, said: float) -> bool:
    return abs(size - said) <= max(_SLACK, _TOLERANCE * size)


def merged(terms: list[tuple[int, dict, str]]) -> list[dict]:
    """Return an operator's terms, those that differ by type alone as one: in item sizes where that is what differs."""
    by_place = defaultdict(list)
    for place, term, dtype in terms:
        by_place[place].append((term, dtype))
    result = []
    for found in by_place.values():
        grouped = defaultdict(list)
        for term, dtype in found:
            grouped[tuple(sorted(term.items()))].append(dtype)
        if len(grouped) == 1:
            result.append({"operand": "in0"} | found[0][0])
            continue
        result += [{"operand": "in0"} | dict(items) | {"dtypes": sorted(dtypes)} for items, dtypes in grouped.items()]
    return result
