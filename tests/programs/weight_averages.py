"""Averages of weights, and checkpoints loaded to every device."""

import copy

import torch
from torch import nn
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn, update_bn

m = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2)).cuda()
ema = copy.deepcopy(m).eval()
for p in ema.parameters():
    p.requires_grad_(False)
swa = AveragedModel(m)
ema2 = AveragedModel(m, multi_avg_fn=get_ema_multi_avg_fn(0.999), use_buffers=True)
opt = torch.optim.AdamW(m.parameters())
sw = SWALR(opt, swa_lr=0.05)


@torch.no_grad()
def upd(d=0.99):
    for e, p in zip(ema.parameters(), m.parameters()):
        e.mul_(d).add_(p.data, alpha=1 - d)
    for e, p in zip(ema.buffers(), m.buffers()):
        e.copy_(p)
    for e, p in zip(ema.state_dict().values(), m.state_dict().values()):
        if e.dtype.is_floating_point:
            e.lerp_(p, 1 - d)
    torch._foreach_mul_(list(ema.parameters()), d)
    torch._foreach_add_(list(ema.parameters()), list(m.parameters()), alpha=1 - d)


for i in range(4):
    opt.zero_grad()
    m(torch.randn(4, 8, device="cuda")).sum().backward()
    opt.step()
    upd()
    swa.update_parameters(m)
    ema2.update_parameters(m)
    sw.step()
update_bn([torch.randn(4, 8) for _ in range(3)], swa, device="cuda")
backup = {k: v.clone() for k, v in m.state_dict().items()}
m.load_state_dict(ema.state_dict())
m.load_state_dict(backup)
sd = {k: v.cpu() for k, v in m.state_dict().items()}
torch.save(
    {
        "m": m.state_dict(),
        "ema": ema.state_dict(),
        "opt": opt.state_dict(),
        "rng": torch.get_rng_state(),
        "crng": torch.cuda.get_rng_state_all(),
    },
    folder / "c.pt",
)
c = torch.load(folder / "c.pt", map_location="cuda")
m.load_state_dict(c["m"])
opt.load_state_dict(c["opt"])
torch.set_rng_state(c["rng"].cpu())
torch.cuda.set_rng_state_all([r.cpu() for r in c["crng"]])
c = torch.load(folder / "c.pt", map_location="cpu")
assert all(v.is_cpu for v in c["m"].values())
m.load_state_dict(c["m"])
opt.load_state_dict(c["opt"])
c = torch.load(folder / "c.pt", weights_only=False)
assert c["m"]["0.weight"].is_cuda
c = torch.load(folder / "c.pt", map_location={"cuda:0": "cpu"})
assert c["m"]["0.weight"].is_cpu
c = torch.load(folder / "c.pt", map_location=lambda s, l: s)
assert c["m"]["0.weight"].is_cpu, c["m"]["0.weight"].device
c = torch.load(folder / "c.pt", map_location=lambda s, l: s.cuda())
assert c["m"]["0.weight"].is_cuda
c = torch.load(folder / "c.pt", map_location=torch.device("cuda:0"), mmap=True)
assert c["m"]["0.weight"].is_cuda
assert all(s["exp_avg"].is_cuda for s in opt.state.values())
assert all(s["step"].is_cpu for s in opt.state.values()), [s["step"].device for s in opt.state.values()]
