"""What a prediction changes in objects beside their attributes: classes, slots, files in memory, hooks of tensors."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
import io

import pytest

torch = pytest.importorskip("torch")

import jupyter_gpumem as gm  # noqa: E402
from jupyter_gpumem.prediction import predict  # noqa: E402

LARGE = 1 << 20
"""Numbers of a tensor of more than a few MiB."""


def users(kind):
    """Have a class count as one of the notebook's."""
    kind.__module__ = "__main__"
    return kind


@users
class Slotted:
    """A class with slots alone."""

    __slots__ = ("empty", "items", "number")

    def __init__(self):
        self.number, self.items = 1, []


@users
class More(Slotted):
    """One with slots and attributes."""


@users
class Plain:
    """A class."""


@users
class Other(Plain):
    """Another one."""


@pytest.mark.parametrize("kind", [Slotted, More])
def test_slots_are_as_before(kind):
    """Those that were empty are empty again, and what lies in the others is as before."""
    thing = kind()

    def code():
        thing.number, thing.empty = 2, 3
        thing.items.append(1)

    predict(code)
    assert (thing.number, thing.items, hasattr(thing, "empty")) == (1, [], False)
    predict(lambda: delattr(thing, "number"))
    assert thing.number == 1


def test_a_frozen_dataclass_is_as_before():
    """One that writes to its own slots all the same."""
    point = users(dataclasses.make_dataclass("Point", [("x", int)], frozen=True, slots=True))(1)
    predict(lambda: object.__setattr__(point, "x", 2))
    assert point.x == 1


def test_an_object_has_its_class_again():
    """Also one that is changed twice."""
    thing = Plain()
    thing.name = "a"

    def code():
        thing.__class__ = Other
        thing.name = "b"

    predict(code)
    predict(code)
    assert type(thing) is Plain
    assert thing.name == "a"


@pytest.mark.parametrize("close", [False, True])
@pytest.mark.parametrize(("kind", "content", "more"), [(io.BytesIO, b"abc", b"xy"), (io.StringIO, "a\r\n", "xy")])
def test_a_file_in_memory_is_as_before(kind, content, more, close):
    """Its content and its place; also one that the code closes."""
    file = kind(content) if kind is io.BytesIO else io.StringIO(content, newline="")
    file.seek(1)

    def code():
        assert file.read() == content[1:]
        file.write(more)
        if close:
            file.close()

    predict(code)
    assert (file.tell(), file.getvalue()) == (1, content)
    file.write(more)
    assert file.getvalue() == content[:1] + more[:2] + content[3:]


def test_a_file_in_memory_that_is_being_looked_at_is_as_before():
    """It cannot change its size then, but its bytes."""
    file = io.BytesIO(b"abc")
    file.seek(2)
    view = file.getbuffer()

    def code():
        view[:2] = b"xy"
        file.seek(0)

    predict(code)
    assert bytes(view) == b"abc"
    assert file.tell() == 2


def test_hooks_of_tensors_are_as_before():
    """Those that are added do nothing afterwards, and those that are removed are there."""
    leaf = torch.ones(3, requires_grad=True)
    kept = leaf.register_hook(lambda grad: grad * 2)
    other = torch.ones(3, requires_grad=True)
    result = (leaf * other) * 1

    def code():
        kept.remove()
        leaf.register_hook(torch.zeros_like)
        other.register_hook(torch.zeros_like)
        result.register_hook(torch.zeros_like)
        for tensor in (leaf, other):
            tensor.register_post_accumulate_grad_hook(lambda one: one.grad.zero_() and None)

    predict(code)
    result.sum().backward()
    assert leaf.grad.tolist() == [2, 2, 2]
    assert other.grad.tolist() == [1, 1, 1]


def test_what_hooks_of_tensors_remember_is_as_before():
    """What they count, say."""
    leaf, seen = torch.ones(3, requires_grad=True), []
    leaf.register_hook(lambda grad, seen=seen: seen.append(1))
    del seen
    predict(lambda: leaf.sum().backward())
    leaf.sum().backward()
    hook = next(iter(leaf._backward_hooks.values()))
    assert hook.__defaults__ == ([1],)


def test_a_parametrized_module_is_as_before():
    """Parametrizations change a module's class, and one is taken off a class that was made for it."""
    plain = torch.nn.Linear(2, 2)
    normed = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(2, 2))
    kind, weight = type(normed), normed.weight.clone()

    def code():
        torch.nn.utils.parametrizations.spectral_norm(plain)
        torch.nn.utils.parametrize.remove_parametrizations(normed, "weight")

    predict(code)
    predict(code)
    assert type(plain) is torch.nn.Linear
    assert list(dict(plain.named_parameters())) == ["weight", "bias"]
    plain(torch.ones(2)).sum().backward()
    assert type(normed) is kind
    assert torch.equal(normed.weight, weight)


