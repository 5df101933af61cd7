"""Replacing attributes for the virtual GPU and putting them back exactly."""

from __future__ import annotations

import types

import pytest
import torch  # noqa: TID253 - what is patched

from jupyter_gpumem.virtual.patches import Patches


class Base:
    """A class with every kind of attribute."""

    inherited = 1

    @staticmethod
    def static():
        return "static"

    @classmethod
    def of_class(cls):
        return cls

    @property
    def computed(self):
        return "computed"

    def method(self):
        return "method"


class Derived(Base):
    """Has nothing of its own."""


@pytest.mark.parametrize("name", ["inherited", "static", "of_class", "computed", "method"])
def test_a_class_gets_its_very_descriptors_back(name):
    """A static method is not turned into a plain function, nor a property into its value."""
    before = dict(vars(Base))
    patches = Patches()
    patches.set(Base, name, lambda *_: "ours")
    assert vars(Base) != before
    assert patches.undo() == []
    assert dict(vars(Base)) == before
    assert Derived.static() == "static"
    assert Derived().computed == "computed"


def test_what_was_inherited_is_inherited_again():
    """Replacing an inherited attribute adds one, which is gone afterwards."""
    patches = Patches()
    patches.set(Derived, "method", lambda self: "ours")
    assert Derived().method() == "ours"
    patches.undo()
    assert "method" not in vars(Derived)
    assert Derived().method() == "method"


def test_modules_and_bindings_come_back_attribute_by_attribute():
    """An absent attribute is absent afterwards, in Python modules and in the compiled one."""
    owners = (torch, torch.cuda, torch.cuda.memory, torch._C, torch.Tensor, torch.nn.Module)
    before = [dict(vars(owner)) for owner in owners]
    patches = Patches()
    for owner in owners:
        patches.set(owner, "_gpumem_was_absent", 1)
    patches.set(torch.cuda, "is_available", lambda: True)
    patches.set(torch.nn.Module, "cuda", lambda self: self)
    patches.set(torch._C, "_cuda_getDeviceCount", lambda: 3)
    assert len(patches) == 9
    assert patches.undo() == []
    for owner, was in zip(owners, before, strict=True):
        now = dict(vars(owner))
        assert now.keys() == was.keys()
        assert all(now[key] is was[key] for key in was)
    assert len(patches) == 0


def test_twice_the_same_attribute():
    """The last replacement goes first, and what was there at the beginning is what stays."""
    module = types.ModuleType("module")
    module.value = 0
    patches = Patches()
    patches.set(module, "value", 1)
    patches.set(module, "value", 2)
    assert patches.before(module, "value") == 0
    assert module.value == 2
    assert patches.undo() == []
    assert module.value == 0


def test_somebody_elses_replacement_stays_and_is_told():
    """What another tool has put there meanwhile is not ours to remove."""
    module = types.ModuleType("module")
    patches = Patches()
    patches.set(module, "ours", 1)
    patches.set(module, "theirs", 1)
    module.theirs = 2
    [note] = patches.undo()
    assert note == "module.theirs was replaced by somebody else meanwhile; it is left"
    assert module.theirs == 2
    assert not hasattr(module, "ours")


def test_an_owner_that_refuses_changes_nothing():
    """A static type of an extension cannot be changed; the other patches are undone all the same."""
    module = types.ModuleType("module")
    patches = Patches()
    patches.set(module, "value", 1)
    with pytest.raises(TypeError):
        patches.set(int, "value", 1)
    assert len(patches) == 1
    patches.undo()
    assert not hasattr(module, "value")


def test_undoing_twice_is_harmless():
    """The second time there is nothing to do."""
    module = types.ModuleType("module")
    patches = Patches()
    patches.set(module, "value", 1)
    patches.undo()
    module.value = 5
    assert patches.undo() == []
    assert module.value == 5
    assert patches.before(module, "value") == 5
    assert patches.before(module, "missing", "default") == "default"


def test_what_the_owner_itself_writes_comes_back():
    """A cache or flag that its module changes in the course of things is no intervention of somebody else."""
    module = types.ModuleType("module")
    module.flag = False
    patches = Patches()
    patches.set(module, "flag", value=None, kept_by_owner=True)
    module.flag = "changed by the module"
    assert patches.undo() == []
    assert module.flag is False


def test_functions_are_called_in_their_place():
    """What is to happen on undoing sees what was replaced before it, and no longer what was replaced after."""
    module = types.ModuleType("module")
    module.first = module.second = 0
    seen = []
    patches = Patches()
    patches.set(module, "first", 1)
    patches.on_undo(lambda: seen.append((module.first, module.second)))
    patches.set(module, "second", 1)
    patches.undo()
    assert seen == [(1, 0)]
    assert (module.first, module.second) == (0, 0)
