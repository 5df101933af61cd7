"""A variational autoencoder, a GAN with a gradient penalty, a diffusion model."""

import torch
import torch.nn.functional as F
from torch import nn

dev = torch.device("cuda:0")


class VAE(nn.Module):
    def __init__(s):
        super().__init__()
        s.f1 = nn.Linear(64, 32)
        s.mu = nn.Linear(32, 8)
        s.lv = nn.Linear(32, 8)
        s.d = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 64))

    def forward(s, x):
        h = F.relu(s.f1(x.view(-1, 64)))
        mu, lv = s.mu(h), s.lv(h)
        z = mu + torch.randn_like(lv) * torch.exp(0.5 * lv)
        return torch.sigmoid(s.d(z)), mu, lv


v = VAE().to(dev)
o = torch.optim.Adam(v.parameters(), 1e-3)
for _ in range(2):
    x = torch.rand(8, 1, 8, 8).to(dev)
    r, mu, lv = v(x)
    l = F.binary_cross_entropy(r, x.view(-1, 64), reduction="sum") - 0.5 * torch.sum(1 + lv - mu.pow(2) - lv.exp())
    o.zero_grad()
    l.backward()
    o.step()
G = nn.Sequential(
    nn.ConvTranspose2d(16, 32, 4, 1, 0, bias=False),
    nn.BatchNorm2d(32),
    nn.ReLU(True),
    nn.ConvTranspose2d(32, 3, 4, 2, 1),
    nn.Tanh(),
).to(dev)
D = nn.Sequential(
    nn.utils.spectral_norm(nn.Conv2d(3, 32, 4, 2, 1)), nn.LeakyReLU(0.2, True), nn.Conv2d(32, 1, 4), nn.Sigmoid()
).to(dev)


def init(m):
    c = m.__class__.__name__
    if c.find("Conv") != -1 and hasattr(m, "weight_orig") == False:
        nn.init.normal_(m.weight.data, 0.0, 0.02)
    elif c.find("BatchNorm") != -1:
        nn.init.normal_(m.weight.data, 1.0, 0.02)
        nn.init.constant_(m.bias.data, 0)


G.apply(init)
D.apply(init)
og = torch.optim.Adam(G.parameters(), 2e-4, betas=(0.5, 0.999))
od = torch.optim.Adam(D.parameters(), 2e-4)
for _ in range(2):
    D.zero_grad()
    real = torch.randn(4, 3, 8, 8, device=dev)
    lab = torch.full((4,), 1.0, device=dev)
    e = F.binary_cross_entropy(D(real).view(-1), lab)
    e.backward()
    fake = G(torch.randn(4, 16, 1, 1, device=dev))
    lab.fill_(0.0)
    e2 = F.binary_cross_entropy(D(fake.detach()).view(-1), lab)
    e2.backward()
    od.step()
    al = torch.rand(4, 1, 1, 1, device=dev)
    it = (al * real + (1 - al) * fake.detach()).requires_grad_(True)
    gr = torch.autograd.grad(D(it), it, grad_outputs=torch.ones_like(D(it)), create_graph=True, retain_graph=True)[0]
    gp = ((gr.view(4, -1).norm(2, dim=1) - 1) ** 2).mean()
    gp.backward()
    G.zero_grad()
    lab.fill_(1.0)
    eg = F.binary_cross_entropy(D(fake).view(-1), lab)
    eg.backward()
    og.step()
    print(e.item() + e2.item(), eg.item(), D(fake).mean().item())
# diffusion
T = 100
b = torch.linspace(1e-4, 0.02, T).to(dev)
ab = torch.cumprod(1 - b, 0)
net = nn.Conv2d(3, 3, 3, padding=1).to(dev)
x0 = torch.randn(4, 3, 8, 8, device=dev)
t = torch.randint(0, T, (4,), device=dev).long()
n = torch.randn_like(x0)
xt = ab[t].sqrt().view(-1, 1, 1, 1) * x0 + (1 - ab[t]).sqrt()[:, None, None, None] * n
F.mse_loss(net(xt), n).backward()


@torch.no_grad()
def sample():
    x = torch.randn(2, 3, 8, 8, device=dev)
    for i in reversed(range(5)):
        tt = torch.full((2,), i, device=dev, dtype=torch.long)
        z = torch.randn_like(x) if i > 0 else 0
        x = (x - b[tt].view(-1, 1, 1, 1) * net(x)) / ab[tt].view(-1, 1, 1, 1).sqrt() + z * b[i].sqrt()
    return x.clamp(-1, 1)


s = sample()
g = torch.cat([*s], 2).permute(1, 2, 0).mul(255).add_(0.5).clamp_(0, 255).to("cpu", torch.uint8).numpy()
print(g.shape)