@pytest.mark.parametrize("virtual", [False, True])
def test_a_lazy_module_is_as_before(virtual):
    """It has no shape again, and is of use; also one that the code makes."""
    with gm.virtual_gpu("T4") if virtual else contextlib.nullcontext():
        device = "cuda" if virtual else "cpu"
        lazy = torch.nn.Sequential(torch.nn.LazyLinear(4), torch.nn.LazyBatchNorm1d()).to(device)

        def code():
            model = lazy.cuda()
            return torch.nn.LazyLinear(2).cuda()(model(torch.ones(3, 8, device="cuda"))).sum().backward()

        for _ in range(2):
            need = predict(code, gpu="T4")
        assert dict(need.devices[0].parts)["parameters"] >= 512
        assert type(lazy[0]) is torch.nn.LazyLinear
        assert torch.nn.parameter.is_lazy(lazy[0].weight)
        assert lazy(torch.ones(3, 7, device=device)).shape == (3, 4)


def test_values_that_are_written_to_unseen_are_as_before():
    """Large ones, written to through `.data`, an array and a storage: none of it counts as a version."""
    numpy = pytest.importorskip("numpy")
    tensors = [torch.ones(LARGE) for _ in range(3)]
    array = numpy.ones(LARGE)
    viewed = torch.from_numpy(array)

    def code():
        tensors[0].data.zero_()
        tensors[1].numpy()[:] = 2
        tensors[2].untyped_storage().fill_(0)
        viewed.zero_()

    assert predict(code).not_undone == ()
    assert [float(tensor.mean()) for tensor in tensors] == [1, 1, 1]
    assert array.mean() == 1


def test_a_pending_backward_pass_on_a_virtual_gpu_is_still_possible():
    """What the prediction wrote to its weights does not count."""
    with gm.virtual_gpu("T4"):
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1)).cuda()
        loss = model(torch.ones(2, 4, device="cuda")).sum()

        def code():
            model.load_state_dict(model.state_dict())
            optimizer = torch.optim.SGD(model.parameters(), foreach=False)
            model(torch.ones(2, 4, device="cuda")).sum().backward()
            optimizer.step()

        predict(code)
        assert {tensor._version for tensor in model.parameters()} == {0}
        loss.backward()


def test_a_tensor_that_wraps_another_is_as_before():
    """One of a class that has no memory of its own, such as those of quantized weights; and it upsets no prediction."""

    class Wrapper(torch.Tensor):
        @staticmethod
        def __new__(cls, inner):
            return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

        def __init__(self, inner):
            self.inner = inner

        @classmethod
        def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
            return function(*(one.inner if isinstance(one, cls) else one for one in args), **(kwargs or {}))

    wrapper, other = Wrapper(torch.ones(LARGE)), torch.ones(2)

    def code():
        wrapper.add_(1)
        wrapper.inner.mul_(2)
        wrapper.inner = other

    predict(code)
    assert wrapper.inner is not other
    assert wrapper.inner.mean() == 1


def test_the_card_and_the_stream_in_use_are_as_before():
    """And the next stream that is made is the one that it would have been."""
    with gm.virtual_gpu("2xT4"):
        torch.ones(1, device="cuda:1")

        def code():
            torch.cuda.set_device(1)
            torch.cuda.set_stream(torch.cuda.Stream())
            torch.ones(1, device="cuda")

        predict(code)
        assert torch.cuda.current_device() == 0
        assert torch.cuda.current_stream(1) == torch.cuda.default_stream(1)
        assert torch.cuda.Stream(1).stream_id == 1


@pytest.mark.parametrize("running", [False, True])
def test_a_recording_is_as_before(running):
    """One that the code starts ends with it, and one that runs goes on, also if the code stops it."""
    with gm.virtual_gpu("T4"):
        if running:
            torch.cuda.memory._record_memory_history()
        kept = torch.ones(1, device="cuda")

        def code():
            torch.cuda.memory._record_memory_history()
            torch.ones(1, device="cuda")
            if running:
                torch.cuda.memory._record_memory_history(enabled=None)

        predict(code)
        more = torch.ones(1, device="cuda")
        seen = [event["action"] for event in torch.cuda.memory._snapshot()["device_traces"][0]]
        assert seen == (["segment_alloc", "alloc", "alloc"] if running else [])
        torch.cuda.memory._record_memory_history(enabled=None)
        assert kept is not more


def test_no_cache_of_a_function_keeps_what_was_made():
    """Neither a function's nor a method's; one that was not added to keeps what it has."""

    @functools.cache
    def ones(size):
        return torch.ones(size, device="cuda")

    @functools.lru_cache
    def other(size):
        return [size]

    kind = users(type("Kind", (), {"ones": functools.cache(lambda self: torch.ones(1, device="cuda"))}))
    thing, kept = kind(), other(1)

    def code():
        ones(3)
        thing.ones()
        other(1)

    with gm.virtual_gpu("T4"):
        predict(code)
        assert ones.cache_info().currsize == kind.ones.cache_info().currsize == 0
        ones(3)
        assert torch.cuda.memory_allocated() == 512
        ones.cache_clear()
    assert other(1) is kept


def test_context_variables_are_as_before():
    """Those of the code's own, and those that modules keep their state in."""
    variable = contextvars.ContextVar("variable", default=0)
    variable.set(1)
    predict(lambda: variable.set(2))
    assert variable.get() == 1
