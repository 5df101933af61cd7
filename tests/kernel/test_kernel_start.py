"""The first minutes of a kernel: before torch is imported, with a torch that has no GPU, and what loading costs."""

from __future__ import annotations

import pytest

HEAVY = "sorted({'torch', 'matplotlib', 'ipywidgets', 'anywidget', 'pandas'} & set(__import__('sys').modules))"
WATCHES = "[type(finder).__name__ for finder in __import__('sys').meta_path].count('TorchImportWatch')"
REPLACED = "[n for n, f in vars(__import__('torch')._C).items() if getattr(f, '__gpumem_interception__', 0) is True]"
ABSENT = "this PyTorch ({version}) is built without GPU support"


@pytest.fixture
def without_gpu(fresh_kernel):
    """A fresh kernel with the extension loaded and a torch without GPU support imported, and the sentence about it."""
    fresh_kernel.run("%load_ext jupyter_gpumem")
    fresh_kernel.run("import torch")
    if fresh_kernel.value("torch.version.cuda, torch.version.hip") != "(None, None)":
        # A torch built for CUDA is made to say that it is not: the environment of the tests may hold either.
        fresh_kernel.run("torch.version.cuda = torch.version.hip = None")
    fresh_kernel.absent = ABSENT.format(version=fresh_kernel.value("str(torch.__version__)").strip("'"))
    return fresh_kernel


def test_loading_imports_nothing_heavy(fresh_kernel):
    """`%load_ext` prints nothing and imports neither torch nor matplotlib nor ipywidgets."""
    assert fresh_kernel.value(HEAVY) == "[]"
    reply = fresh_kernel.run("%load_ext jupyter_gpumem")
    assert (reply.status, reply.shown.strip(), reply.displays) == ("ok", "", [])
    assert fresh_kernel.value(HEAVY) == "[]"


def test_magics_before_torch_is_imported(fresh_kernel):
    """Every magic works before torch is imported, says so in one line, and does not import it."""
    fresh_kernel.run("%load_ext jupyter_gpumem")
    assert fresh_kernel.run("%gpumem").reports[0].splitlines()[0] == "This process has not used a GPU yet."
    reply = fresh_kernel.run("%%gpumem\n6 * 7")
    assert (reply.status, reply.result) == ("ok", "42")
    assert reply.reports[0].splitlines()[1:] == ["  GPU memory not measured: torch was not imported."]
    reply = fresh_kernel.run("%gpumem 6 * 7")
    assert (reply.status, reply.result) == ("ok", "42")
    assert reply.reports[0].splitlines()[1:] == ["  GPU memory not measured: torch was not imported."]
    reply = fresh_kernel.run("%%gpumem -r 2\n6 * 7")
    assert reply.reports[0].splitlines()[-1] == "  GPU memory not measured: torch was not imported."
    reply = fresh_kernel.run("%%gpumem -d 0\n6 * 7")
    assert (reply.status, reply.result) == ("ok", "42")
    fresh_kernel.run("%gpumem_auto on")
    reply = fresh_kernel.run("6 * 7")
    assert (reply.status, reply.result) == ("ok", "42")
    assert reply.reports[0].startswith("gpumem   GPU memory not measured: torch was not imported   ")
    assert fresh_kernel.value(HEAVY) == "[]"
    assert fresh_kernel.value(WATCHES) == "0"


def test_memory_runs_out_in_the_cell_that_imports_torch(fresh_kernel):
    """The state is kept also there, on a device that is first used in the same cell; nothing goes on watching."""
    fresh_kernel.run("%load_ext jupyter_gpumem")
    assert fresh_kernel.value(WATCHES) == "0"
    reply = fresh_kernel.run(
        "import torch\nfrom jupyter_gpumem.virtual import session\nsession.start('8GiB')\n"
        "torch.ones(9 << 30, dtype=torch.uint8, device='cuda')"
    )
    assert reply.error == "OutOfMemoryError"
    assert len(reply.reports) == 1
    assert fresh_kernel.run("why = %gpumem_oom -o").status == "ok"
    assert fresh_kernel.value("why.seen") == "'when it happened'"
    assert fresh_kernel.value(WATCHES) == "0"


