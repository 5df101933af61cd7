"""The virtual device is PyTorch's accelerator while it is on, and gives that up again."""

from __future__ import annotations

import subprocess
import sys

import pytest

from jupyter_gpumem.errors import UnavailableError

torch = pytest.importorskip("torch")

import jupyter_gpumem as gm  # noqa: E402
from jupyter_gpumem.virtual import claim, session  # noqa: E402


def accelerator() -> str | None:
    """What PyTorch itself, not what we put in its place, takes for the accelerator."""
    try:
        torch.empty(1, pin_memory=True)
    except RuntimeError as error:
        return str(error).splitlines()[0]
    return None


def test_only_while_it_is_on():
    """Before and after, PyTorch says what it says without us; a second time as well."""
    for _ in range(2):
        before = torch.accelerator.current_accelerator(), accelerator()  # none, but in builds for CUDA
        with gm.virtual_gpu("T4"):
            assert str(torch.accelerator.current_accelerator()) == "cuda"
            weight = torch.ones(3, device="cuda", requires_grad=True)
            weight.sum().backward()
        assert (torch.accelerator.current_accelerator(), accelerator()) == before
        assert torch._C._get_privateuse1_backend_name() == "privateuseone"


def test_given_up_when_switching_on_fails(monkeypatch):
    """An error on the way leaves PyTorch's accelerator what it was."""
    before = torch.accelerator.current_accelerator()
    monkeypatch.setattr(session.softmax, "install", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        session.start("T4")
    assert torch.accelerator.current_accelerator() == before


def test_another_package_takes_the_device_meanwhile():
    """Once it has, there is no virtual GPU in this process any more, and theirs stays the accelerator."""
    program = """
import torch
import jupyter_gpumem as gm
from jupyter_gpumem.virtual import session
with gm.virtual_gpu("T4"): pass
torch.utils.backend_registration._privateuse1_backend_name = "privateuseone"
torch.utils.rename_privateuse1_backend("npu")
try:
    session.start("T4")
except Exception as error:
    print(type(error).__name__, error)
print(torch.accelerator.current_accelerator())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    said, theirs = done.stdout.splitlines()
    assert said.startswith("UnavailableError a virtual GPU needs PyTorch's PrivateUse1 device, and 'npu' has it")
    assert theirs == "npu"


def test_refused_beside_a_real_one_that_would_be_lost(monkeypatch):
    """Where PyTorch's code is not understood, a real accelerator is worth more than a virtual one."""
    monkeypatch.setattr(claim, "_flag", lambda: None)
    claim.check()
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    with pytest.raises(UnavailableError, match="CUDA_VISIBLE_DEVICES='' for it"):
        claim.check()


X86 = "0f b6 05 01 69 0e 00 84 c0 0f 95 c0 c3 0f 1f 00"
ARM = "a0 08 00 90 00 a0 37 91 00 fc df 08 1f 1c 00 72"


@pytest.mark.parametrize(
    ("find", "code", "start", "address"),
    [
        (claim._address_x86, X86, 0x47B80, 0x12E488),
        (claim._address_x86, "55 53 48 83 ec 58 40 80", 0x47B80, None),
        (claim._address_x86, "0f b6 05 f9 ff ff ff", 0x47B80, 0x47B80),
        (claim._address_arm, ARM, 0x457AD0, 0x56BDE8),
        (claim._address_arm, "a0 08 00 90 00 a0 37 91 00 00 40 39", 0x457AD0, None),
        (claim._address_arm, "e0 ff ff f0 00 04 00 91 00 fc df 08", 0x457AD0, 0x456001),
    ],
)
def test_where_the_flag_is(find, code, start, address):
    """As in the libraries of torch 2.13.0 for both processors, by their own tables of symbols."""
    assert find(bytes.fromhex(code), start) == address
