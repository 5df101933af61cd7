"""A search runs no code of the objects it passes: no method that raises, allocates or lies."""

from __future__ import annotations

import pytest

from jupyter_gpumem.holding import ranking
from jupyter_gpumem.units import MiB

torch = pytest.importorskip("torch")

PREPARE = """
import collections, types
import numpy as np, torch
def take(mib): return torch.empty(mib * 2**20, dtype=torch.uint8, device='cuda')
def ran(*args, **kwargs):
    ran_in.append(take(64))
    raise RuntimeError('code of an object ran')
ran_in = []
methods = ('__iter__ __len__ __bool__ __eq__ __hash__ __repr__ __str__ __getitem__ __contains__ __getattr__ __next__ '
           'items keys values get copy tolist').split()
def unwilling(*kinds):
    names = {name: ran for name in methods} | {'__class__': property(ran), 'shape': property(ran)}
    return types.new_class('Unwilling', kinds, {}, lambda namespace: namespace.update(names))
"""


@pytest.fixture
def gpu(on_virtual):
    """Cells with the extension and a virtual GPU of 8 GiB, and `unwilling(*kinds)`, which makes a class."""
    return on_virtual("8GiB", PREPARE)


def held(gpu):
    """Return detail or name and bytes of what is held, and check that nothing of an object's ran."""
    outcome = gpu("books = %gpumem_who -o", store_history=False)
    assert outcome.error is None, outcome.stderr
    assert gpu["ran_in"] == []
    return {holder.detail or holder.name: holder.allocated for holder in gpu["books"].devices[0].holders}


@pytest.mark.parametrize(
    ("cell", "way"),
    [
        ("x = unwilling(dict)(); dict.__setitem__(x, 'z', take(18))", "x['z']"),
        ("x = unwilling(list)(); list.append(x, take(18))", "x[0]"),
        ("x = unwilling(tuple)((take(18),))", "x[0]"),
        ("x = unwilling(collections.deque)(); collections.deque.append(x, take(18))", "x[0]"),
        ("x = unwilling(collections.OrderedDict)(); dict.__setitem__(x, 'z', take(18))", "x['z']"),
        ("x = unwilling()(); object.__setattr__(x, 'z', take(18))", "x.z"),
        ("x = unwilling(np.ndarray)((2,), dtype=object); np.ndarray.__setitem__(x, 1, take(18))", "x[1]"),
        ("class Key(str): __repr__ = ran\nx = {Key('z'): take(18)}", "x[a Key]"),
        (
            "class Part(torch.Tensor): grad = device = layout = dtype = property(ran)\nx = take(18).as_subclass(Part)",
            "x",
        ),
        ("class Meta(type):\n    __eq__ = __getattr__ = ran\nclass X(metaclass=Meta):\n    z = take(18)", "X.z"),
        ("class Meta(type):\n    __eq__ = ran\nclass X(metaclass=Meta): pass\nx = X(); x.z = take(18)", "x.z"),
        ("class X:\n    __module__ = unwilling()()\nx = X(); x.z = take(18)", "x.z"),
        ("class X:\n    __slots__ = ('z', 'unset')\nx = X(); x.z = take(18)", "x.z"),
        (
            "class O(torch.optim.SGD): pass\nx = O([torch.ones(18 << 18, device='cuda')]); O.state = property(ran)",
            "x.param_groups[0]['params'][0]",
        ),
    ],
)
def test_no_method_of_an_object_runs(gpu, cell, way):
    """It is found and named by what it holds, past all that its class does."""
    assert gpu(cell).error is None
    assert held(gpu) == {way: 18 * MiB}


def test_an_error_with_properties_is_followed_without_them(gpu):
    """Its cause, its context and its parts are what the interpreter set."""
    gpu("class Odd(ValueError):\n    __cause__ = __context__ = exceptions = property(ran)")
    gpu("def fail():\n    act = take(18)\n    raise Odd\nfail()")
    gpu("ran_in.clear()")  # IPython has asked for them
    ((name, size),) = held(gpu).items()
    assert (name.rpartition(": ")[2], size) == ("act", 18 * MiB)


@pytest.mark.parametrize(
    "kind",
    [
        "@dataclasses.dataclass(frozen=True)\nclass Odd(ValueError):\n    step: int",
        "class Odd(ValueError):\n    def __str__(self): raise KeyError",
    ],
    ids=["frozen", "without a text"],
)
def test_errors_of_unwilling_classes_are_released(gpu, kind):
    """One that lets no attribute be set, or cannot say what it is: its frames go all the same, and the cell's do."""
    gpu(f"import dataclasses\n{kind}\ndef fail():\n    act = take(18)\n    raise Odd(1)")
    failed = gpu("try:\n    fail()\nexcept Odd as error:\n    raise RuntimeError from error")
    assert type(failed.error) is RuntimeError
    assert "Error in callback" not in failed.stdout + failed.stderr
    del failed  # or the error would be held here
    released = gpu("%gpumem_free -q")
    assert released.error is None
    assert torch.cuda.memory_allocated() == 0


def test_running_code_of_a_class_with_its_own_namespace_is_passed(gpu):
    """A class body, or code, may run in any mapping: that one is not read."""
    gpu("class Space(collections.UserDict):\n    keys = items = __iter__ = ran\nspace = Space()")
    gpu("exec('kept = take(18)', {'take': take}, space)")
    ((_, size),) = held(gpu).items()
    assert size == 18 * MiB


@pytest.mark.parametrize("key", [5, ("a", 1), None], ids=str)
def test_names_that_are_no_text_are_passed(gpu, key):
    """Anything can be a key of the notebook's namespace, and what is bound to it counts all the same."""
    gpu(f"globals()[{key!r}] = take(18)")
    assert held(gpu) == {f"globals()[a {type(key).__name__}]": 18 * MiB}
    del gpu.shell.user_ns[key]


def test_a_search_that_fails_while_it_names_holds_nothing(gpu, monkeypatch):
    """Also what it had suspended, such as a generator, lets go of all that was found."""

    def fail(*_):
        raise RuntimeError

    gpu("kept = take(32); other = [take(8)]")
    monkeypatch.setattr(ranking, "path_text", fail)
    assert type(gpu("%gpumem_who").error) is RuntimeError
    before = torch.cuda.memory_allocated()
    gpu("del kept, other")
    assert before - torch.cuda.memory_allocated() == 40 * MiB
