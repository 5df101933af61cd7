"""A translator with attention step by step, a language model that keeps its state, metrics."""

import random

import torch
import torch.nn.functional as F
from torch import nn

device = "cuda"


class Enc(nn.Module):
    def __init__(s):
        super().__init__()
        s.e = nn.Embedding(50, 16, padding_idx=0)
        s.r = nn.GRU(16, 32, bidirectional=True, batch_first=True)
        s.f = nn.Linear(64, 32)

    def forward(s, x, l):
        p = nn.utils.rnn.pack_padded_sequence(s.e(x), l.cpu(), batch_first=True, enforce_sorted=False)
        o, h = s.r(p)
        o, _ = nn.utils.rnn.pad_packed_sequence(o, batch_first=True)
        return o, torch.tanh(s.f(torch.cat((h[-2], h[-1]), 1)))


class Att(nn.Module):
    def __init__(s):
        super().__init__()
        s.a = nn.Linear(96, 32)
        s.v = nn.Linear(32, 1, bias=False)

    def forward(s, h, o, m):
        h = h.unsqueeze(1).repeat(1, o.shape[1], 1)
        a = s.v(torch.tanh(s.a(torch.cat((h, o), 2)))).squeeze(2).masked_fill(m == 0, -1e10)
        return F.softmax(a, 1)


class Dec(nn.Module):
    def __init__(s):
        super().__init__()
        s.e = nn.Embedding(50, 16)
        s.r = nn.GRUCell(80, 32)
        s.f = nn.Linear(112, 50)
        s.a = Att()

    def forward(s, i, h, o, m):
        e = s.e(i)
        a = s.a(h, o, m).unsqueeze(1)
        w = torch.bmm(a, o).squeeze(1)
        h = s.r(torch.cat((e, w), 1), h)
        return s.f(torch.cat((h, w, e), 1)), h


en, de = Enc().to(device), Dec().to(device)
o = torch.optim.Adam([*en.parameters(), *de.parameters()])
for it in range(2):
    ls = torch.tensor([7, 5, 9, 3])
    x = nn.utils.rnn.pad_sequence([torch.randint(1, 50, (l,)) for l in ls], batch_first=True).to(device)
    y = torch.randint(1, 50, (4, 6), device=device)
    m = x != 0
    ls = ls.to(device)
    eo, h = en(x, ls)
    m = m[:, : eo.shape[1]]
    inp = y[:, 0]
    outs = torch.zeros(4, 6, 50).to(device)
    for t in range(1, 6):
        p, h = de(inp, h, eo, m)
        outs[:, t] = p
        top = p.argmax(1)
        inp = y[:, t] if random.random() < 0.5 else top
    l = F.cross_entropy(outs[:, 1:].reshape(-1, 50), y[:, 1:].reshape(-1), ignore_index=0)
    o.zero_grad()
    l.backward()
    nn.utils.clip_grad_norm_(en.parameters(), 1)
    o.step()
    print(l.item())
# char rnn with hidden carried
r = nn.LSTM(8, 16, 2, dropout=0.1).cuda()
hid = (torch.zeros(2, 4, 16, device="cuda"), torch.zeros(2, 4, 16).cuda())
for _ in range(2):
    hid = tuple(h.detach() for h in hid)
    out, hid = r(torch.randn(5, 4, 8, device="cuda"), hid)
    out.sum().backward()
# metrics
logits = torch.randn(20, 5, device="cuda")
tgt = torch.randint(0, 5, (20,), device="cuda")
pred = logits.argmax(-1)
tp = ((pred == 1) & (tgt == 1)).sum().item()
fp = ((pred == 1) & (tgt != 1)).sum().item()
prec = tp / (tp + fp) if tp + fp else 0.0
conf = torch.bincount(tgt * 5 + pred, minlength=25).reshape(5, 5)
iou = conf.diag() / (conf.sum(0) + conf.sum(1) - conf.diag()).clamp(min=1)
print(prec, iou.mean().item(), torch.softmax(logits, 1).max(1).values.mean().item())
for c in range(5):
    if (tgt == c).any():
        (pred[tgt == c] == c).float().mean().item()
vals, ix = torch.sort(logits[:, 0], descending=True)
auc = torch.trapezoid(torch.cumsum((tgt[ix] == 0).float(), 0))
print(float(auc))
while True:
    if random.random() < 0.5:
        break
# losses
emb = F.normalize(torch.randn(8, 16, device="cuda", requires_grad=True))
sim = emb @ emb.T / 0.07
sim.fill_diagonal_(-1e9) if not sim.requires_grad else (
    sim := sim.masked_fill(torch.eye(8, dtype=torch.bool, device="cuda"), -1e9)
)
F.cross_entropy(sim, torch.arange(8, device="cuda").roll(4)).backward()
