"""Predictions in sessions with more objects than can be remembered: what matters comes first, the rest is named."""

from __future__ import annotations

import sys

import pytest

torch = pytest.importorskip("torch")

from jupyter_gpumem.prediction import Code, forecast, predict  # noqa: E402
from jupyter_gpumem.report import mimebundle  # noqa: E402
from jupyter_gpumem.virtual import containers, undo  # noqa: E402


@pytest.fixture(autouse=True)
def few(monkeypatch):
    """So few can be remembered that a test's data set is too many; other tests' modules are not in the session."""
    monkeypatch.setattr(containers, "MOST", 20_000)
    monkeypatch.setattr(undo, "modules_of_the_user", lambda: [sys.modules[__name__]])


def cell(text, namespace):
    """Predict code as that of a cell."""
    body = compile(text, "<cell>", "exec")
    return forecast(
        Code(lambda _: exec(body, namespace), "<cell>", [namespace], lambda _: "", codes=[body]),
        ["T4"],
    )


def told(result):
    """Return a report's text, in one line."""
    return " ".join(mimebundle(result)["text/plain"].split())


def rows():
    return [{"text": "a", "label": number} for number in range(30_000)]


def session():
    """A session's variables, of which the data set is the first and the others are in it deeply."""
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.1)
    return {
        "__name__": "__main__", "rows": rows(), "model": model, "optimizer": optimizer, "schedule": schedule,
        "meters": {"loss": []}, "logs": {"a": {"b": [{"c": []}]}},
    }  # fmt: skip


def state(session):
    optimizer = session["optimizer"]
    lr, epoch = optimizer.param_groups[0]["lr"], session["schedule"].last_epoch
    return lr, epoch, len(optimizer.state), str(session["meters"]), str(session["logs"]), vars(session["model"]).keys()


TRAIN = """
model.cuda()(torch.ones(2, 4, device="cuda")).sum().backward(); optimizer.step(); schedule.step()
meters["loss"].append(3); logs["a"]["b"][0]["c"].append(1); model.extra = 1
"""


def test_a_data_set_does_not_push_out_what_matters():
    """A model, an optimizer, a schedule and nested dicts are as before, whatever is beside them."""
    variables = {**session(), "torch": torch}
    before = state(variables)
    for _ in range(2):
        result = cell(TRAIN, variables)
        assert state(variables) == before
        assert result.not_undone == ()
        assert result.unwatched == ("rows",)
    assert "Too large to be watched to the end: rows; the code names none of it." in told(result)


def test_what_code_names_comes_before_all_else(monkeypatch):
    """Also when it is as large as what it does not name."""
    monkeypatch.setattr(containers, "MOST", 31_000)
    variables = {"__name__": "__main__", "others": rows(), "rows": rows()}
    result = cell("rows[29_999]['seen'] = 1", variables)
    assert (result.not_undone, result.unwatched) == ((), ("others",))
    assert variables["rows"][29_999] == {"text": "a", "label": 29_999}


@pytest.mark.parametrize("text", ["rows[-1]['seen'] = 1", "touch()", "eval('rows')[-1].clear()", "(lambda: rows)()"])
def test_a_variable_that_code_names_and_that_is_too_large_is_named(text):
    """By itself, in a function that it calls, or in a text."""
    variables = {"__name__": "__main__", "rows": rows(), "others": rows()}
    exec("def touch(): rows[-1]['seen'] = 1", variables)
    result = cell(text, variables)
    [note] = result.not_undone
    assert note.startswith("what the code may have changed inside rows: there are more than 20,000 lists, dicts and")
    assert result.unwatched == ("others",)
    assert f"Not undone: {note[:40]}" in told(result)


def test_a_variable_that_only_holds_plain_rows_is_not_named():
    """Of numbers, texts and tuples of these, however many, nothing can be changed but the list itself."""
    variables = {"__name__": "__main__", "rows": rows()[:10], "plain": [("a", 1)] * 9 + list(range(30_000))}
    result = cell("plain.append(1); plain[0] = 2", variables)
    assert (result.not_undone, result.unwatched) == ((), ())
    assert variables["plain"] == [("a", 1)] * 9 + list(range(30_000))


def test_arguments_and_closures_of_a_function_come_first():
    """As the names of a cell do; what is too large is called by the name that it has there."""
    data, meters, given = rows(), {"loss": []}, {"a": [1]}

    def code(given):
        meters["loss"].append(3)
        given["a"].append(2)
        data[0]["seen"] = 1

    result = predict(code, given, gpu="T4")
    assert (meters, given) == ({"loss": []}, {"a": [1]})
    assert [note.partition(":")[0] for note in result.not_undone] == ["what the code may have changed inside data"]


def test_state_of_many_parameters_is_remembered_beyond_the_limit(monkeypatch):
    """A model and an optimizer are, whatever their size."""
    monkeypatch.setattr(containers, "MOST", 100)
    model = torch.nn.ParameterList(torch.nn.Parameter(torch.ones(1)) for _ in range(300))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)
    sum(model).backward()
    optimizer.step()
    before = {key: dict(one) for key, one in optimizer.state.items()}

    def code():
        for one in optimizer.state.values():
            one["momentum_buffer"] = None
            one["more"] = 1

    predict(code, gpu="T4")
    assert {key: dict(one) for key, one in optimizer.state.items()} == before
