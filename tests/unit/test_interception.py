"""Seeing the user's reads and resets: bindings replaced and given back, during PyTorch's import too."""

from __future__ import annotations

import contextlib
import functools
import subprocess
import sys
import textwrap
import types

import pytest

from jupyter_gpumem.devices.interception import MARK, Interception
from jupyter_gpumem.importing import TorchImportWatch

CUDA = ("_cuda_memoryStats", "_cuda_resetPeakMemoryStats", "_cuda_resetAccumulatedMemoryStats")
ACCELERATOR = ("_accelerator_getDeviceStats", "_accelerator_resetPeakStats", "_accelerator_resetAccumulatedStats")


class Log:
    """A watcher that writes down what it sees."""

    def __init__(self):
        self.seen = []

    def reading(self, backend, index, stats):
        self.seen.append(("reading", backend.kind, index))
        stats["seen"] = True

    @contextlib.contextmanager
    def peak_reset(self, backend, index):
        self.seen.append(("before peak reset", backend.kind, index))
        yield
        self.seen.append(("after peak reset", backend.kind, index))

    @contextlib.contextmanager
    def totals_reset(self, backend, index):
        self.seen.append(("before totals reset", backend.kind, index))
        yield
        self.seen.append(("after totals reset", backend.kind, index))


@pytest.fixture
def log():
    """Return a watcher that saw nothing yet."""
    return Log()


def stand_in(calls, accelerator="cuda", names=(*CUDA, *ACCELERATOR)):
    """Return a module like torch whose bindings write their calls down."""

    def binding(name):
        def call(index):
            calls.append((name, index))
            return {"from": name}

        return call

    bindings = types.SimpleNamespace(**{name: binding(name) for name in names})
    if accelerator is not None:
        bindings._get_accelerator = lambda: types.SimpleNamespace(type=accelerator)
    return types.SimpleNamespace(_C=bindings)


def backend(kind="cuda"):
    """Return the little of a back end that an interception asks for."""
    return types.SimpleNamespace(kind=kind)


def originals(torch):
    """Return the bindings as they are now."""
    return {name: value for name, value in vars(torch._C).items() if name != "_get_accelerator"}


def test_every_binding_is_replaced_and_restored(log):
    """Both families of bindings are wrapped, marked, and afterwards the very same objects as before."""
    torch = stand_in([])
    before = originals(torch)
    undo = Interception(torch, backend(), log).install()
    during = originals(torch)
    assert set(before) == set(CUDA + ACCELERATOR)
    for name, wrapper in during.items():
        assert wrapper is not before[name]
        assert wrapper.__wrapped__ is before[name]
        assert getattr(wrapper, MARK) is True
    undo()
    assert originals(torch) == before
    assert not any(hasattr(function, MARK) for function in before.values())


@pytest.mark.parametrize("name", [CUDA[0], ACCELERATOR[0]])
def test_readings_are_corrected(log, name):
    """The user gets what the binding says after the watcher has seen it."""
    calls = []
    torch = stand_in(calls)
    undo = Interception(torch, backend(), log).install()
    assert getattr(torch._C, name)(3) == {"from": name, "seen": True}
    assert (calls, log.seen) == ([(name, 3)], [("reading", "cuda", 3)])
    undo()
    assert getattr(torch._C, name)(3) == {"from": name}


@pytest.mark.parametrize(
    ("name", "what"),
    [(CUDA[1], "peak"), (ACCELERATOR[1], "peak"), (CUDA[2], "totals"), (ACCELERATOR[2], "totals")],
)
def test_resets_happen_inside_the_watchers_context(log, name, what):
    """The watcher runs before and after the binding, which gets the user's argument and gives its answer."""
    calls = log.seen
    torch = stand_in(calls)
    Interception(torch, backend(), log).install()
    assert getattr(torch._C, name)(2) == {"from": name}
    assert calls == [(f"before {what} reset", "cuda", 2), (name, 2), (f"after {what} reset", "cuda", 2)]


def test_another_accelerator_keeps_its_bindings(log):
    """Where this back end is not the accelerator, `torch.accelerator` speaks of another one."""
    torch = stand_in([], accelerator="xpu")
    before = originals(torch)
    Interception(torch, backend(), log).install()
    during = originals(torch)
    assert {name for name in before if during[name] is not before[name]} == set(CUDA)


