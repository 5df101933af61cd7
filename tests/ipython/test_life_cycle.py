"""Loading, reloading and unloading the extension: nothing is doubled, nothing stays."""

from __future__ import annotations

import sys
import threading

from jupyter_gpumem.ledger import LEDGER

MiB = 2**20


def everything(shell) -> dict:
    """Return all of a shell and its process that an extension could have added to."""
    return {
        "hooks": {event: list(functions) for event, functions in shell.events.callbacks.items()},
        "cleanup transforms": list(shell.input_transformers_cleanup),
        "later transforms": list(shell.input_transformers_post),
        "syntax tree transforms": list(shell.ast_transformers),
        "magics": {kind: set(functions) for kind, functions in shell.magics_manager.magics.items()},
        "completers": {name: dict(one.strs) for name, one in shell.strdispatchers.items()},
        "completion patterns": {name: dict(one.regexs) for name, one in shell.strdispatchers.items()},
        "matchers": list(shell.Completer.matchers),
        "error handlers": shell.custom_exceptions,
        "names": {name for name in shell.user_ns if not name.startswith("_")},
        "import hooks": list(sys.meta_path),
        "threads": threading.enumerate(),
        "display hook": (sys.displayhook, shell.display_pub, shell.displayhook),
        "error hook": sys.excepthook,
    }


def sizes(found: dict) -> dict:
    """Return how many things of each kind there are."""
    count = {kind: len(items) for kind, items in found.items() if hasattr(items, "__len__")}
    return count | {event: len(functions) for event, functions in found["hooks"].items()}


def test_unloading_leaves_nothing(bare, fake):
    """After load, five reloads, use and unload, shell and process are what they were."""
    before = everything(bare.shell)
    bare.shell.run_cell("%load_ext jupyter_gpumem")
    loaded = everything(bare.shell)
    assert loaded != before
    for _ in range(5):
        bare.shell.run_cell("%reload_ext jupyter_gpumem")
    reloaded = everything(bare.shell)
    assert sizes(reloaded) == sizes(loaded)
    bare.shell.run_cell("%gpumem_auto on")
    bare.shell.run_cell("%%gpumem -q\npass")
    bare.shell.run_cell("%unload_ext jupyter_gpumem")
    assert everything(bare.shell) == before
    assert not fake.watched


def test_unloading_inside_a_measured_cell(cells, fake):
    """A cell that unloads the extension it is measured by ends as any cell does, and nothing stays open."""
    outcome = cells("%%gpumem\nx = fake.allocate(MiB)\n%unload_ext jupyter_gpumem\n'last'")
    assert (outcome.value, outcome.error, outcome.stderr) == ("last", None, "")
    assert (LEDGER.open_intervals, LEDGER.watching) == (0, False)
    assert not fake.watched


def test_reloading_inside_a_measured_cell(cells):
    """A cell that reloads the extension leaves it loaded and working."""
    outcome = cells("%%gpumem\n%reload_ext jupyter_gpumem\n'last'")
    assert (outcome.value, outcome.error, outcome.stderr) == ("last", None, "")
    assert LEDGER.open_intervals == 0
    assert len(cells("%%gpumem\n1").displays) == 1


def test_unloading_gives_the_bindings_back(cells, fake):
    """What the ledger watches for the user's sake it gives back at `%unload_ext`."""
    fake.free(fake.allocate(4 * MiB))
    cells("%%gpumem\nx = fake.allocate(MiB)")
    assert fake.watched  # the user's maximum, 4 MiB, is above the counter's
    assert fake.user_peak() == 4 * MiB
    cells("%unload_ext jupyter_gpumem")
    assert not fake.watched


def test_loading_prints_nothing(bare):
    """`%load_ext`, `%reload_ext` and `%unload_ext` are silent."""
    for code in ("%load_ext jupyter_gpumem", "%reload_ext jupyter_gpumem", "%unload_ext jupyter_gpumem"):
        outcome = bare(code)
        assert (outcome.error, outcome.stdout, outcome.stderr, outcome.displays) == (None, "", "", [])


def test_magics_are_gone_after_unloading(cells):
    """After `%unload_ext` the names are free."""
    cells("%unload_ext jupyter_gpumem")
    assert cells("%gpumem").stderr == "UsageError: Line magic function `%gpumem` not found.\n"
    assert cells("%%gpumem\n1").stderr == "UsageError: Cell magic `%%gpumem` not found.\n"


def test_magics_are_listed(cells):
    """`%lsmagic` lists the magics with those of IPython."""
    magics = cells.shell.magics_manager.lsmagic()
    assert {"gpumem", "gpumem_auto"} <= set(magics["line"])
    assert "gpumem" in magics["cell"]
    assert "gpumem_auto" not in magics["cell"]


def test_unloading_goes_through_all_its_steps(cells, fake, monkeypatch):
    """Whatever one of them raises: everything else is taken away, the error is shown, and it can be loaded again."""
    from jupyter_gpumem.control.monitoring import monitor
    from jupyter_gpumem.control.reservation import RESERVATIONS

    def fail():
        raise LookupError("of a bug")

    fake.free(fake.allocate(4 * MiB))
    cells("%%gpumem\nx = fake.allocate(MiB)")
    watch = monitor(3600).start()
    with monkeypatch.context() as failing:
        failing.setattr(RESERVATIONS, "close", fail)
        failed = cells("%unload_ext jupyter_gpumem")
    assert isinstance(failed.error, LookupError)
    assert not watch.running
    assert not fake.watched
    assert not cells.shell.find_line_magic("gpumem")
    assert cells("%load_ext jupyter_gpumem").stdout == ""
    assert len(cells("%%gpumem\n1").displays) == 1
