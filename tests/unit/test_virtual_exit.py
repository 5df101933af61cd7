"""The virtual device never ends the process: each program runs in one of its own, and its exit status is looked at."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

ROOT = Path(__file__).parents[2]
HEAD = """
import sys, threading, time, torch, warnings
from jupyter_gpumem.virtual import session
warnings.simplefilter("ignore")
gpu = session.start("A100-40GB")
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8)).cuda()
x = torch.randn(4, 8, device="cuda", requires_grad=True)
def fail(error):
    def hook(*args):
        raise error
    return hook
"""
PROGRAMS = {
    "exit after a backward pass": "model(x).sum().backward()",
    "exit with a graph": "y = model(x)",
    "sys.exit": "model(x).sum().backward(); sys.exit(0)",
    "off, then exit": "y = model(x); y.sum().backward(); session.stop()",
    "on, off and on again": """
model(x).sum().backward(); session.stop(); session.start("T4")
torch.nn.Linear(3, 3).cuda()(torch.zeros(1, 3, device="cuda")).sum().backward()
""",
    "an error in a hook": """
model[0].weight.register_hook(fail(ValueError("seen")))
try:
    model(x).sum().backward()
except ValueError:
    model(x).sum()
""",
    "an interrupt in a hook": """
model[0].weight.register_hook(fail(KeyboardInterrupt()))
try:
    model(x).sum().backward()
except KeyboardInterrupt:
    model(x).sum()
""",
    "an error in a function's backward": """
class Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()
    @staticmethod
    def backward(ctx, grad):
        raise ValueError("seen")
try:
    Fails.apply(model(x)).sum().backward()
except ValueError:
    pass
""",
    "memory that ends in a backward pass": """
layers = torch.nn.Sequential(*[torch.nn.Linear(32768, 32768, bias=False, device="cuda") for _ in range(6)])
y = layers(torch.zeros(1, 32768, device="cuda")).sum()
try:
    y.backward()
except torch.OutOfMemoryError:
    pass
else:
    sys.exit("there was memory enough")
""",
    "interrupts at any moment": """
import signal
def interrupt(*args):
    raise KeyboardInterrupt
signal.signal(signal.SIGALRM, interrupt)
optimizer = torch.optim.AdamW(model.parameters())
model(x).sum().backward(); optimizer.step()
for number in range(300):
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.0003 + number * 1e-5)
        while True:
            model(x).sum().backward(); optimizer.step(); optimizer.zero_grad()
    except KeyboardInterrupt:
        signal.setitimer(signal.ITIMER_REAL, 0)
    torch.set_grad_enabled(True)  # an interrupted step may have left it off, on any device
model(x).sum().backward(); optimizer.step()
del model, optimizer, x
torch.cuda.empty_cache()
assert torch.cuda.memory_allocated() < 100 << 20
""",
    "checkpointing": """
from torch.utils.checkpoint import checkpoint
for reentrant in (True, False):
    checkpoint(model, x, use_reentrant=reentrant).sum().backward()
""",
    "threads": """
def work():
    for _ in range(5):
        model(torch.randn(4, 8, device="cuda")).sum().backward()
threads = [threading.Thread(target=work) for _ in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
""",
    "a thread that still works": """
def work():
    while True:
        model(torch.randn(4, 8, device="cuda")).sum().backward()
threading.Thread(target=work, daemon=True).start()
time.sleep(0.2)
""",
    "work on the host before and after": """
torch.nn.Linear(3, 3)(torch.ones(1, 3)).sum().backward()
model(x).sum().backward()
session.stop()
torch.nn.Linear(3, 3)(torch.ones(1, 3)).sum().backward()
""",
    "what was compiled before": """
session.stop()
count = torch._dynamo.utils.counters["frames"]
layer, other = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
other.compile(backend="eager")
whole = torch.compile(torch.nn.Linear(8, 8), backend="eager", fullgraph=True)
compiled = torch.compile(layer, backend="eager")
compiled(torch.ones(2, 8))
gpu, ran = session.start("T4"), count["ok"]
x = torch.ones(2, 8, device="cuda")
for run in (compiled, other, whole, torch._dynamo.optimize("eager")(layer)):
    run.cuda()(x).sum()
assert count["ok"] == ran == 1 and "torch.compile()" in str(*gpu.notes), (count, *gpu.notes)
session.stop()
torch.compile(torch.nn.LayerNorm(8), backend="eager")(torch.ones(2, 8))
assert count["ok"] == 2, count
""",
    "nested tensors": """
rows = [torch.ones(2, 8), torch.ones(4, 8)]
nested = torch.nested.nested_tensor(rows, layout=torch.jagged, device="cuda")
result = model(nested)
assert result.device == torch.device("cuda", 0)
result.values().sum().backward()
values = torch.randn(6, 8, device="cuda", requires_grad=True)
nested = torch.nested.nested_tensor_from_jagged(values, torch.tensor([0, 2, 6], device="cuda"))
(nested * 2).values().sum().backward()
assert values.grad.shape == (6, 8)
""",
    "a parameter of a subclass": """
class Wrapper(torch.Tensor):
    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)
    def __init__(self, inner):
        self.inner = inner
    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        from torch.utils._pytree import tree_map_only
        args, kwargs = tree_map_only(Wrapper, lambda one: one.inner, (args, kwargs or {}))
        return tree_map_only(torch.Tensor, Wrapper, func(*args, **kwargs))
