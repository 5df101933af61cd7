"""Recurrent networks, recommenders, graphs, ranking and multi-layer perceptrons."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from .case import case, next_token, tokens, train
from .table_networks import GraphNetwork, LanguageLSTM, Recommender, mlp

# Recurrent networks.


@case("RNN", "SGD foreach", "fp32", fast=True)
def lstm_sgd_fp32():
    model = LanguageLSTM().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    yield from train(model, optimizer, tokens(64, 70, 10000), next_token, clip=0.25)


@case("RNN", "AdamW foreach", "bf16 autocast", fast=True)
def lstm_bidirectional_bf16():
    model = LanguageLSTM(width=512, bidirectional=True).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    yield from train(model, optimizer, tokens(64, 128, 10000), next_token, amp=torch.bfloat16)


@case("RNN", "Adam foreach", "fp16 autocast", fast=True)
def gru_fp16_scaler():
    model = LanguageLSTM(width=768, kind=nn.GRU).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    yield from train(model, optimizer, tokens(64, 128, 10000), next_token, amp=torch.float16, scaler=True, clip=1.0)


# Recommenders and graphs.


def clicks(batch, rows, tables, per_bag=8):
    def make():
        ids = [torch.randint(0, rows, (batch * per_bag,), device="cuda") for _ in range(tables)]
        offsets = torch.arange(0, batch * per_bag, per_bag, device="cuda")
        return torch.randn(batch, 13, device="cuda"), ids, offsets, torch.randint(0, 2, (batch,), device="cuda").float()

    return make


def clicked(model, numbers, ids, offsets, labels):
    return F.binary_cross_entropy_with_logits(model(numbers, ids, offsets).float(), labels)


@case("recommender", "AdamW foreach", "fp32", fast=True)
def recommender_adamw_fp32():
    model = Recommender().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    yield from train(model, optimizer, clicks(8192, 400_000, 8), clicked)


@case("recommender", "SGD sparse", "fp32")
def recommender_sparse_sgd():
    model = Recommender(rows=500_000, sparse=True).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    yield from train(model, optimizer, clicks(16384, 500_000, 8), clicked)


@case("recommender", "Adam fused", "bf16 autocast")
def recommender_fused_bf16():
    model = Recommender(rows=500_000, width=128).cuda()
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    yield from train(model, optimizer, clicks(16384, 500_000, 8), clicked, amp=torch.bfloat16)


@case("graph", "Adam foreach", "fp32")
def graph_adam_fp32():
    model = GraphNetwork().cuda()
    optimizer = torch.optim.Adam(model.parameters())
    nodes, edges = 100_000, 400_000

    def batch():
        ends = [torch.randint(0, nodes, (edges,), device="cuda") for _ in range(2)]
        return torch.randn(nodes, 128, device="cuda"), *ends, torch.randint(0, 40, (nodes,), device="cuda")

    def loss(model, x, sources, targets, labels):
        return F.cross_entropy(model(x, sources, targets), labels)

    yield from train(model, optimizer, batch, loss)


@case("ranking", "AdamW foreach", "fp32", fast=True)
def ranking_fp32():
    """Sort, topk, cumsum, scatter and indexing of large score matrices."""
    model = mlp(512, 3, outputs=1).cuda()
    optimizer = torch.optim.AdamW(model.parameters())

    def batch():
        return torch.randn(2048, 100, 512, device="cuda"), torch.randint(0, 5, (2048, 100), device="cuda").float()

    def loss(model, candidates, gains):
        scores = model(candidates).squeeze(-1)
        ranked, order = scores.sort(dim=1, descending=True)
        likelihood = ranked.flip(1).logcumsumexp(1).flip(1)
        reached = gains.gather(1, order).cumsum(1)
        best = scores.topk(10, dim=1)
        flags = torch.zeros_like(scores).scatter(1, best.indices, best.values)
        rows = torch.arange(len(scores), device="cuda")[:, None]
        picked = scores[rows, order[:, :20]]
        return (likelihood - ranked).mul(reached).mean() + flags.pow(2).mean() + picked.mean()

    yield from train(model, optimizer, batch, loss)


# Multi-layer perceptrons.


def regress(model, x, y):
    return F.mse_loss(model(x).float(), y)


def numbers(batch, inputs, outputs):
    return lambda: (torch.randn(batch, inputs, device="cuda"), torch.randn(batch, outputs, device="cuda"))


@case("MLP", "AdamW foreach", "fp32", fast=True)
def mlp_adamw_fp32():
    model = mlp().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    yield from train(model, optimizer, numbers(2048, 4096, 1000), regress, steps=3)


@case("MLP", "Adam fused", "bf16 autocast")
def mlp_loader_bf16():
    """Fed by a DataLoader from pinned host memory."""
    data = torch.utils.data.TensorDataset(torch.randn(6144, 1024), torch.randint(0, 10, (6144,)))
    loader = torch.utils.data.DataLoader(data, batch_size=2048, shuffle=True, pin_memory=True)
    with torch.device("cuda"):
        model = mlp(1024, 12, outputs=10)
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    for x, y in loader:
        x, y = x.to("cuda", non_blocking=True), y.cuda(non_blocking=True)  # noqa: PLW2901
        with torch.autocast("cuda", torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield model


@case("MLP", "SGD for loop", "fp32")
def mlp_sgd_for_loop():
    model = mlp(width=6144, layers=4).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, foreach=False)
    yield from train(model, optimizer, numbers(1024, 6144, 1000), regress, steps=3)


@case("MLP", "Adam for loop", "fp32")
def mlp_adam_for_loop():
    model = mlp(width=4096, layers=6).cuda()
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    yield from train(model, optimizer, numbers(1024, 4096, 1000), regress, steps=3)
