"""What notebooks do besides: printing, pickling, loaders, optimizers, hooks, indexing."""

import copy
import gc
import io
import pickle
import random

import torch
import torch.nn.functional as F
from torch import nn

x = torch.randn(3, 4, device="cuda")
print(x, x.shape, x.dtype, x.mean(), float(x.sum()), f"{x.max():.3f}", x.tolist()[0])
print(x.cpu().numpy().shape, x.detach().cpu().numpy().mean())
import numpy as np

np.array(x.cpu())
torch.from_numpy(np.ones(3)).cuda()
torch.tensor(np.ones((2, 2)), device="cuda", dtype=torch.float32)
torch.as_tensor(np.ones(2)).to("cuda")
torch.tensor([t for t in x[:, 0]], device="cuda")
torch.stack([torch.tensor(1.0) for _ in range(3)]).cuda()
torch.tensor([[1, 2], [3, 4]]).cuda()[0, 1].item()
b = io.BytesIO()
torch.save(x, b)
b.seek(0)
assert torch.load(b).is_cuda
y = pickle.loads(pickle.dumps(x))
assert y.is_cuda
copy.copy(x)
copy.deepcopy(x)
m = nn.Linear(4, 4).cuda()
b = io.BytesIO()
torch.save(m, b)
b.seek(0)
m2 = torch.load(b, weights_only=False)
assert m2.weight.is_cuda
print(
    m,
    sum(p.numel() * p.element_size() for p in m.parameters()),
    next(m.parameters()).device,
    next(m.parameters()).is_cuda,
    {p.device for p in m.parameters()},
)
sc = torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.ReLU()).cuda())
sc(x)
c = torch.compile(m)
c(x)


def collate(b):
    return torch.stack([torch.as_tensor(i) for i in b])


from torch.utils.data import *

ds = TensorDataset(torch.randn(20, 4), torch.randint(0, 2, (20,)))
tr, va = random_split(ds, [15, 5], generator=torch.Generator().manual_seed(0))
ws = WeightedRandomSampler(torch.ones(15), 15)
for xb, yb in DataLoader(tr, 5, sampler=ws, pin_memory=True):
    xb, yb = xb.to("cuda", non_blocking=True), yb.cuda()
    F.cross_entropy(m(xb), yb).backward()


class GpuDs(Dataset):
    def __init__(s):
        s.x = torch.randn(10, 4, device="cuda")

    def __len__(s):
        return 10

    def __getitem__(s, i):
        return s.x[i]


for xb in DataLoader(GpuDs(), 4):
    assert xb.is_cuda
nn.utils.clip_grad_value_(m.parameters(), 1.0)
print(nn.utils.get_total_norm([p.grad for p in m.parameters()]).item())
opt = torch.optim.LBFGS(m.parameters(), max_iter=4)


def closure():
    opt.zero_grad()
    l = m(x).pow(2).mean()
    l.backward()
    return l


opt.step(closure)
for O in (
    torch.optim.Adagrad,
    torch.optim.RMSprop,
    torch.optim.Adadelta,
    torch.optim.Adamax,
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.ASGD,
    torch.optim.Rprop,
    torch.optim.Adafactor,
    torch.optim.AdamW,
    torch.optim.SGD,
):
    o = O(m.parameters(), lr=1e-3)
    m(x).sum().backward()
    o.step()
    sd = o.state_dict()
    o2 = O(m.parameters(), lr=1e-3)
    o2.load_state_dict(copy.deepcopy(sd))
    o2.step()
    o2.zero_grad()
try:
    o = torch.optim.Muon([nn.Parameter(torch.randn(4, 4, device="cuda"))])
except AttributeError:
    pass
import torch.nn.utils.prune as P

P.l1_unstructured(nn.Linear(4, 4).cuda(), "weight", 0.3)
P.random_unstructured(nn.Linear(4, 4).cuda(), "weight", 0.3)
h = m.register_forward_hook(lambda mod, i, o: print("hook", o.device))
m(x)
h.remove()
h = m.register_full_backward_hook(lambda mod, gi, go: None)
m(x.requires_grad_()).sum().backward()
h.remove()
xs = torch.randn(10, 10, device="cuda")
mask = xs > 0
xs[mask] = 0
xs[xs < 0] += 1
xs[:, 0] = 1
xs[[0, 1]] = xs[[1, 0]]
xs[None]
xs[..., None]
xs[torch.tensor([0, 2])]
xs[:, torch.randperm(10)[:3]]
xs[torch.arange(10), torch.arange(10)]
xs.sum().item()
(xs == 0).sum()
idx = (xs > 0).nonzero(as_tuple=True)
xs[idx]
xs.unique(return_counts=True)
for i, row in enumerate(xs[:2]):
    pass
print(
    len(xs),
    xs.T.shape,
    xs.numel(),
    xs.nelement(),
    xs.element_size(),
    xs.stride(),
    xs.is_contiguous(),
    xs.untyped_storage().nbytes(),
    torch.is_tensor(xs),
    isinstance(xs, torch.Tensor),
    xs.dim(),
    hash(xs) and 1,
)
with torch.no_grad():
    m.weight.copy_(torch.randn(4, 4))
    m.weight.fill_(0.1)
    m.weight[0] = 1
    m.bias.zero_()
    m.weight.data = torch.randn(4, 4, device="cuda")
    m.weight.data.normal_(0, 0.02)
sp = torch.sparse_coo_tensor(torch.tensor([[0, 1], [1, 0]]), torch.ones(2), (2, 2)).cuda()
torch.sparse.mm(sp, torch.randn(2, 3, device="cuda"))
sp.to_dense()
sp.coalesce()
nt = torch.nested.nested_tensor([torch.randn(2, 3), torch.randn(4, 3)], device="cuda", layout=torch.jagged)
q = torch.quantize_per_tensor(torch.randn(2), 0.1, 0, torch.qint8)
print(torch.randperm(10, device="cuda")[:3].tolist(), torch.randint(0, 5, (1,), device="cuda").item(), random.random())
assert torch.cuda.memory_allocated() > 0
del x, y, m, m2
gc.collect()
torch.cuda.empty_cache()