weight = torch.nn.Parameter(Wrapper(torch.ones(3, device="cuda")))
(weight * 2).sum().backward()
assert weight.device == weight.grad.device == torch.device("cuda", 0)
""",
    "exported and traced code": """
from torch.fx.experimental.proxy_tensor import make_fx
torch.export.export(model, (x,))
for mode in ("real", "fake", "symbolic"):
    make_fx(lambda x: (x * 2).sum(), tracing_mode=mode)(x)
""",
    "off while other threads work": """
session.stop()
going, errors = True, []
def work():
    while going:
        try:
            layer = torch.nn.Linear(8, 8).cuda()
            layer(torch.ones(2, 8, device="cuda")).sum().backward()
        except Exception as error:  # the card is off, in the middle of whatever it was
            errors.append(type(error).__name__)
threads = [threading.Thread(target=work) for _ in range(2)]
[thread.start() for thread in threads]
for _ in range(10):
    session.start("T4")
    time.sleep(0.05)
    session.stop()
going = False
[thread.join() for thread in threads]
assert "UnavailableError" in errors
""",
    "predictions in several threads": """
import jupyter_gpumem as gm
session.stop()
before, found = dict(vars(torch.cuda)) | dict(vars(torch.Tensor)), []
def step():
    layer = torch.nn.Linear(64, 64).cuda()
    layer(torch.ones(2, 64, device="cuda")).sum().backward()
def work():
    for _ in range(2):
        found.append(gm.predict(step, gpu="T4").devices[0].peak_allocated)
threads = [threading.Thread(target=work) for _ in range(3)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert len(found) == 6 and len(set(found)) == 1, found
assert before == dict(vars(torch.cuda)) | dict(vars(torch.Tensor))
""",
    "work when the interpreter is almost gone": """
class Late:
    def __del__(self):
        (self.x + 1).sum()
late = Late()
late.x = torch.ones(3, device="cuda")
sys.kept = late
del late
""",
    "storages of a device that is on, or off": """
import copy
from jupyter_gpumem.errors import UnavailableError
storage, refused = x.untyped_storage(), 0
methods = [storage.new, lambda: storage.byteswap(torch.float32)]
for method in (*methods, session.stop, *methods, storage.clone, lambda: copy.deepcopy(model.state_dict())):
    try:
        method()
    except UnavailableError:
        refused += 1
assert refused == 6, refused
host = torch.ones(2).untyped_storage()
host.byteswap(torch.float32), host.new()
assert host.tolist()[:4] == [63, 128, 0, 0]
""",
    "a tensor of a device that is off": """
from jupyter_gpumem.errors import UnavailableError
session.stop()
try:
    x + 1
except UnavailableError as error:
    assert "add was called" in str(error) and "is off" in str(error), error
del x, model
""",
}


@pytest.mark.parametrize(
    ("lacking", "line"),
    [
        ("sys.modules['torch'] = None", "PyTorch, which is not installed here; install torch and try again"),
        ("del torch._C._acc", "a virtual GPU needs torch 2.10 or later, this is "),
        ("sys.platform = 'darwin'", "a virtual GPU needs Linux on x86-64 or ARM, this is darwin on "),
        (
            "platform.machine = lambda: 'ppc64le'",
            "a virtual GPU needs Linux on x86-64 or ARM, this is linux on ppc",
        ),
    ],
)
@pytest.mark.parametrize("code", ["gm.virtual_gpu('T4').__enter__()", "gm.predict(print)"])
def test_what_it_needs_is_said_in_one_line(code, lacking, line):
    """Before anything is imported that names what is there only then."""
    done = run(
        "import platform, sys, torch, jupyter_gpumem as gm\n"
        "from jupyter_gpumem import *\n"
        f"{lacking}\n"
        "for name in ('memory', 'shapes'): sys.modules[f'jupyter_gpumem.virtual.{name}'] = None\n"
        f"for _ in range(2):\n    try: {code}\n    except gm.UnavailableError as error: print(error)"
    )
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr
    assert len(lines) == 2
    assert all(line in one for one in lines), lines


def test_nothing_is_said_when_a_card_is_switched_on():
    """PyTorch's builds for CUDA warn of every kernel that is replaced, the first time."""
    done = run(
        "import warnings, jupyter_gpumem as gm\nwarnings.simplefilter('error')\nwith gm.virtual_gpu('24GiB'): pass"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def run(program: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=240, env=environment, check=False
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_process_ends_as_it_should(name):
    done = run(HEAD + PROGRAMS[name])
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.slow
def test_a_generator_that_has_one_on_at_the_exit_prints_nothing():
    program = (
        HEAD
        + """
session.stop()
from jupyter_gpumem import virtual_gpu
def work():
    with virtual_gpu("T4"):
        yield
sys.kept = work()
next(sys.kept)
"""
    )
    done = run(program)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_an_interrupted_program_ends_as_any_other():
    program = HEAD + "model[0].weight.register_hook(fail(KeyboardInterrupt()))\nmodel(x).sum().backward()"
    done = run(program)
    assert done.returncode == -2 or done.returncode == 130, done.stderr[-2000:]
    assert "KeyboardInterrupt" in done.stderr
    assert "terminate" not in done.stderr
