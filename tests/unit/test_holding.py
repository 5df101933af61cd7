"""The walk and its books on a virtual GPU: sizes by storage, odd tensors, and objects that must not be woken."""

from __future__ import annotations

import collections
import functools
import gc
import sys
import types
import warnings

import pytest

from jupyter_gpumem.finishing import collector_paused
from jupyter_gpumem.holding import chain, holders
from jupyter_gpumem.holding.naming import path_text
from jupyter_gpumem.holding.walk import Walk
from jupyter_gpumem.letting_go import free
from jupyter_gpumem.notebook import Notebook
from jupyter_gpumem.units import MiB
from jupyter_gpumem.virtual import session
from tests.notebooks import Shell, books, lines, take

torch = pytest.importorskip("torch")


def test_sizes_are_by_storage(small_card):
    """Two views of a storage are one allocation; a small one of a large storage is noted."""
    whole = take(32)
    found = lines(books(part=whole[:100], other=whole[5:]))
    assert [(h.name, h.allocated) for h in found.values()] == [("part", 32 * MiB)]
    assert found["variable", "part"].also[0] == "other"
    del whole
    view = take(32)[:1000]
    held = books(view=view).holders
    (line,) = [h for h in held if h.name == "view"]
    assert "uses 0.003 % of its storage of 32.00 MiB" in line.note


def test_complex_and_real_views_are_of_one_storage(small_card):
    """Either way of looking at it is a holder, it is counted once, and elements are counted by their own sizes."""
    pairs = torch.empty(MiB, 2, device="cuda")
    numbers = torch.view_as_complex(pairs)
    found = lines(books(pairs=pairs, numbers=numbers, parts=torch.view_as_real(numbers), imaginary=numbers.imag))
    assert [(h.name, h.allocated, h.alone) for h in found.values()] == [("pairs", 8 * MiB, 0)]
    assert found["variable", "pairs"].also[:3] == ("numbers", "parts", "imaginary")
    del pairs
    (line,) = books(numbers=numbers).holders
    assert (line.name, line.what, line.note) == ("numbers", f"complex64 tensor of shape ({MiB},)", None)
    few = numbers[:1000]
    del numbers
    assert "uses 0.095 % of its storage of 8.00 MiB" in lines(books(few=few))["variable", "few"].note


def test_every_holder_of_a_storage_is_shown(small_card):
    """A storage is counted once, with the nearest holder; the others are named, and it is nobody's alone."""
    x = take(8)
    found = lines(books(x=x, deep={"a": [x]}, again=(x,)))
    (line,) = found.values()
    assert (line.name, line.alone, set(line.also) >= {"again", "deep"}) == ("x", 0, True)


def test_parameters_belong_to_their_model(small_card):
    """Not to the optimizer that borrows them, nor to a graph; the optimizer holds its state."""
    model = torch.nn.Sequential(torch.nn.Linear(1024, 1024, bias=False)).cuda()
    opt = torch.optim.Adam(model.parameters())
    loss = model(torch.ones(2, 1024, device="cuda")).sum()
    loss.backward()
    opt.step()
    trainer = types.SimpleNamespace(model=model, opt=opt)
    found = lines(books(trainer=trainer, opt=opt, loss=loss, model=model))
    assert found["variable", "model"].allocated == 8 * MiB  # and the gradient
    assert found["variable", "model"].detail == "model.0.weight"
    assert found["variable", "opt"].allocated == 8 * MiB
    assert {"opt", "trainer"} <= set(found["variable", "model"].also)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
@pytest.mark.parametrize("traced", [False, True], ids=["scripted", "traced"])
def test_modules_of_torchscript(small_card, traced):
    """C++ keeps their parameters and buffers: they are the module's, under PyTorch's names, when their origin is gone.

    While it lives both hold them, and of a module in garbage no more is promised than comes back.
    """
    inner = torch.nn.Sequential(torch.nn.Linear(1024, 2048, bias=False, device="cuda"))
    inner.register_buffer("table", take(16))
    origin = torch.nn.Sequential(inner)
    model = torch.jit.trace(origin, torch.ones(1, 1024, device="cuda"), check_trace=False) if traced else None
    model = torch.jit.script(origin) if model is None else model
    both = lines(books(model=model, origin=origin)).values()
    assert sum(h.allocated for h in both if h.name in {"model", "origin"}) == 24 * MiB
    del inner, origin, both
    gc.collect()
    (line,) = [h for h in books(model=model).holders if h.allocated >= MiB]
    assert (line.kind, line.name, line.allocated, line.detail) == ("variable", "model", 24 * MiB, "model.0.table")
    weight = dict(model.named_parameters())["0.0.weight"]
    held = chain("weight", Notebook(Shell(model=model, weight=weight)))
    assert held.chains[0] == "8.00 MiB of it are also held by model.0.0.weight"
    notebook, ring = Notebook(Shell()), [model]
    with collector_paused():
        ring.append(ring)
        del model, ring, weight
        promised, returned = (
            sum(step.allocated for step in free(errors=False, cache=False, dry_run=dry, notebook=notebook).steps)
            for dry in (True, False)
        )
    assert promised <= returned
    assert returned >= 24 * MiB


