"""Per-sample gradients and ensembles by `torch.func`."""

import torch
from torch import nn
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, stack_module_state, vjp, vmap

m = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).cuda()
p = dict(m.named_parameters())
x = torch.randn(16, 4, device="cuda")
y = torch.randn(16, 1, device="cuda")


def loss(p, x, y):
    return ((functional_call(m, p, (x.unsqueeze(0),)) - y) ** 2).mean()


g = vmap(grad(loss), in_dims=(None, 0, 0))(p, x, y)
assert g["0.weight"].shape == (16, 8, 4) and g["0.weight"].is_cuda
f = lambda t: t.sin().sum()
print(jacrev(lambda t: t.sin())(x[0]).shape, jacfwd(lambda t: t.sin())(x[0]).shape, hessian(f)(x[0]).shape)
o, v = vjp(lambda t: t**2, x)
v(torch.ones_like(o))
jvp(lambda t: t**2, (x,), (x,))
ms = [nn.Linear(4, 2).cuda() for _ in range(3)]
pp, bb = stack_module_state(ms)
import copy

base = copy.deepcopy(ms[0]).to("meta")
out = vmap(lambda p, b, x: functional_call(base, (p, b), (x,)), in_dims=(0, 0, None))(pp, bb, x)
assert out.shape == (3, 16, 2)
print(
    vmap(torch.dot)(x, x).shape,
    vmap(lambda a: a.softmax(-1).max())(x).shape,
    torch.vmap(lambda a: torch.randn(3, device="cuda") + a[0], randomness="different")(x).shape,
)
