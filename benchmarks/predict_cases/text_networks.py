"""Transformers for text, in plain PyTorch: the common shapes of each family."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint


class SelfAttention(nn.Module):
    """Attention with one projection for queries, keys and values, by the fused kernels or written out."""

    def __init__(self, width, heads, *, causal=True, eager=False, dropout=0.0):
        super().__init__()
        self.heads, self.causal, self.eager, self.dropout = heads, causal, eager, dropout
        self.inputs = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2) for t in self.inputs(x).split(width, dim=2))
        if self.eager:
            scores = (q @ k.transpose(-2, -1)) / q.size(-1) ** 0.5
            if self.causal:
                mask = torch.ones(length, length, dtype=torch.bool, device=x.device).tril()
                scores = scores.masked_fill(~mask, float("-inf"))
            y = F.dropout(F.softmax(scores, dim=-1), self.dropout, self.training) @ v
        else:
            dropout = self.dropout if self.training else 0.0
            y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal, dropout_p=dropout)
        return self.output(y.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, width, heads, dropout=0.0, **attention):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = SelfAttention(width, heads, dropout=dropout, **attention)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(dropout)
        )

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """A GPT-2: learned positions, pre-normalisation, output tied to the embedding."""

    def __init__(self, vocabulary=50257, width=768, layers=12, heads=12, context=1024, *, checkpointing=False, **block):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads, **block) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        self.checkpointing = checkpointing

    def forward(self, tokens):
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.size(1), device=tokens.device))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointing else block(x)
        return self.head(self.norm(x))


class Rotary(nn.Module):
    def __init__(self, size, context):
        super().__init__()
        angles = torch.outer(torch.arange(context).float(), 10000 ** (-torch.arange(0, size, 2).float() / size))
        self.register_buffer("cos", torch.cat([angles, angles], -1).cos(), persistent=False)
        self.register_buffer("sin", torch.cat([angles, angles], -1).sin(), persistent=False)

    def forward(self, x, start=0):
        cos, sin = (t[start : start + x.size(-2)].to(x.dtype) for t in (self.cos, self.sin))
        first, second = x.chunk(2, dim=-1)
        return x * cos + torch.cat([-second, first], dim=-1) * sin


class LlamaBlock(nn.Module):
    def __init__(self, width, heads, groups, hidden, experts=0):
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, width // heads
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.q = nn.Linear(width, width, bias=False)
        self.k = nn.Linear(width, groups * self.size, bias=False)
        self.v = nn.Linear(width, groups * self.size, bias=False)
        self.o = nn.Linear(width, width, bias=False)
        self.mlp = Experts(width, hidden, experts) if experts else SwiGLU(width, hidden)

    def forward(self, x, rotary, cache=None):
        x = x + self.attend(self.norm1(x), rotary, cache)
        return x + self.mlp(self.norm2(x))

    def attend(self, x, rotary, cache):
        batch, length, _ = x.shape
        start = cache.length if cache is not None else 0
        q = rotary(self.q(x).view(batch, length, self.heads, -1).transpose(1, 2), start)
        k = rotary(self.k(x).view(batch, length, self.groups, -1).transpose(1, 2), start)
        v = self.v(x).view(batch, length, self.groups, -1).transpose(1, 2)
        mask = None
        if cache is not None:
            k, v, mask = cache.update(self, k, v)
        k, v = (t.repeat_interleave(self.heads // self.groups, dim=1) for t in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None and length > 1)
        return self.o(y.transpose(1, 2).reshape(batch, length, -1))


class SwiGLU(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.gate, self.up = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Experts(nn.Module):
    """A mixture of experts with a fixed capacity, so that shapes do not depend on values."""

    def __init__(self, width, hidden, count, chosen=2):
        super().__init__()
        self.router = nn.Linear(width, count, bias=False)
        self.experts = nn.ModuleList(SwiGLU(width, hidden) for _ in range(count))
        self.chosen = chosen

    def forward(self, x):
        flat = x.reshape(-1, x.size(-1))
        scores = F.softmax(self.router(flat).float(), dim=-1)
        capacity = self.chosen * flat.size(0) // len(self.experts)
        result = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            weights, rows = scores[:, number].topk(capacity)
            result.index_add_(0, rows, (expert(flat[rows]) * weights[:, None]).to(result.dtype))
        return result.view_as(x)


class Llama(nn.Module):
    """Grouped-query attention, rotary positions, RMSNorm and SwiGLU."""

    def __init__(self, vocabulary=32000, width=1024, layers=8, heads=16, groups=4, context=4096, experts=0):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        hidden = 256 * round(width * 8 / 3 / 256)
        self.blocks = nn.ModuleList(LlamaBlock(width, heads, groups, hidden, experts) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.rotary = Rotary(width // heads, context)
        self.checkpointing = False

    def forward(self, tokens, cache=None):
        x = self.tokens(tokens)
        for block in self.blocks:
            if self.checkpointing:
                x = checkpoint(block, x, self.rotary, use_reentrant=True)
            else:
                x = block(x, self.rotary, cache)
        if cache is not None:
            cache.length += tokens.size(1)
            x = x[:, -1:]
        return self.head(self.norm(x))


class GrowingCache:
    """Keys and values that grow by concatenation."""

    def __init__(self):
        self.length, self.held = 0, {}

    def update(self, block, k, v):
        if block in self.held:
            k, v = (torch.cat([old, new], dim=2) for old, new in zip(self.held[block], (k, v), strict=True))
        self.held[block] = (k, v)
        return k, v, None


class StaticCache:
    """Keys and values in buffers as long as the whole context, and a mask over what is filled."""

    def __init__(self, model, batch, context, dtype):
        block = model.blocks[0]
        shape = (batch, block.groups, context, block.size)
        self.length = 0
        self.held = {b: [torch.zeros(shape, device="cuda", dtype=dtype) for _ in "kv"] for b in model.blocks}
        self.positions = torch.arange(context, device="cuda")

    def update(self, block, k, v):
        now = self.positions[self.length : self.length + k.size(2)]
        for kept, new in zip(self.held[block], (k, v), strict=True):
            kept.index_copy_(2, now, new)
        mask = (self.positions[None, :] <= now[:, None])[None, None]
        return *self.held[block], mask


class LoRA(nn.Module):
    """A frozen linear layer with a trainable one of low rank beside it."""

    def __init__(self, frozen, rank=16):
        super().__init__()
        self.frozen = frozen.requires_grad_(requires_grad=False)
        self.down = nn.Linear(frozen.in_features, rank, bias=False)
        self.up = nn.Linear(rank, frozen.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return self.frozen(x) + self.up(self.down(x))


class T5Attention(nn.Module):
    """Attention written out with a learned bias of relative positions, over itself or over an encoder's output."""

    def __init__(self, width, heads, buckets=0, *, causal=False):
        super().__init__()
        self.heads, self.causal = heads, causal
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.bias = nn.Embedding(buckets, heads) if buckets else None

    def positions(self, length, device):
        distance = torch.arange(length, device=device)[None, :] - torch.arange(length, device=device)[:, None]
        bias = self.bias(distance.clamp(-15, 16) + 15).permute(2, 0, 1)[None]
        if self.causal:
            bias = bias.masked_fill(distance[None, None] > 0, torch.finfo(bias.dtype).min)
        return bias

    def forward(self, x, bias, memory=None):
        memory = x if memory is None else memory
        batch = x.size(0)
        q = self.q(x).view(batch, x.size(1), self.heads, -1).transpose(1, 2)
        k, v = (f(memory).view(batch, memory.size(1), self.heads, -1).transpose(1, 2) for f in (self.k, self.v))
        scores = torch.matmul(q, k.transpose(3, 2))
        if bias is not None:
            scores = scores + bias
        weights = F.softmax(scores.float(), dim=-1).type_as(scores)
        return self.o(torch.matmul(weights, v).transpose(1, 2).reshape(batch, x.size(1), -1))


