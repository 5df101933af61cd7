"""Arguments of a wrong kind: every public function refuses them at once, in one line of ours that shows what it got."""

from __future__ import annotations

import inspect

import pytest

import jupyter_gpumem as gm
from jupyter_gpumem import arguments
from jupyter_gpumem.errors import GpumemError, InvalidValueError

torch = pytest.importorskip("torch")


class Odd:
    """What nobody expects."""

    def __repr__(self):
        return "an odd\nthing"


ODD = Odd()
NUMBERS = ("x", None, ODD, [], [1.5], {"a": 1}, b"y", True, float("nan"), -1, 1 + 2j)
FUNCTIONS = ("x", 3.5, 0, ODD, [], {"a": 1}, b"y", True)
FLAGS = ("x", None, ODD, [], 3.5, -1)
DEVICES = ("x", 3.5, -1, True, ODD, [], [1.5], {"a": 1}, b"y")
PATHS = (3.5, ODD, [], {"a": 1}, b"y", 1 + 2j)
SIZES = ("x", 3.5, -1, True, ODD, [], b"y", float("nan"))
CARDS = (3.5, -1, True, ODD, b"y", [1.5], {"a": 1})
TEXTS = (3.5, -1, True, ODD, [], {"a": 1}, b"y")

WRONG = {
    "allocator_config": {"changes": TEXTS, "undo": FLAGS, "reset": FLAGS, "force": FLAGS},
    "audit": {"threshold": NUMBERS[:-4], "compact": FLAGS, "devices": DEVICES},
    "empty_cache": {"workspaces": FLAGS},
    "explain_oom": {"error": TEXTS},
    "find_batch_size": {
        "fn": (*FUNCTIONS, None),
        "start": NUMBERS,
        "maximum": [wrong for wrong in NUMBERS if wrong is not None],
        "margin": NUMBERS,
        "predict": [wrong for wrong in FLAGS if wrong is not None],
        "on_trial": FUNCTIONS,
    },
    "free": {
        "errors": FLAGS,
        "outputs": FLAGS,
        "cycles": FLAGS,
        "cache": FLAGS,
        "dry_run": FLAGS,
        "notebook": FUNCTIONS,
    },
    "holders": {"devices": DEVICES, "budget": NUMBERS},
    "limit": {"size": SIZES, "devices": DEVICES},
    "measure": {"function": TEXTS, "devices": DEVICES, "on_result": FUNCTIONS},
    "monitor": {"interval": NUMBERS[:-4], "threshold": NUMBERS[:-4], "on_exceed": FUNCTIONS},
    "panel": {"inline": FLAGS},
    "predict": {
        "function": (*FUNCTIONS, None),
        "gpu": CARDS,
        "batch": (3.5, ODD, [], {"a": 1}, b"y"),
        "runs": NUMBERS,
    },
    "read_recording": {"path": (*PATHS, None)},
    "record": {"path": PATHS, "max_entries": NUMBERS, "stacks": FLAGS},
    "reserve": {"size": SIZES, "name": (3.5, ODD, [], b"y"), "device": DEVICES, "hold": FLAGS},
    "retry_on_oom": {"function": FUNCTIONS, "max_retries": NUMBERS, "on_retry": FUNCTIONS},
    "status": {"devices": DEVICES},
    "Tracker": {"devices": DEVICES},
    "virtual_gpu": {"gpu": (*CARDS, None), "settings": (3.5, -1, True, ODD, [1.5], b"y", "x")},
    "whatif": {"recording": (3.5, ODD, None), "progress": FUNCTIONS, "jobs": NUMBERS},
}
FREE = {"predict"}
"""A flag that is as true as what is given for it, as everywhere in Python."""
ELSEWHERE = {("whatif", "settings"), ("whatif", "memory"), ("whatif", "limit"), ("whatif", "device")}
"""What `test_comparison_inputs.py` tests."""

CASES = [(name, argument, wrong) for name, each in WRONG.items() for argument in each for wrong in each[argument]]