def test_an_older_torch_without_some_bindings_is_fine(log):
    """What does not exist is not replaced and not created."""
    torch = stand_in([], accelerator=None, names=CUDA[:2])
    before = originals(torch)
    undo = Interception(torch, backend(), log).install()
    assert set(originals(torch)) == set(CUDA[:2])
    undo()
    assert originals(torch) == before


def test_the_bindings_of_another_kind_are_named_after_it(log):
    """XPU has the same three bindings under its own prefix."""
    names = [name.replace("cuda", "xpu") for name in CUDA]
    torch = stand_in([], accelerator="xpu", names=(*CUDA, *names))
    before = originals(torch)
    undo = Interception(torch, backend("xpu"), log).install()
    assert {name for name in before if originals(torch)[name] is not before[name]} == set(names)
    undo()
    assert originals(torch) == before


def test_someone_who_wraps_on_top_of_us_stays(log):
    """Their wrapper survives our leaving and still reaches the original, while we see nothing any more."""
    calls = []
    torch = stand_in(calls)
    undo = Interception(torch, backend(), log).install()
    name = "_cuda_memoryStats"
    ours = torch._C._cuda_memoryStats

    @functools.wraps(ours)
    def theirs(index):
        return ours(index) | {"theirs": True}

    torch._C._cuda_memoryStats = theirs
    assert theirs(0) == {"from": name, "seen": True, "theirs": True}
    undo()
    assert torch._C._cuda_memoryStats is theirs
    assert theirs(0) == {"from": name, "theirs": True}
    assert len(log.seen) == 1
    assert len(calls) == 2


def test_a_reset_through_a_wrapper_on_top_stays_working(log):
    """A reset that goes through their wrapper after we left is the original's, once."""
    calls = []
    torch = stand_in(calls)
    undo = Interception(torch, backend(), log).install()
    ours = torch._C._cuda_resetPeakMemoryStats
    torch._C._cuda_resetPeakMemoryStats = lambda index: ours(index)
    undo()
    torch._C._cuda_resetPeakMemoryStats(1)
    assert (calls, log.seen) == ([("_cuda_resetPeakMemoryStats", 1)], [])


def test_coming_back_on_top_of_someone_tells_once(log):
    """A second interception over their wrapper, over our old one, reports each reading once."""
    torch = stand_in([])
    undo = Interception(torch, backend(), log).install()
    ours = torch._C._cuda_memoryStats
    torch._C._cuda_memoryStats = theirs = lambda index: ours(index)
    undo()
    undo_again = Interception(torch, backend(), log).install()
    torch._C._cuda_memoryStats(0)
    assert log.seen == [("reading", "cuda", 0)]
    undo_again()
    assert torch._C._cuda_memoryStats is theirs


def test_leaving_twice_or_after_a_binding_vanished_is_harmless(log):
    """Whoever else took a binding away meanwhile, undoing raises nothing and restores the rest."""
    torch = stand_in([])
    before = originals(torch)
    undo = Interception(torch, backend(), log).install()
    del torch._C._cuda_memoryStats
    undo()
    undo()
    del before["_cuda_memoryStats"]
    assert originals(torch) == before


def test_an_error_of_the_binding_is_the_users(log):
    """What the original raises reaches the user as it is, and nothing is reported as read."""
    torch = stand_in([])

    def broken(index):
        raise RuntimeError("Invalid device argument")

    torch._C._cuda_memoryStats = broken
    Interception(torch, backend(), log).install()
    with pytest.raises(RuntimeError, match=r"^Invalid device argument$"):
        torch._C._cuda_memoryStats(9)
    assert log.seen == []


def test_the_import_watch_finds_nothing_and_calls_back_once():
    """It answers every search with nothing, and reacts to one name, the first time."""
    found = []
    watch = TorchImportWatch(lambda: found.append("called"))
    before = list(sys.meta_path)
    watch.install()
    try:
        assert sys.meta_path == [watch, *before]
        assert watch.find_spec("torch") is None
        assert watch.find_spec("torch.cuda") is None
        assert found == []
        assert watch.find_spec("torch.cuda.memory", ["somewhere"]) is None
        assert watch.find_spec("torch.cuda.memory", ["somewhere"]) is None
        assert found == ["called"]
    finally:
        watch.remove()
    assert sys.meta_path == before
    watch.remove()


