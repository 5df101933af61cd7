"""What training adds: optimizers, and automatic mixed precision."""

from __future__ import annotations

import itertools

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from .inputs import HALVES, backward, rand

SHAPES = ((1000, 1000), (10,), (4096, 1024), (64, 64, 3, 3), (7,)) * 8


def optimizers():
    from torch import optim

    kinds = {
        optim.AdamW: ({}, {"foreach": False}, {"fused": True}, {"amsgrad": True}),
        optim.Adam: ({"weight_decay": 0.1}, {"foreach": False}, {"fused": True}, {"capturable": True}),
        optim.SGD: (
            {},
            {"momentum": 0.9},
            {"momentum": 0.9, "foreach": False},
            {"momentum": 0.9, "fused": True},
            {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
        ),
        optim.RMSprop: ({"momentum": 0.9}, {"foreach": False}, {"centered": True}),
        optim.Adagrad: ({}, {"foreach": False}, {"fused": True}),
        optim.Adafactor: ({}, {"foreach": False}),
        optim.Adamax: ({},),
        optim.NAdam: ({},),
        optim.RAdam: ({},),
        optim.Adadelta: ({},),
        optim.Muon: ({},),
    }
    for dtype, (kind, variants) in itertools.product((torch.float32, torch.bfloat16), kinds.items()):
        for options in variants:
            shapes = [s for s in SHAPES if len(s) == 2] if kind is optim.Muon else SHAPES
            parameters = [nn.Parameter(rand(*shape, dtype=dtype)) for shape in shapes]
            for parameter in parameters:
                parameter.grad = torch.randn_like(parameter)
            optimizer = kind(parameters, lr=0.01, **options)
            yield optimizer.step, []
            yield optimizer.step, []
    for foreach in (True, False):
        yield lambda ps, f=foreach: nn.utils.clip_grad_norm_(ps, 1.0, foreach=f), [parameters]


def precision():
    parameters = [nn.Parameter(rand(*shape)) for shape in SHAPES]
    for fused in (False, True):
        scaler, optimizer = torch.amp.GradScaler("cuda"), torch.optim.AdamW(parameters, fused=fused)

        def step(scaler=scaler, optimizer=optimizer):
            loss = sum(p.float().sum() for p in parameters)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()

        yield step, []
        yield step, []
    for dtype in HALVES:
        linear, x = nn.Linear(1024, 4096, device="cuda"), rand(512, 1024, grad=True)

        def cast(t, linear=linear, dtype=dtype):
            with torch.autocast("cuda", dtype):
                return F.layer_norm(linear(t), (4096,)).softmax(-1)

        yield backward(cast), [x]
        yield lambda t, d=dtype: t.to(d), [rand(1000, 1000)]