class Lazy:
    """A proxy that must not be woken: it says that it is something else, and fails at every touch."""

    def __getattribute__(self, name):
        raise AssertionError(f"woken by {name}")


def test_nothing_is_woken_and_nothing_warns(small_card):
    """Lazy proxies, properties, `__getattr__` and `repr` are left alone; no warning is provoked."""

    class Careful:
        def __init__(self):
            self.data = take(4)

        @property
        def costly(self):
            raise AssertionError

        def __getattr__(self, name):
            raise AssertionError(name)

        def __repr__(self):
            raise AssertionError

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        record = books(lazy=Lazy(), nested={"lazy": [Lazy()]}, careful=Careful())
    assert [(h.name, h.detail) for h in record.holders] == [("careful", "careful.data")]


def test_odd_tensors(small_card):
    """Meta, fake, empty, sparse and wrapped tensors, and storages, are each taken for what they hold."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        fake = torch.empty(1024, 1024)

    class Wrapped(torch.Tensor):
        @staticmethod
        def __new__(cls, inner):
            one = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)
            one.inner = inner
            return one

        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            raise AssertionError("touched")

        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            raise AssertionError("computed with")

    names = {
        "meta": torch.empty(1024, 1024, device="meta"),
        "fake": fake,
        "empty": torch.empty(0, device="cuda"),
        "cpu": torch.empty(1024, 1024),
        "wrapped": Wrapped(take(16)),
        "storage": take(8).untyped_storage(),
    }
    found = lines(books(**names))
    assert {(h.name, h.allocated) for h in found.values()} == {("wrapped", 16 * MiB), ("storage", 8 * MiB)}


def test_tensors_of_a_virtual_gpu_that_was_on_before(small_card):
    """They hold nothing of the one that is on, though its addresses are the same; named, nested or without a name."""
    old, model = take(32), torch.nn.Linear(1024, 2048, bias=False, device="cuda")
    addresses = {old.untyped_storage().data_ptr(), model.weight.untyped_storage().data_ptr()}
    hidden = types.ModuleType("some_library")
    sys.modules["some_library"], hidden.cache = hidden, [take(4)]
    try:
        session.stop()
        session.start("8GiB")
        new, other = take(32), take(8)
        assert {tensor.untyped_storage().data_ptr() for tensor in (new, other)} == addresses
        record = books(old=old, model=model, new=new, other=other)
        assert [(h.name, h.allocated) for h in record.holders] == [("new", 32 * MiB), ("other", 8 * MiB)]
        assert not {"old", "model"}.intersection(*(h.also for h in record.holders))
        del new, other
        gc.collect()  # the shell that had them
        record = books(old=old, model=model)
        assert (record.holders, record.allocated, record.outside) == ((), 0, 0)
    finally:
        del sys.modules["some_library"]


def test_a_property_in_the_place_of_the_attributes_is_not_run(small_card):
    """Proxies give the attributes of what they stand for as their own."""
    asked = []

    class Plain:
        pass

    class Proxy(Plain):
        @property
        def __dict__(self):
            asked.append(self)
            raise RuntimeError("nothing to stand for")

    class Slotted:
        __slots__ = ("batch",)
        __dict__ = Proxy.__dict__["__dict__"]

    proxy, slotted = Proxy(), Slotted()
    object.__setattr__(proxy, "batch", take(3))
    slotted.batch = take(5)
    found = {name: (h.allocated, h.detail) for (_, name), h in lines(books(proxy=proxy, slotted=slotted)).items()}
    assert found == {"proxy": (3 * MiB, "proxy.batch"), "slotted": (5 * MiB, "slotted.batch")}
    assert not asked


def test_a_way_too_long_to_read_has_no_middle(small_card):
    """Along a linked list, the beginning and the end of the way are said."""

    class Node:
        def __init__(self, following):
            self.following = following

    head = node = Node(None)
    for _ in range(1000):
        node.following = Node(None)
        node = node.following
    node.batch = take(3)
    del node
    (line,) = books(head=head).holders
    beginning, end = line.detail.split(" ... ")
    assert beginning == "head" + ".following" * beginning.count(".")
    assert end == ".following" * (end.count(".") - 1) + ".batch"
    assert len(line.detail) < 250


def test_chain(small_card):
    """A name's memory is put in relation to its other holders."""
    x = take(8)
    notebook = Notebook(Shell(x=x, keep={"k": [x]}, y=take(4)))
    del x
    record = chain("x", notebook)
    assert (record.allocated, record.alone) == ({"cuda:0": 8 * MiB}, 0)
    assert record.chains[0] == "8.00 MiB of it are also held by keep['k'][0]"
    assert chain("y", notebook).alone == 4 * MiB