def test_two_import_watches_and_the_finder_behind_them_are_all_asked():
    """Python walks through the list of finders itself: one that left it meanwhile would hide the next one."""
    found = []

    class Finder:
        def find_spec(self, name, path=None, target=None):
            found.append(name)

    watches = [TorchImportWatch(lambda number=number: found.append(number)) for number in (1, 2)]
    finder = Finder()
    sys.meta_path.insert(0, finder)
    for watch in watches:
        watch.install()
    try:
        for one in sys.meta_path:  # as `importlib._bootstrap._find_spec` does
            if one.find_spec("torch.cuda.memory", []) is not None or one is finder:
                break
        assert found == [2, 1, "torch.cuda.memory"]
    finally:
        for one in (*watches, finder):
            sys.meta_path.remove(one)


FAKE_TORCH = {
    "__init__.py": """
        from torch import _C
        import torch.version
        import torch.cuda
        __version__ = "2.99"
        class backends:
            class mps:
                is_available = staticmethod(lambda: False)
    """,
    "version.py": "cuda = '13.0'\nhip = None",
    "_C.py": """
        level = {"current": 0, "peak": 0, "allocated": 0, "freed": 0}
        def spike(size):
            level["allocated"] += size; level["freed"] += size
            level["peak"] = max(level["peak"], level["current"] + size)
        def _cuda_memoryStats(index):
            count = {"current": 0, "peak": 1, "allocated": level["allocated"], "freed": level["freed"]}
            return {"num_ooms": 0, "num_alloc_retries": 0, "allocation": {"all": count},
                    "allocated_bytes": {"all": dict(level)}, "reserved_bytes": {"all": dict(level)}}
        def _cuda_resetPeakMemoryStats(index):
            level["peak"] = level["current"]
        def _cuda_resetAccumulatedMemoryStats(index):
            level["allocated"] = level["freed"] = 0
    """,
    "cuda/__init__.py": """
        from torch.cuda.memory import max_memory_allocated, reset_peak_memory_stats
        started = False
        def is_initialized(): return started
        def device_count(): return 1
        def mem_get_info(index): return 600, 1000
        class properties:
            name, total_memory = "stand-in", 1000
    """,
    "cuda/memory.py": """
        from torch import _C
        def max_memory_allocated(index=0): return _C._cuda_memoryStats(index)["allocated_bytes"]["all"]["peak"]
        def reset_peak_memory_stats(index=0): return _C._cuda_resetPeakMemoryStats(index)
    """,
}


@pytest.fixture
def in_process_with_fake_torch(tmp_path):
    """Return a function that runs code in a new Python where `import torch` finds a small stand-in."""
    for name, source in FAKE_TORCH.items():
        path = tmp_path / "torch" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(source))

    def run(code):
        program = f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\n" + textwrap.dedent(code)
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_a_reset_in_the_cell_that_imports_torch_is_folded(in_process_with_fake_torch):
    """The first cell of many notebooks imports torch, allocates and resets the peak: its own peak must be exact."""
    in_process_with_fake_torch("""
        from jupyter_gpumem.ledger import PeakLedger
        from jupyter_gpumem import devices
        ledger = PeakLedger()
        before = list(sys.meta_path)
        interval = ledger.open()
        assert ledger.watching and len(sys.meta_path) == len(before) + 1
        assert "torch" not in sys.modules

        import torch
        assert torch.__file__.startswith(sys.path[0])
        from torch.cuda.memory import reset_peak_memory_stats  # a name taken early still goes through the bindings
        torch.cuda.started = True
        torch._C.spike(1000)
        assert torch.cuda.max_memory_allocated() == 1000
        reset_peak_memory_stats()
        assert torch.cuda.max_memory_allocated() == 0
        torch._C.spike(10)

        ((backend, index), span), = ledger.close(interval).items()
        assert (backend.kind, index, span.peak_allocated, span.doubt) == ("cuda", 0, 1000, None)
        assert torch.cuda.max_memory_allocated() == 10
        assert not ledger.watching and sys.meta_path == before
        assert not hasattr(torch._C._cuda_memoryStats, "__wrapped__")
    """)


def test_a_measurement_that_ends_before_torch_comes_leaves_no_watch(in_process_with_fake_torch):
    """Nothing stays in `sys.meta_path`, and a later import finds its bindings untouched."""
    in_process_with_fake_torch("""
        from jupyter_gpumem.ledger import PeakLedger
        ledger = PeakLedger()
        before = list(sys.meta_path)
        first, second = ledger.open(), ledger.open()
        assert len(sys.meta_path) == len(before) + 1
        ledger.close(first)
        assert len(sys.meta_path) == len(before) + 1
        ledger.close(second)
        assert sys.meta_path == before and not ledger.watching
        import torch
        assert not hasattr(torch._C._cuda_memoryStats, "__wrapped__")
    """)
