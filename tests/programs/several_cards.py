"""`DataParallel`, with one card or several."""

import torch
from torch import nn

m = nn.DataParallel(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))).cuda()
x = torch.randn(6, 4).cuda()
o = m(x)
o.sum().backward()
torch.optim.SGD(m.parameters(), 0.1).step()
assert all(k.startswith("module.") for k in m.state_dict())
m2 = nn.DataParallel(nn.Linear(4, 2).to("cuda:0"), device_ids=[0])
m2(torch.randn(3, 4))
torch.save(m.module.state_dict(), folder / "dp.pt")
if torch.cuda.device_count() > 1:
    print("several")
print(o.shape)
print(torch.cuda.memory_stats()["allocation.all.current"])
