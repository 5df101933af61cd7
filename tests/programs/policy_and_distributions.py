"""A policy gradient, and every distribution once."""

import torch
from torch import nn
from torch.distributions import *
from torch.distributions import transforms

d = "cuda"
pi = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 3)).to(d)
v = nn.Linear(4, 1).to(d)
opt = torch.optim.Adam([*pi.parameters(), *v.parameters()], 3e-4)
obs = torch.randn(64, 4, device=d)
with torch.no_grad():
    dist = Categorical(logits=pi(obs))
    a = dist.sample()
    lp = dist.log_prob(a)
    ent = dist.entropy()
adv = torch.randn(64, device=d)
for _ in range(2):
    nd = Categorical(logits=pi(obs))
    ratio = (nd.log_prob(a) - lp).exp()
    l = (
        -torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv).mean()
        - 0.01 * nd.entropy().mean()
        + (v(obs).squeeze(-1) - adv).pow(2).mean()
    )
    opt.zero_grad()
    l.backward()
    nn.utils.clip_grad_norm_(pi.parameters(), 0.5)
    opt.step()
    if (lp - nd.log_prob(a)).mean().item() > 0.015:
        print("stop")
        break
env = a.cpu().numpy()
int(a[0])
a[0].item()
mu, ls = torch.randn(8, 2, device=d), torch.zeros(8, 2, device=d)
n = Normal(mu, ls.exp())
z = n.rsample()
n.log_prob(z).sum(-1)
kl_divergence(n, Normal(torch.zeros_like(mu), torch.ones_like(mu))).sum()
t = TransformedDistribution(n, [transforms.TanhTransform(cache_size=1)])
q = t.rsample()
t.log_prob(q)
Bernoulli(logits=mu).sample()
Beta(ls.exp(), ls.exp()).rsample()
Gamma(ls.exp(), ls.exp()).rsample()
Dirichlet(ls.exp()).rsample()
MultivariateNormal(torch.zeros(2, device=d), torch.eye(2, device=d)).rsample((4,))
Uniform(torch.zeros(2, device=d), torch.ones(2, device=d)).sample()
Laplace(mu, ls.exp()).rsample()
Independent(n, 1).log_prob(z)
MixtureSameFamily(Categorical(torch.ones(8, device=d)), Independent(n, 1)).sample()
StudentT(torch.tensor(3.0, device=d)).rsample()
Poisson(ls.exp()).sample()
Exponential(ls.exp()).rsample()
OneHotCategorical(logits=mu).sample()
RelaxedBernoulli(torch.tensor(0.5, device=d), logits=mu).rsample()
Multinomial(10, torch.ones(4, device=d)).sample()
Geometric(torch.full((2,), 0.5, device=d)).sample()
LogNormal(mu, ls.exp()).rsample()
Gumbel(mu, ls.exp()).rsample()
Cauchy(mu, ls.exp()).rsample()
HalfNormal(ls.exp()).rsample()
Weibull(ls.exp(), ls.exp()).rsample()
Chi2(ls.exp()).rsample()
NegativeBinomial(ls.exp(), logits=mu).sample()
Binomial(5, logits=mu).sample()
LowRankMultivariateNormal(torch.zeros(2, device=d), torch.ones(2, 1, device=d), torch.ones(2, device=d)).rsample()
ContinuousBernoulli(logits=mu).rsample()
VonMises(mu, ls.exp()).sample()
Kumaraswamy(ls.exp(), ls.exp()).rsample()
try:
    Normal(torch.zeros(2), -torch.ones(2))
    print("BAD no cpu validation")
except ValueError:
    pass
