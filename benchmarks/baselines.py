"""What other ways of estimating say of a case: the rule of `accelerate estimate-memory`, and torch's `MemTracker`."""

from __future__ import annotations

from contextlib import contextmanager

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map


class Fakes(FakeTensorMode):
    """Fake tensors whose values, where a program asks for one, are 1 or False, and that can be copied deeply."""

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        if operator is torch.ops.aten._local_scalar_dense.default:
            return int(args[0].dtype != torch.bool)
        return super().__torch_dispatch__(operator, types, args, kwargs)

    def __deepcopy__(self, memo):
        return self


class Elsewhere(TorchFunctionMode):
    """Runs on `device` what asks for "cuda"."""

    def __init__(self, device):
        super().__init__()
        self.device = torch.device(device)

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function is torch.Tensor.cuda:
            return args[0].to(self.device)
        args, kwargs = tree_map(self.moved, (args, kwargs))
        return function(*args, **kwargs)

    def moved(self, value):
        on_cuda = (isinstance(value, torch.device) and value.type == "cuda") or (
            isinstance(value, str) and value.split(":")[0] == "cuda"
        )
        return self.device if on_cuda else value


@contextmanager
def new_parameters_when_moved():
    """Let modules take new parameters when moved: swapping those of fake ones fails (pytorch/pytorch#187008)."""
    apply, made = nn.Module._apply, {}

    def _apply(self, function, recurse=True):  # noqa: FBT002
        outermost = not made
        made[None] = None
        for child in self.children() if recurse else ():
            child._apply(function)
        for kept in (self._parameters, self._buffers):
            for name, old in kept.items():
                if old is not None:
                    kept[name] = made.setdefault(old, renewed(old, function))
        if outermost:
            made.clear()
        return self

    nn.Module._apply = _apply
    try:
        yield
    finally:
        nn.Module._apply = apply


@contextmanager
def autocast_elsewhere(device):
    """Let autocast for "cuda" be one for `device`: of the operators that it casts, CPUs and GPUs share most."""
    autocast = torch.autocast
    torch.autocast = lambda _device, dtype=None, **options: autocast(device, dtype, **options)
    try:
        yield
    finally:
        torch.autocast = autocast


def renewed(old, function):
    with torch.no_grad():
        new = function(old)
    if new is old or not isinstance(old, nn.Parameter):
        return new
    return nn.Parameter(new, old.requires_grad)


def weight_bytes(model) -> int:
    """Return the bytes of a model's parameters and buffers, each storage once."""
    storages = {t.untyped_storage()._cdata: t.untyped_storage() for t in [*model.parameters(), *model.buffers()]}
    return sum(storage.nbytes() for storage in storages.values())


def accelerate_rule(case, weights) -> int:
    """Return what `accelerate estimate-memory` says: 4 times the weights for training with Adam, else 1.2 times.

    It has no answer for other optimizers; Adam's is taken for all training, as its table does. The 20 % for inference
    are from the text that comes with the table.
    """
    return 4 * weights if case.optimizer != "none" else round(1.2 * weights)


def mem_tracker_peak(case) -> int:
    """Return the peak in bytes that `MemTracker` finds with fake tensors on a machine without a GPU.

    Nothing computes: the case asks for "cuda" and gets fake CPU tensors, so all it makes counts, also what stays in
    host memory on a real machine.
    """
    from torch.distributed._tools.mem_tracker import MemTracker

    tracker = MemTracker()
    with Fakes(), new_parameters_when_moved(), Elsewhere("cpu"), autocast_elsewhere("cpu"), tracker:
        for _ in case.function():
            tracker.reset_mod_stats()
    return tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"]
