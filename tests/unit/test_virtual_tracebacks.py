"""Errors of operators on the virtual GPU: PyTorch's own texts, and as little of ours above them as IPython allows."""

from __future__ import annotations

import traceback
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import jupyter_gpumem  # noqa: E402
from jupyter_gpumem.virtual import session  # noqa: E402

OURS = str(Path(jupyter_gpumem.__file__).parent)


@pytest.fixture(autouse=True)
def gpu():
    yield session.start("24GiB")
    assert session.stop() == []


NEGATIVE = {
    "empty": lambda device: torch.empty(-1, device=device),
    "two": lambda device: torch.empty(-1, -2, device=device),
    "new": lambda device: torch.ones(3, device=device).new_empty(2, -2),
    "strided": lambda device: torch.empty_strided((2, -1), (1, 1), device=device),
    "rand": lambda device: torch.rand(-2, device=device),
    "full": lambda device: torch.full((-2,), 1.0, device=device),
}


@pytest.mark.parametrize("make", NEGATIVE.values(), ids=NEGATIVE)
def test_a_negative_size_is_refused_in_pytorchs_words(make):
    """As on the CPU."""
    texts = {}
    for device in ("cpu", "cuda"):
        with pytest.raises(RuntimeError) as caught:
            make(device)
        texts[device] = str(caught.value)
    assert "negative dimension" in texts["cpu"]
    assert texts["cuda"] == texts["cpu"]


def on(*size):
    return torch.ones(*size, device="cuda")


WRONG = {
    "too large": lambda: torch.empty(1 << 40, device="cuda"),
    "too large a result": lambda: torch.empty(1 << 20, 1, device="cuda") @ torch.empty(1, 1 << 20, device="cuda"),
    "too large to move": lambda: torch.empty(1, 1).expand(1 << 20, 1 << 20).cuda(),
    "too large to resize": lambda: on(1).resize_(1 << 40),
    "negative": lambda: torch.empty(-1, device="cuda"),
    "shapes": lambda: on(3, 4) @ on(3, 4),
    "shapes, again": lambda: [on(5, 4) @ on(3, 4) for _ in range(2)],
    "on the CPU": lambda: torch.empty(-1),
}


@pytest.mark.parametrize("fail", WRONG.values(), ids=WRONG)
def test_only_the_last_frame_of_an_error_may_be_ours(fail):
    """IPython shows the last frame in any case, and hides those above it that ask for it."""
    with pytest.raises(RuntimeError) as caught:
        fail()
    *above, _ = [frame for frame, _ in traceback.walk_tb(caught.value.__traceback__)]
    assert [
        frame.f_code.co_qualname if hasattr(frame.f_code, "co_qualname") else frame.f_code.co_name
        for frame in above
        if frame.f_code.co_filename.startswith(OURS) and not frame.f_locals.get("__tracebackhide__")
    ] == []
