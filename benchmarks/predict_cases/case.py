"""What a case is, and the training loop most of them share."""

from __future__ import annotations

import os
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


OTHER_SIZES = bool(os.environ.get("GPUMEM_OTHER_SIZES"))
"""Whether texts and images come in other sizes: cases that nothing was fitted to."""


@dataclass(frozen=True)
class Case:
    """One workload.

    Attributes:
        name: unique, in kebab case.
        family: what kind of network it is.
        optimizer: and which implementation: foreach (the default on a GPU), fused, or neither ("for loop").
        precision: fp32, bf16 or fp16 autocast, or the type of everything.
        function: runs it, yielding the model after each step.
        fast: predicted again at each test run. Needs nothing but torch.
    """

    name: str
    family: str
    optimizer: str
    precision: str
    function: Callable[[], Iterator[nn.Module]]
    fast: bool = False


CASES: dict[str, Case] = {}


def case(family, optimizer="none", precision="fp32", *, fast=False):
    def register(function):
        name = function.__name__.replace("_", "-")
        CASES[name] = Case(name, family, optimizer, precision, function, fast)
        return function

    return register


def train(model, optimizer, batch, loss_of, *, steps=2, amp=None, scaler=False, clip=None, accumulate=1):
    """The usual loop. `batch` makes a step's inputs, `loss_of(model, *inputs)` its loss."""
    scaler = torch.amp.GradScaler("cuda", enabled=scaler)
    for _ in range(steps):
        for _ in range(accumulate):
            inputs = batch()
            with torch.autocast("cuda", dtype=amp) if amp else nullcontext():
                loss = loss_of(model, *inputs) / accumulate
            scaler.scale(loss).backward()
        if clip:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        yield model


def tokens(batch, length, vocabulary):
    if OTHER_SIZES:
        batch, length = batch + batch // 2 + 1, length * 3 // 4
    return lambda: (torch.randint(1, vocabulary, (batch, length + 1), device="cuda"),)


def next_token(model, text):
    logits = model(text[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten())


def images(batch, size=224, classes=1000, layout=torch.contiguous_format):
    if OTHER_SIZES:
        batch += batch // 2 + 1
    return lambda: (
        torch.randn(batch, 3, size, size, device="cuda").to(memory_format=layout),
        torch.randint(0, classes, (batch,), device="cuda"),
    )


def classify(model, pictures, labels):
    return F.cross_entropy(model(pictures), labels)


def vision(name):
    import torchvision

    return torchvision.models.get_model(name)
