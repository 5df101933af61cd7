"""Accumulation, checkpointing, a scaler and several schedules."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

net = nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64)) for _ in range(6)]).cuda()
opt = torch.optim.AdamW(net.parameters(), fused=True)
sc = torch.amp.GradScaler("cuda")
w = torch.optim.lr_scheduler.SequentialLR(
    opt,
    [torch.optim.lr_scheduler.LinearLR(opt, 0.1, total_iters=2), torch.optim.lr_scheduler.CosineAnnealingLR(opt, 5)],
    [2],
)
for step in range(3):
    for micro in range(4):
        with torch.amp.autocast("cuda", dtype=torch.float16):
            x = torch.randn(8, 64, device="cuda", requires_grad=True)
            h = x
            for l in net:
                h = (
                    checkpoint(l, h, use_reentrant=bool(micro % 2))
                    if micro < 3
                    else checkpoint_sequential(net, 3, x, use_reentrant=False)
                )
            loss = h.float().pow(2).mean() / 4
        sc.scale(loss).backward()
    sc.unscale_(opt)
    n = nn.utils.clip_grad_norm_(net.parameters(), 1.0, foreach=True)
    sc.step(opt)
    sc.update()
    opt.zero_grad()
    w.step()
    print(step, loss.item(), n.item(), sc.get_scale(), w.get_last_lr())
assert sc.get_scale() == 65536.0, sc.get_scale()
s = sc.state_dict()
sc.load_state_dict(s)
pl = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, patience=0)
for _ in range(3):
    pl.step(loss)
pl.step(loss.item())
if torch.isnan(loss):
    raise RuntimeError("nan loss")
if not torch.isfinite(loss):
    raise RuntimeError("loss not finite")
assert not torch.isinf(loss).any()
