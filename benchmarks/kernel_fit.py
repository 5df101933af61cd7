"""How well formulas say what kernels take, call by call, and a table of the convolutions that they do not say."""

from __future__ import annotations

import ast
import re
from collections import defaultdict

import torch

from jupyter_gpumem.virtual import convolutions
from jupyter_gpumem.virtual.cards import parse_cards
from jupyter_gpumem.virtual.temporaries import KERNELS, Result

_TENSOR = re.compile(r"^(bf|f|i|u|c|b)(\d*)\[([\d,]*)\](?:/([\d,]+))?$")
_LIST = re.compile(r"\w+\[[\d,]*\](?:/\d+(?:,\d+)*(?!\[))?")
_NAMES = {"bf": "bfloat", "f": "float", "i": "int", "u": "uint", "c": "complex", "b": "bool"}
_SLACK, _TOLERANCE = 4096, 0.003
_WORTH = 64 * 1024
_CARD = parse_cards("H200")[0]


def value(text: str):
    """Return an argument from its text in a log: tensors on the meta device."""
    if match := _TENSOR.match(text):
        kind, bits, sizes, strides = match.groups()
        size = [int(one) for one in sizes.split(",") if one]
        dtype = getattr(torch, _NAMES[kind] + bits)
        if strides:
            return torch.empty_strided(size, [int(one) for one in strides.split(",")], dtype=dtype, device="meta")
        return torch.empty(size, dtype=dtype, device="meta")
    if " tensors(" in text:
        return [value(one) for one in _LIST.findall(text.split(": ", 1)[1])]
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text


def peak(events: list[int]) -> int:
    """Return the most bytes at once, in blocks of 512."""
    now = most = 0
    for event in events:
        now += (abs(event) + 511) // 512 * 512 * (1 if event > 0 else -1)
        most = max(most, now)
    return most


def said(name: str, args: list, outs: list) -> list[int]:
    """Return the events that the formulas say, results among them."""
    results = [Result(tuple(o.shape), o.stride(), o.dtype) if isinstance(o, torch.Tensor) else None for o in outs]
    sizes = [o.untyped_storage().nbytes() if isinstance(o, torch.Tensor) else 0 for o in outs]
    steps = KERNELS[name](_CARD, args, results)
    first = len(sizes) - steps.count(None)
    later = iter(sizes[first:])
    return [*sizes[:first], *(next(later) if step is None else step for step in steps)]


def check(calls: list[dict]) -> list[str]:
    """Return a line for each operator with a formula: calls, and how many are as the formula says."""
    found = defaultdict(list)
    for call in calls:
        name = call["op"].split(".")[1]
        if name in KERNELS:
            args, outs = values(call)
            if any(isinstance(arg, torch.Tensor) and arg.numel() for arg in args):
                real, formula = peak(call["events"]), peak(said(name, args, outs))
                found[name].append(abs(real - formula) <= max(_SLACK, _TOLERANCE * real))
    return [f"{name}: {sum(right)} of {len(right)} calls as said" for name, right in sorted(found.items())]


def values(call: dict) -> tuple[list, list]:
    args = [value(text) for text in call["args"] if not re.match(r"^\w+=", text)]
    outs = [value(text) for text in call["outs"]]
    return args, outs[0] if len(outs) == 1 and isinstance(outs[0], list) else outs


_DEFAULTS = [None, [1, 1], [0, 0], [1, 1], 1]


def convolution_table(calls: list[dict]) -> dict[str, list[int]]:
    """Return the workspaces of the measured convolutions whose layer is not as the formulas say, at some batch."""
    table, as_said = {}, {}
    for call in calls:
        name = call["op"].split(".")[1]
        args, outs = values(call)
        if name in {"conv1d", "conv2d"}:
            x, w, _, step, padding, spread, groups = [*args, *_DEFAULTS[len(args) - 2 :]]
            args, name = [x, w, None, step, padding, spread, False, [0], groups], "convolution"
        if name == "convolution":
            real = [size for sizes in temporaries(call["events"]) for size in sizes]
            formula = convolutions.forward_formula(args, outs)
            key = convolutions.key("forward", args[0], args[1], args[3:9])
            other = abs(sum(real) - sum(formula)) > _WORTH
            (table if other else as_said)[key] = real
        elif name == "convolution_backward" and args[10][0] and args[10][1]:
            around = temporaries(call["events"])
            real = [max(sizes, default=0) for sizes in around[1:3]]
            formula = convolutions.backward_formula(_CARD, args)
            key = convolutions.key("backward", args[1], args[2], args[4:10])
            other = any(abs(a - b) > _WORTH for a, b in zip(real, formula, strict=True))
            (table if other else as_said)[key] = real
        elif name == "convolution_backward" and args[10][1]:
            real = max(temporaries(call["events"])[1], default=0)
            key = convolutions.key("backward", args[1], args[2], args[4:10])
            other = abs(real - convolutions.backward_formula(_CARD, args)[1]) > _WORTH
            (table if other else as_said).setdefault(key, [0, real])
    layers = {convolutions.layer_of(key)[0] for key in table}
    beside = {key: sizes for key, sizes in as_said.items() if convolutions.layer_of(key)[0] in layers}
    return dict(sorted((beside | table).items()))


def temporaries(events: list[int]) -> list[list[int]]:
    """Return the sizes of blocks that were given back: before the first that stays, after it, and so on."""
    stays, back = [], list(events)
    for event in events:
        if event > 0:
            stays.append(-event not in back)
            if not stays[-1]:
                back.remove(-event)
    found, kept = [[]], iter(stays)
    for event in events:
        if event > 0:
            if next(kept):
                found.append([])
            else:
                found[-1].append(event)
    return [*found, [], [], []]