def test_without_a_device():
    """Where no device is in use the answer says why."""
    record = holders()
    assert record.devices == ()
    assert record.missing


def test_paths_are_written_as_a_person_would():
    """Keys, attributes, elements, closures, partials and methods."""

    class Item:
        __slots__ = ("slot",)

        def method(self):
            """Do nothing."""

    end = object()
    item = Item()
    item.slot = end
    place = types.SimpleNamespace(item=item)
    inner = [place]
    holder = {"k": inner}
    assert path_text("a", [holder, inner, place, vars(place), item, end]) == "a['k'][0].item.slot"
    assert path_text("a", [holder, inner, place, place.item, end]) == "a['k'][0].item.slot"
    partial = functools.partial(print, end)
    assert "an argument of partial" in path_text("p", [partial, end])
    assert path_text("m", [item.method, item]) == "m.__self__"


@pytest.mark.parametrize("kind", [dict, list, collections.deque, set, ValueError, collections.OrderedDict])
def test_attributes_of_containers(small_card, kind):
    """What hangs on one beside its elements is an attribute, in its dict or in a slot."""

    class Slotted(kind):
        __slots__ = ("slot",)

    class Own(Slotted):
        """Has a dict besides."""

    for name in ("beside", "slot"):
        one = Own()
        setattr(one, name, [take(1)])
        assert lines(books(one=one))["variable", "one"].detail == f"one.{name}[0]"
        del one


def test_what_a_defaultdict_makes_its_values_with(small_card):
    """Its function may hold what none of the values is."""

    def factory(batch):
        return lambda: batch

    for made, text in (
        (factory(take(1)), "cache.default_factory (closure variable batch of "),
        (functools.partial(list, take(1)), "cache.default_factory (an argument of partial list)[0]"),
    ):
        cache = collections.defaultdict(made, number=1)
        assert lines(books(cache=cache))["variable", "cache"].detail.startswith(text)


def test_names_of_an_imported_module_are_not_a_functions_own(small_card, monkeypatch):
    """A function leads to its closure and defaults, not to every name of its module; nor does the module's name."""
    library = types.ModuleType("some_library")
    monkeypatch.setitem(sys.modules, "some_library", library)
    exec(
        "def outer(inner, value):\n    def function(default=value): return inner, shared\n    return function",
        vars(library),
    )
    library.shared = take(4)
    found = lines(books(library=library, function=library.outer(take(1), take(2))))
    assert {key: h.allocated // MiB for key, h in found.items()} == {
        ("variable", "function"): 3,
        ("module", "module some_library"): 4,
    }


def test_names_that_no_module_has_are_their_functions_own(small_card):
    """Nobody else leads to them: of a file that was run or loaded without an import, or of code that was made."""

    def loaded(mib):
        module = types.ModuleType("loaded")
        vars(module).update(take=take, mib=mib)
        exec("cache = [take(mib)]\ndef function(): return cache", vars(module))
        return module

    found = lines(books(function=loaded(1).function, nested=[loaded(2)]))
    assert {name: (h.detail, h.allocated) for (_, name), h in found.items()} == {
        "function": ("function (a global name of function)['cache'][0]", MiB),
        "nested": ("nested[0].cache[0]", 2 * MiB),
    }
    found = lines(books(loaded=(module := loaded(4)), got=module.function))  # what was found before is garbage now
    assert found["variable", "loaded"].also[0] == "got"


def test_the_search_itself_holds_no_class(small_card):
    """What a class has is its own, and its instances'; what the search notes about their type is nobody else's."""

    def made():
        return type("Own", (), {"__module__": "__main__", "cache": take(1)})

    shell = Shell(own=made())
    shell.user_ns["one"] = shell.user_ns["own"]()
    assert chain("own", Notebook(shell)).chains == ("1.00 MiB of it are also held by one.cache",)
    del shell.user_ns["one"]
    assert chain("own", Notebook(shell)).alone == MiB


def test_a_slice_holds_its_ends(small_card):
    """It is an object with three references, as a tuple is."""
    (line,) = books(ends=slice(take(1))).holders
    assert (line.name, line.detail) == ("ends", "ends.stop")


def test_a_search_is_gone_when_it_has_ended(small_card):
    """Without help of the collector: what is left of one holds every tensor, and makes the next one slower."""
    kept = take(1)
    gc.collect()
    gc.disable()
    try:
        for _ in range(2):
            assert holders().devices[0].allocated == kept.nbytes
            assert [item for item in gc.get_objects() if type(item) is Walk] == []
    finally:
        gc.enable()


def test_what_is_barred_lives_as_long_as_the_walk():
    """Some modules make their namespace when asked; the id of one that died would bar another object."""
    walk = Walk((object() for _ in range(100)), {})
    others = [object() for _ in range(100)]
    assert len(walk.enter(others)) == 100
