"""How the state of an optimizer is called: by the parameter that it belongs to."""

from __future__ import annotations

import pytest

from jupyter_gpumem.units import MiB
from tests.notebooks import books

torch = pytest.importorskip("torch")


def stepped(groups):
    """Return an optimizer that has taken a step: with two buffers for each parameter."""
    optimizer = torch.optim.AdamW(groups)
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    return optimizer


@pytest.fixture
def model(small_card):
    """Two layers, of which the second is the larger one."""
    sizes = ((256, 256), (256, 2048))
    return torch.nn.Sequential(*(torch.nn.Linear(*size, bias=False, device="cuda") for size in sizes))


def test_the_state_of_a_parameter_has_its_number(model):
    """In the order in which the optimizer was given them; with its group, if there are several."""
    opt = stepped(model.parameters())
    (line,) = [holder for holder in books(opt=opt, model=model).holders if holder.name == "opt"]
    assert (line.tensors, line.allocated >= 4 * MiB) == (4, True)
    assert line.detail == "opt.state[parameter 1]['exp_avg']"
    opt = stepped([{"params": [layer.weight]} for layer in model])
    (line,) = [holder for holder in books(opt=opt, model=model).holders if holder.name == "opt"]
    assert line.detail == "opt.state[parameter 0 of group 1]['exp_avg']"


def test_the_state_of_a_parameter_has_the_name_that_it_was_given_with(model):
    """Where the optimizer was made from `named_parameters()`."""
    try:
        opt = stepped(model.named_parameters())
    except TypeError:
        pytest.skip("needs PyTorch 2.6")
    (line,) = [holder for holder in books(opt=opt, model=model).holders if holder.name == "opt"]
    assert line.detail == "opt.state[1.weight]['exp_avg']"
