"""Networks for sequences, tables and graphs, in plain PyTorch."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812


class LanguageLSTM(nn.Module):
    def __init__(self, vocabulary=10000, width=650, layers=2, kind=nn.LSTM, **options):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.rnn = kind(width, width, layers, batch_first=True, dropout=0.2, **options)
        self.head = nn.Linear(width * (2 if options.get("bidirectional") else 1), vocabulary)

    def forward(self, tokens):
        return self.head(self.rnn(self.tokens(tokens))[0])


class Recommender(nn.Module):
    """A DLRM: embedding bags for categories, an MLP for numbers, pairwise products of both."""

    def __init__(self, rows=400_000, tables=8, width=64, *, sparse=False):
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum", sparse=sparse) for _ in range(tables))
        self.numbers = nn.Sequential(nn.Linear(13, 512), nn.ReLU(), nn.Linear(512, width), nn.ReLU())
        pairs = (tables + 1) * tables // 2
        self.top = nn.Sequential(
            nn.Linear(pairs + width, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 1)
        )

    def forward(self, numbers, categories, offsets):
        dense = self.numbers(numbers)
        found = [dense, *(bag(ids, offsets) for bag, ids in zip(self.bags, categories, strict=True))]
        stacked = torch.stack(found, dim=1)
        products = torch.bmm(stacked, stacked.transpose(1, 2))
        row, column = torch.tril_indices(len(found), len(found), -1, device=numbers.device)
        return self.top(torch.cat([dense, products[:, row, column]], dim=1)).squeeze(1)


class GraphNetwork(nn.Module):
    """Message passing: gather along edges, add up at nodes."""

    def __init__(self, width=128, layers=3):
        super().__init__()
        self.messages = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(layers))
        self.updates = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(layers))
        self.head = nn.Linear(width, 40)

    def forward(self, x, sources, targets):
        for message, update in zip(self.messages, self.updates, strict=True):
            sent = F.relu(message(torch.cat([x[targets], x.index_select(0, sources)], dim=1)))
            arrived = torch.zeros_like(x).scatter_add(0, targets[:, None].expand_as(sent), sent.to(x.dtype))
            x = F.relu(update(torch.cat([x, arrived], dim=1)))
        return self.head(x)


def mlp(width=4096, layers=8, outputs=1000):
    hidden = [part for _ in range(layers - 1) for part in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*hidden, nn.Linear(width, outputs))
