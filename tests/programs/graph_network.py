"""A graph network with a sparse adjacency matrix."""

import torch
import torch.nn.functional as F
from torch import nn

n = 100
idx = torch.randint(0, n, (2, 500))
adj = torch.sparse_coo_tensor(idx, torch.ones(500), (n, n)).coalesce().cuda()
print(adj.device, adj.is_sparse, adj.shape)


class GCN(nn.Module):
    def __init__(s):
        super().__init__()
        s.a = nn.Linear(16, 32)
        s.b = nn.Linear(32, 4)

    def forward(s, x, adj):
        return torch.sparse.mm(adj, s.b(F.relu(torch.spmm(adj, s.a(x)))))


m = GCN().cuda()
x = torch.randn(n, 16).cuda()
y = torch.randint(0, 4, (n,)).cuda()
o = torch.optim.Adam(m.parameters())
for _ in range(2):
    l = F.cross_entropy(m(x, adj)[:50], y[:50])
    o.zero_grad()
    l.backward()
    o.step()
print(
    adj.to_dense().shape,
    (adj @ x).shape,
    adj.t().shape,
    adj.coalesce().values().shape,
    torch.sparse_coo_tensor(idx.cuda(), torch.ones(500, device="cuda"), (n, n)).coalesce().indices().shape,
)
