"""A small training to predict: a model whose weights are 16 MiB, and the steps that train it."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

WIDTH = 1024
WEIGHTS = 4 * WIDTH * WIDTH * 4


def make(layers=4):
    return torch.nn.Sequential(*[torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(layers)])


def take(size):
    return torch.empty(size, dtype=torch.uint8, device="cuda")


def train(model, batch=64, steps=2, **options):
    model.cuda().train()
    optimizer = torch.optim.AdamW(model.parameters(), **options)
    for _ in range(steps):
        loss = model(torch.randn(batch, WIDTH, device="cuda")).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