def test_torch_imported_inside_a_measured_cell(fresh_kernel):
    """A cell that imports torch is measured, and neither import watch nor replaced binding stays."""
    fresh_kernel.run("%load_ext jupyter_gpumem")
    reply = fresh_kernel.run("%%gpumem\nimport torch\nprint(torch.ones(2).sum().item())")
    assert (reply.status, reply.stdout, len(reply.reports)) == ("ok", "2.0\n", 1)
    assert fresh_kernel.value("torch.cuda.is_initialized()") == "False"
    assert fresh_kernel.value(WATCHES) == "0"
    assert fresh_kernel.value(REPLACED) == "[]"


def test_cells_with_a_torch_that_has_no_gpu(without_gpu):
    """A cell runs, with its value and status, and one line says that and why GPU memory is not measured."""
    for first_line in ("%%gpumem", "%%gpumem -r 1"):
        reply = without_gpu.run(f"{first_line}\nprint(int(torch.ones(6).sum()))")
        assert (reply.status, reply.stdout, reply.stderr) == ("ok", "6\n", "")
        assert reply.reports[0].splitlines()[-1] == f"  GPU memory not measured: {without_gpu.absent}."
    reply = without_gpu.run("%gpumem 6 * 7")
    assert (reply.status, reply.result) == ("ok", "42")
    assert reply.reports[0].splitlines()[1:] == [f"  GPU memory not measured: {without_gpu.absent}."]
    reply = without_gpu.run("%%gpumem\n1 / 0")
    assert (reply.status, reply.error, len(reply.reports)) == ("error", "ZeroDivisionError", 1)
    without_gpu.run("%gpumem_auto on")
    reply = without_gpu.run("6 * 7")
    assert (reply.status, reply.result) == ("ok", "42")
    assert reply.reports[0].startswith(f"gpumem   GPU memory not measured: {without_gpu.absent}   ")
    assert without_gpu.value("torch.cuda.is_initialized()") == "False"
    assert without_gpu.value(REPLACED) == "[]"


def test_status_with_a_torch_that_has_no_gpu(without_gpu):
    """`%gpumem` is no error there, and begins with the reason."""
    reply = without_gpu.run("%gpumem")
    assert (reply.status, reply.errors, len(reply.displays)) == ("ok", [], 1)
    sentence = without_gpu.absent[0].upper() + without_gpu.absent[1:] + "."
    assert reply.reports[0].splitlines()[0] == sentence
    assert without_gpu.value("torch.cuda.is_initialized()") == "False"


@pytest.mark.parametrize("named", ["0", "cuda:0"])
def test_a_device_that_cannot_be_is_refused(without_gpu, named):
    """Naming a device there is refused in one line, with status error, and nothing runs."""
    line = f"cuda:0 cannot be measured: {without_gpu.absent}\n"
    for code in (f"%%gpumem -d {named}\nhas_run = 1", f"%gpumem -d {named} has_run = 1", f"%gpumem -d {named}"):
        reply = without_gpu.run(code)
        assert (reply.status, reply.content["ename"]) == ("error", "UsageError")
        assert (reply.stderr, reply.stdout, reply.displays, reply.errors) == (
            f"UsageError: %gpumem: {line}",
            "",
            [],
            [],
        )
    reply = without_gpu.run(f"%gpumem_auto on -d {named}")
    assert reply.stderr == f"UsageError: %gpumem_auto: {line}"
    assert without_gpu.value("'has_run' in globals(), torch.cuda.is_initialized()") == "(False, False)"


def test_unloading_in_a_kernel(fresh_kernel):
    """After `%unload_ext` a kernel has no hook, no transform and no magic of ours, and cells run as before."""
    count = (
        "[len(found) for found in (get_ipython().events.callbacks['pre_run_cell'],"
        " get_ipython().events.callbacks['post_run_cell'], get_ipython().input_transformers_cleanup,"
        " get_ipython().Completer.custom_matchers, __import__('threading').enumerate(), __import__('sys').meta_path)]"
    )
    before = fresh_kernel.value(count)
    for code in ("%load_ext jupyter_gpumem", *["%reload_ext jupyter_gpumem"] * 5, "%gpumem_auto on", "1"):
        assert fresh_kernel.run(code).status == "ok"
    assert fresh_kernel.run("%unload_ext jupyter_gpumem").status == "ok"
    assert fresh_kernel.value(count) == before
    assert fresh_kernel.run("1").displays == []
    assert fresh_kernel.run("%gpumem").stderr == "UsageError: Line magic function `%gpumem` not found.\n"
