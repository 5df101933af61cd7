"""Low-rank adapters on a small language model with tied weights, and sampling with a cache."""

import torch
import torch.nn.functional as F
from torch import nn


class LoRA(nn.Module):
    def __init__(s, base, r=4, a=8):
        super().__init__()
        s.base = base
        for p in base.parameters():
            p.requires_grad = False
        s.A = nn.Parameter(torch.empty(r, base.in_features, device=base.weight.device, dtype=torch.float32))
        s.B = nn.Parameter(torch.zeros(base.out_features, r, device=base.weight.device))
        nn.init.kaiming_uniform_(s.A, a=5**0.5)
        s.scale = a / r
        s.d = nn.Dropout(0.05)

    def forward(s, x):
        return s.base(x) + (s.d(x).to(s.A.dtype) @ s.A.t() @ s.B.t() * s.scale).to(x.dtype)

    def merge(s):
        s.base.weight.data += (s.B @ s.A * s.scale).to(s.base.weight.dtype)


class Att(nn.Module):
    def __init__(s, d=64, h=4):
        super().__init__()
        s.q, s.k, s.v, s.o = (nn.Linear(d, d, bias=False) for _ in range(4))
        s.h = h

    def forward(s, x, past=None):
        b, t, c = x.shape
        q, k, v = (f(x).view(b, t, s.h, -1).transpose(1, 2) for f in (s.q, s.k, s.v))
        if past is not None:
            k = torch.cat([past[0], k], 2)
            v = torch.cat([past[1], v], 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=past is None)
        return s.o(y.transpose(1, 2).reshape(b, t, c)), (k, v)


class LM(nn.Module):
    def __init__(s):
        super().__init__()
        s.e = nn.Embedding(128, 64)
        s.l = nn.ModuleList(Att() for _ in range(2))
        s.n = nn.LayerNorm(64)
        s.head = nn.Linear(64, 128, bias=False)
        s.head.weight = s.e.weight

    def forward(s, ids, past=None):
        x = s.e(ids)
        new = []
        for i, l in enumerate(s.l):
            y, kv = l(x, None if past is None else past[i])
            x = x + y
            new.append(kv)
        return s.head(s.n(x)), new


m = LM().to(torch.bfloat16).cuda()
assert m.head.weight is m.e.weight
for l in m.l:
    l.q = LoRA(l.q)
    l.v = LoRA(l.v)
print(sum(p.numel() for p in m.parameters() if p.requires_grad))
opt = torch.optim.AdamW(filter(lambda p: p.requires_grad, m.parameters()), lr=1e-3)
for _ in range(2):
    ids = torch.randint(0, 128, (2, 16), device="cuda")
    lo, _ = m(ids)
    F.cross_entropy(lo[:, :-1].float().reshape(-1, 128), ids[:, 1:].reshape(-1), ignore_index=-100).backward()
    opt.step()
    opt.zero_grad()
for l in m.l:
    l.q.merge()
ad = {k: v.cpu() for k, v in m.state_dict().items() if ".A" in k or ".B" in k}
torch.save(ad, folder / "lora.pt")
print(m.load_state_dict(torch.load(folder / "lora.pt"), strict=False).unexpected_keys)


# generation
@torch.inference_mode()
def generate(ids, n=10, temp=0.8, top_k=20, top_p=0.9, eos=0):
    past = None
    cur = ids
    done = torch.zeros(ids.size(0), dtype=torch.bool, device=ids.device)
    for i in range(n):
        lo, past = m(cur, past)
        l = lo[:, -1, :].float() / temp
        v, _ = torch.topk(l, top_k)
        l[l < v[:, [-1]]] = -float("inf")
        s, si = torch.sort(l, descending=True)
        cp = s.softmax(-1).cumsum(-1)
        rm = cp > top_p
        rm[..., 1:] = rm[..., :-1].clone()
        rm[..., 0] = 0
        l = l.masked_fill(rm.scatter(1, si, rm), float("-inf"))
        nxt = torch.multinomial(F.softmax(l, -1), 1)
        nxt = torch.where(done[:, None], torch.full_like(nxt, eos), nxt)
        ids = torch.cat([ids, nxt], 1)
        cur = nxt
        done |= nxt.squeeze(1) == eos
        if done.all():
            break
    return ids


o = generate(torch.randint(1, 128, (2, 5), device="cuda"))
print(o.shape, o[0].tolist()[:5])
