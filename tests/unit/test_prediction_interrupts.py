"""Ctrl-C at any moment of a prediction: nothing is left of it, and the next one works."""

from __future__ import annotations

import warnings

import pytest

torch = pytest.importorskip("torch")

import jupyter_gpumem as gm  # noqa: E402
from jupyter_gpumem.prediction import predict  # noqa: E402
from jupyter_gpumem.virtual import session, settings, undo  # noqa: E402
from jupyter_gpumem.virtual.autocast import Autocast  # noqa: E402
from jupyter_gpumem.virtual.parts import Parts  # noqa: E402


def code():
    return torch.ones(64, 64, device="cuda") @ torch.ones(64, 64, device="cuda")


MOMENTS = {
    "objects are found": (undo, "_alive"),
    "settings are read": (settings, "_logging"),
    "watching begins": (Parts, "_watch_parameters"),
    "cast weights are forgotten": (Autocast, "clear"),
}


def test_an_interrupt_as_soon_as_the_cards_are_there(signalled):
    """They are taken away again."""
    signalled(session, "start")
    with pytest.raises(KeyboardInterrupt):
        predict(code)
    assert session.active() is None
    assert not torch.cuda.is_available()


@pytest.mark.parametrize("virtual", [False, True])
@pytest.mark.parametrize("moment", MOMENTS)
def test_an_interrupt_leaves_nothing(moment, virtual, signalled):
    """Right after each of these steps."""
    if virtual:
        with gm.virtual_gpu("T4"):
            code()
            check(moment, signalled)
    else:
        check(moment, signalled)
        assert session.active() is None


def check(moment, signalled):
    first = predict(code, gpu="T4").devices[0]
    before = torch.empty, torch.Tensor.cuda, torch._C._swap_tensor_impl, warnings.filters, session.active()
    owner, name = MOMENTS[moment]
    signalled(owner, name)
    with pytest.raises(KeyboardInterrupt) as caught:
        predict(code, gpu="T4")
    after = torch.empty, torch.Tensor.cuda, torch._C._swap_tensor_impl, warnings.filters, session.active()
    assert all(one is other for one, other in zip(after, before, strict=True)), caught
    assert predict(code, gpu="T4").devices[0].peak_reserved == first.peak_reserved
