"""Values do not exist, so that a placeholder decides where code decides on one: a prediction says so first."""

from __future__ import annotations

import sys
import warnings

import pytest

torch = pytest.importorskip("torch")
nn = torch.nn

from jupyter_gpumem.prediction import predict  # noqa: E402
from jupyter_gpumem.virtual import decisions, session  # noqa: E402
from jupyter_gpumem.virtual.notes import VirtualValueWarning  # noqa: E402


class Older:
    """What is asked of `sys`, as Python 3.10 answers."""

    version_info = (3, 10)
    _getframe = staticmethod(sys._getframe)


def some():
    return torch.randn(4, device="cuda")


# What decides


def a_tensor():
    for _ in range(3):
        if some().abs().mean() < 1e-3:
            break


def a_name_of_a_tensor():
    done = (some() > 0).all()
    while not done:
        break


def a_number():
    for _ in range(3):
        loss = some().mean()
        if loss.item() < 1e-4:
            break


def a_name():
    best = 1e9
    for _ in range(3):
        value = some().mean().item()
        improved = value < best
        if improved:
            best = value


def a_list():
    history = []
    for _ in range(3):
        history.append(float(some().mean()))
        if min(history) > 3:
            break


def measured():
    with torch.no_grad():
        return some().mean().item()


def what_a_function_returns():
    return [1] if measured() < 0.1 else [2]


def an_object():
    class Stopper:
        stop = False

        def __call__(self, value):
            self.stop = value > 3

    stopper = Stopper()
    stopper(some().sum().item())
    if stopper.stop:
        return


def a_size():
    return torch.zeros(int(some().argmax()), device="cuda")


def a_length():
    return some()[: some().argmax().item()]


def a_copy_on_the_host():
    mask = some().cpu()
    assert not mask.any()


def a_comprehension():
    return [value for value in some().tolist() if value > 0]


def how_many_there_are():
    return 1 if (some() > 0).nonzero().numel() == 4 else 2


def code_of_pytorch():
    """Its step ends where the gradient is zero."""
    layer = nn.Linear(4, 4).cuda()
    optimizer = torch.optim.LBFGS(layer.parameters())

    def closure():
        loss = layer(some()).sum()
        loss.backward()
        return loss

    optimizer.step(closure)


DECIDING = [
    a_tensor,
    a_name_of_a_tensor,
    a_number,
    a_name,
    a_list,
    what_a_function_returns,
    an_object,
    a_size,
    a_length,
    a_copy_on_the_host,
    a_comprehension,
    how_many_there_are,
    code_of_pytorch,
]


# What does not


def logs():
    losses, total, right = [], 0.0, 0
    for number in range(3):
        loss = some().mean()
        losses.append(loss.item())
        total += loss.item()
        right += (some() > 0).sum().item()
        if number % 2 == 0:
            print(f"{total / (number + 1):.3f}", loss, "loss %.2f" % loss.item())  # noqa: UP031 - as programs write it
        if len(losses) > 2 or losses is None:
            losses.clear()
    return losses, total, right


def a_training_step():
    """A step is made unless a gradient is infinite: that is as usual."""
    layer = nn.Linear(4, 4).cuda()
    optimizer, scaler = torch.optim.AdamW(layer.parameters()), torch.amp.GradScaler("cuda")
    with torch.autocast("cuda", torch.float16):
        loss = layer(some()).float().sum()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    norm = nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    print(loss.item(), norm.item())
    return layer.cpu().state_dict()


def a_check_of_arguments():
    return torch.distributions.Normal(some(), some()).sample()


def a_method_that_only_shows():
    class Trainer:
        verbose, step = True, 0

        def log(self, value):
            print(value)

        def run(self):
            self.log(some().mean().item())
            self.last = some().mean().item()
            if self.verbose and self.step == 0:
                self.log(self.last)

    Trainer().run()


def a_module_that_saves():
    torch.save(some().mean().item(), "loss.pt")
    if torch.cuda.is_available():
        return


def what_is_known():
    lengths = torch.tensor([3, 4]).cuda()
    if lengths.max().item() > 3:
        return torch.zeros(lengths.max().item(), device="cuda")
    return None


NOT_DECIDING = [
    logs,
    a_training_step,
    a_check_of_arguments,
    a_method_that_only_shows,
    a_module_that_saves,
    what_is_known,
]


@pytest.mark.parametrize("code", DECIDING, ids=lambda code: code.__name__)
def test_what_decides_is_said_first(code):
    """In the heading of both sheets and above all notes, and in the record."""
    result = predict(code, gpu="T4")
    assert result.decisions
    heading, *lines = str(result).splitlines()
    assert "if decisions fall as assumed" in heading
    assert "Fits, if decisions fall as assumed" in lines
    at = next(number for number, line in enumerate(lines) if line.startswith("  The peak"))
    assert "is that of the way the code went, and another may need much more" in " ".join(lines[at : at + 2])
    assert result.to_dict()["decisions"] == list(result.decisions)


@pytest.mark.parametrize("code", NOT_DECIDING, ids=lambda code: code.__name__)
def test_what_does_not_decide_leaves_it_sure(code):
    """Numbers that are shown or summed up, and what is as usual."""
    result = predict(code, gpu="T4")
    assert not result.decisions
    assert "Fits" in str(result).splitlines()
    assert "if decisions" not in str(result)


@pytest.mark.parametrize("code", [*DECIDING, *NOT_DECIDING], ids=lambda code: code.__name__)
def test_where_only_the_line_is_told(code, monkeypatch):
    """Python 3.10 does not tell which expression of a line a frame is at: then all of its calls count."""
    monkeypatch.setattr(decisions, "sys", Older)
    monkeypatch.setattr(decisions, "_fates", {})
    assert bool(predict(code, gpu="T4").decisions) == (code in DECIDING)


def test_the_line_is_named():
    """That which asks for the value, with what was given for it."""
    line = a_number.__code__.co_firstlineno + 3
    assert predict(a_number, gpu="T4").decisions == (
        f"line {line}: a decision depends on a value that does not exist, taken to be 0.0",
    )


def test_code_whose_source_is_not_to_be_had_may_decide():
    """Nothing can be said for it."""
    names = {"some": some}
    exec("def code():\n    return some().mean().item()", names)
    assert predict(names["code"], gpu="T4").decisions


def test_the_caller_of_a_prediction_decides_nothing():
    """What the function returns goes no further, whatever is done with the result of the prediction."""
    result = predict(measured, gpu="T4")
    if result.decisions:
        pytest.fail(str(result))


def test_a_session_notes_it():
    """Where a virtual GPU is on, its notes tell what decides."""
    gpu = session.start("T4")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", VirtualValueWarning)
            a_number()
            logs()
        assert [note.decides for note in gpu.notes].count(True) == 1
    finally:
        session.stop()
