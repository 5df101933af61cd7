"""Functions with gradients of their own, double backward passes, hooks, Jacobians."""

import torch
from torch import nn


class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, beta):
        ctx.save_for_backward(x, beta)
        ctx.k = 3
        return x * torch.sigmoid(beta * x)

    @staticmethod
    def backward(ctx, g):
        x, b = ctx.saved_tensors
        s = torch.sigmoid(b * x)
        return g * (s + b * x * s * (1 - s)), (g * x * x * s * (1 - s)).sum()


class Fp32(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cuda", cast_inputs=torch.float32)
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        assert a.dtype == torch.float32, a.dtype
        return a @ b

    @staticmethod
    @torch.amp.custom_bwd(device_type="cuda")
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        return g @ b.T, a.T @ g


class STE(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, g):
        return g.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass


x = torch.randn(4, 8, device="cuda", requires_grad=True)
b = nn.Parameter(torch.tensor(1.0, device="cuda"))
y = Swish.apply(x, b)
y.sum().backward()
assert x.grad.shape == x.shape and b.grad.shape == ()
with torch.autocast("cuda", dtype=torch.float16):
    h = nn.Linear(8, 8).cuda()(x)
    z = Fp32.apply(h, torch.randn(8, 3, device="cuda", requires_grad=True))
z.sum().backward()
(g,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
gp = (g.norm(2, dim=1) - 1).pow(2).mean()
gp.backward()
j = torch.autograd.functional.jacobian(lambda t: (t**2).sum(1), x.detach())
assert j.shape == (4, 4, 8)
hs = torch.autograd.functional.hessian(lambda t: (t**3).sum(), torch.randn(3, device="cuda"))
assert hs.is_cuda
with torch.autograd.set_detect_anomaly(True):
    (x.exp()).sum().backward()
with torch.autograd.graph.save_on_cpu(pin_memory=True):
    q = (x.sin() * x.cos()).sum()
q.backward()
hook = x.register_hook(lambda g: g * 2)
(x * 2).sum().backward()
hook.remove()


class Rev(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, a):
        ctx.a = a
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return g.neg() * ctx.a, None


Rev.apply(x, 0.5).sum().backward()
print(torch.autograd.gradcheck)
L = nn.Linear(2, 2).cuda()
p = torch.nn.utils.parameters_to_vector(L.parameters())
torch.nn.utils.vector_to_parameters(p, L.parameters())