def use(name, options):
    """Call a function, or run a block in what it returns."""
    function = getattr(gm, name)
    positional = [options.pop("function")] if name == "measure" and "function" in options else []
    made = function(*positional, **options)
    if name in {"measure", "record", "monitor", "virtual_gpu", "Tracker"}:
        with made:
            pass


REQUIRED = {
    "find_batch_size": {"fn": int, "maximum": 2},
    "predict": {"function": int, "gpu": "T4"},
    "reserve": {"size": 1},
    "whatif": {"recording": "none"},
}


@pytest.mark.parametrize(("name", "argument", "wrong"), CASES)
def test_what_is_wrong_is_said_in_one_line(name, argument, wrong, request):
    """With a device, where all but these errors would come from deep inside."""
    if name != "virtual_gpu":
        request.getfixturevalue("virtual")
    with pytest.raises(GpumemError) as caught:
        use(name, REQUIRED.get(name, {}) | {argument: wrong})
    assert len(str(caught.value).splitlines()) == 1
    assert 10 < len(str(caught.value)) < 400


def test_every_argument_of_every_function_is_there():
    """Nothing public is left out: a new argument has to be given a line above."""
    missing = []
    for name in gm.__all__:
        public = getattr(gm, name)
        if inspect.isclass(public) and not (name[0].islower() or name == "Tracker"):
            continue
        for argument, how in inspect.signature(public).parameters.items():
            if how.kind in {how.VAR_POSITIONAL, how.VAR_KEYWORD} or argument in FREE:
                continue
            if argument not in WRONG.get(name, {}) and (name, argument) not in ELSEWHERE:
                missing.append((name, argument))
    assert missing == []


def test_what_is_no_function_is_not_decorated():
    """Neither measured nor retried, at once and not when it is called."""
    for decorator in (gm.measure(), gm.retry_on_oom(), gm.retry_on_oom().call):
        with pytest.raises(InvalidValueError, match=r"must be a function that takes .*, got 5"):
            decorator(5)


def test_settings_of_a_virtual_gpu_as_pytorch_writes_them():
    """A text will do: who writes one has read PyTorch's manual, not ours."""
    with gm.virtual_gpu("T4", "expandable_segments:True"):
        torch.ones(1, device="cuda")
        assert gm.status().settings["expandable_segments"] == "True"


def test_numbers_of_numpy_are_numbers():
    """They come out of any computation."""
    numpy = pytest.importorskip("numpy")
    assert type(arguments.check_whole("n", numpy.int64(3))) is int
    assert type(arguments.check_share("share", numpy.float32(0.5))) is float
    assert type(gm.audit(numpy.float32(0.5)).threshold) is float
    gm.monitor(numpy.float32(60), numpy.float16(0.5)).end()
    for huge in (10**400, -(10**400)):
        with pytest.raises(InvalidValueError, match=r"^share must be a share"):
            arguments.check_share("share", huge)
    with pytest.raises(InvalidValueError, match=r"^n must be a whole number of 2 or more, got .*1"):
        arguments.check_whole("n", numpy.int64(1), least=2)


class Whole:
    """A number of another kind."""

    def __index__(self):
        return 2


def test_whole_numbers_of_any_kind_will_do(virtual, tmp_path):
    """Wherever one is asked for; what is done with them is done with Python's own."""
    two = Whole()
    assert gm.find_batch_size(lambda n: torch.empty(n, device="cuda").nbytes, two, two).batch_size == 2
    assert gm.retry_on_oom(max_retries=two).call(int, 3) == 3
    assert gm.predict(lambda batch_size: torch.empty(batch_size), batch_size=two, batch="batch_size", runs=two)
    with gm.record(tmp_path / "run.pickle", max_entries=two) as r:
        kept = torch.empty(1 << 20, device="cuda")
    assert len(gm.whatif(r.recording, ["expandable_segments:True"], jobs=two, memory=1 << 34).results) == 2
    with gm.reserve(Whole()):
        pass
    assert gm.holders(budget=two).complete is False
    del kept


def test_what_is_shown_is_short_and_on_one_line():
    """Whatever it is."""
    assert arguments.shown(ODD) == "an odd thing"
    assert len(arguments.shown("x" * 10_000)) == 60
