"""A residual network in channels last, with mixed precision, augmentation and metrics."""

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(s, i, o, stride=1):
        super().__init__()
        s.c1 = nn.Conv2d(i, o, 3, stride, 1, bias=False)
        s.b1 = nn.BatchNorm2d(o)
        s.c2 = nn.Conv2d(o, o, 3, 1, 1, bias=False)
        s.b2 = nn.BatchNorm2d(o)
        s.sc = (
            nn.Sequential(nn.Conv2d(i, o, 1, stride, bias=False), nn.BatchNorm2d(o))
            if i != o or stride != 1
            else nn.Identity()
        )

    def forward(s, x):
        return F.relu(s.b2(s.c2(F.relu(s.b1(s.c1(x)), inplace=True))) + s.sc(x), inplace=True)


net = (
    nn.Sequential(
        nn.Conv2d(3, 16, 7, 2, 3),
        nn.MaxPool2d(3, 2, 1),
        Block(16, 16),
        Block(16, 32, 2),
        Block(32, 64, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(64, 10),
    )
    .cuda()
    .to(memory_format=torch.channels_last)
)
for m in net.modules():
    if isinstance(m, nn.Conv2d):
        nn.init.kaiming_normal_(m.weight, mode="fan_out", nonlinearity="relu")
    elif isinstance(m, nn.BatchNorm2d):
        nn.init.constant_(m.weight, 1)
torch.backends.cudnn.benchmark = True
crit = nn.CrossEntropyLoss(label_smoothing=0.1).cuda()
opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-4)
sched = torch.optim.lr_scheduler.OneCycleLR(opt, 0.1, total_steps=6)
scaler = torch.cuda.amp.GradScaler()


def accuracy(output, target, topk=(1, 5)):
    with torch.no_grad():
        maxk = max(topk)
        b = target.size(0)
        _, pred = output.topk(maxk, 1, True, True)
        pred = pred.t()
        correct = pred.eq(target.view(1, -1).expand_as(pred))
        return [correct[:k].reshape(-1).float().sum(0, keepdim=True).mul_(100.0 / b) for k in topk]


mean = torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1).cuda()
std = torch.tensor([0.229, 0.224, 0.225]).cuda().view(1, 3, 1, 1)
for it in range(6):
    x = (
        torch.randint(0, 256, (8, 3, 64, 64), dtype=torch.uint8)
        .cuda(non_blocking=True)
        .float()
        .div_(255)
        .sub_(mean)
        .div_(std)
        .to(memory_format=torch.channels_last)
    )
    y = torch.randint(0, 10, (8,)).cuda()
    lam = torch.distributions.Beta(0.2, 0.2).sample().item()
    idx = torch.randperm(8, device="cuda")
    x = lam * x + (1 - lam) * x[idx]
    with torch.cuda.amp.autocast():
        o = net(x)
        l = lam * crit(o, y) + (1 - lam) * crit(o, y[idx])
    opt.zero_grad()
    scaler.scale(l).backward()
    scaler.unscale_(opt)
    torch.nn.utils.clip_grad_norm_(net.parameters(), 5.0)
    scaler.step(opt)
    scaler.update()
    sched.step()
    a1, a5 = accuracy(o, y)
    torch.cuda.synchronize()
    print(f"{it} {l.item():.3f} {a1[0]:.2f} {a5.item():.2f} scale {scaler.get_scale()}")
assert o.dtype == torch.float16
cm = torch.zeros(10, 10, device="cuda", dtype=torch.long)
for t, p in zip(y.view(-1), o.argmax(1).view(-1)):
    cm[t.long(), p.long()] += 1
print(cm.diag().float() / cm.sum(1).clamp(min=1))