class T5Layer(nn.Module):
    def __init__(self, width, heads, *, decoder, first):
        super().__init__()
        self.attention = T5Attention(width, heads, 32 if first else 0, causal=decoder)
        self.crossing = T5Attention(width, heads) if decoder else None
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width, bias=False), nn.ReLU(), nn.Linear(4 * width, width, bias=False)
        )
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(3))

    def forward(self, x, bias, memory=None):
        x = x + self.attention(self.norms[0](x), bias)
        if self.crossing is not None:
            x = x + self.crossing(self.norms[1](x), None, memory)
        return x + self.mlp(self.norms[2](x))


class T5(nn.Module):
    def __init__(self, vocabulary=32128, width=512, layers=6, heads=8):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.encoder, self.decoder = (
            nn.ModuleList(T5Layer(width, heads, decoder=decoder, first=not i) for i in range(layers))
            for decoder in (False, True)
        )
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, source, target):
        memory = self.run(self.encoder, self.tokens(source))
        return self.head(self.run(self.decoder, self.tokens(target), memory))

    @staticmethod
    def run(layers, x, memory=None):
        bias = layers[0].attention.positions(x.size(1), x.device)
        for layer in layers:
            x = layer(x, bias, memory)
        return x


class Encoder(nn.Module):
    """A BERT from PyTorch's own encoder layers."""

    def __init__(self, vocabulary=30522, width=768, layers=6, heads=12, dropout=0.1, context=512):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width, padding_idx=0), nn.Embedding(context, width)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout, "gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens, padding=None):
        x = self.tokens(tokens) + self.positions.weight[: tokens.size(1)]
        return self.head(self.encoder(x, src_key_padding_mask=padding))


class Translator(nn.Module):
    """PyTorch's own encoder-decoder."""

    def __init__(self, vocabulary=32000, width=512):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.transformer = nn.Transformer(width, 8, 3, 3, 2048, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, source, target):
        mask = nn.Transformer.generate_square_subsequent_mask(target.size(1), device=target.device)
        return self.head(self.transformer(self.tokens(source), self.tokens(target), tgt_mask=mask, tgt_is_causal=True))
