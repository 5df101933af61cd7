"""What code would need on a GPU, and where it would fit: it runs on a virtual one, and nothing of it is kept."""

from __future__ import annotations

import contextlib
import functools
import inspect
import io
import linecache
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from . import devices
from .allocator.environment import starting_settings
from .arguments import check_function, check_text, check_whole, shown, whole
from .batches import Search
from .control.aside import aside
from .errors import InvalidValueError, UnavailableError
from .finishing import undivided
from .records import BatchSearch, Device, Fit, PredictedUse, Prediction
from .virtual.turns import turn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import CodeType

    from .virtual.cards import Card
    from .virtual.trial import Run

DEFAULT_GPU = "A100-80GB"
MOST_RUNS = 16
"""How often code runs at most when the largest batch is looked for."""


@dataclass(frozen=True)
class Code:
    """What is to be run.

    Attributes:
        run: runs it once, with a value for the batch variable, or with `None`.
        file: its file name, as tracebacks show it.
        function: the code of the function, if it is one; lines are then those of itself, not of its helpers.
        reaches: the dicts whose names it may bind, and other objects that it can reach.
        line: returns the text of a line.
        codes: what it was compiled to, if it is no function.
        batch: the batch variable and its value.
        most: the largest value that may be tried; `None` for any.
        quietly: a context in which nothing that is printed is shown, unless there is an error.
    """

    run: Callable[[int | None], object]
    file: str
    reaches: Sequence[Any]
    line: Callable[[int], str]
    function: CodeType | None = None
    batch: tuple[str, int] | None = None
    most: int | None = None
    codes: Sequence[CodeType] = ()
    quietly: Callable[[], contextlib.AbstractContextManager[object]] = field(default=lambda: printed_on_error())  # noqa: PLW0108


def predict(
    function: Callable[..., Any],
    *args: Any,
    gpu: str | Iterable[str] | None = None,
    batch: str | None = None,
    runs: int = MOST_RUNS,
    **kwargs: Any,
) -> Prediction:
    """Say what a call would need on a GPU and on which cards it would fit, without a GPU.

    The function runs on a virtual GPU, as if its memory had no end; nothing is computed, and what it changes is put
    back. What it prints is shown only if it fails.

    Args:
        function: what to call.
        *args: its arguments.
        gpu: the card, or several: `"T4"`, `"24GiB"`, `["A100-40GB", "2xA100-40GB"]`; by default all that are known,
            after one run as on an A100-80GB.
        batch: the name of an integer argument, whose largest value that fits is to be found.
        runs: how often the function may be called for that.
        **kwargs: its arguments by name.

    Raises:
        InvalidValueError: a card is not known, the batch argument is none, or what is given is of another kind.
        UnavailableError: PyTorch cannot have a virtual GPU.
    """
    __tracebackhide__ = True
    runs = _checked(function, gpu, batch, runs)
    plain = plain_function(function)
    code = getattr(plain, "__code__", None)
    file = code.co_filename if code is not None else ""
    call, value = functools.partial(function, *args, **kwargs), None
    if batch is not None:
        bound = _bound(function, batch, args, kwargs)
        value = (batch, whole_batch(batch, bound.arguments[batch]))

    def run(size: int | None) -> object:
        __tracebackhide__ = True
        if batch is None or size is None:
            return call()
        bound.arguments[batch] = size
        return function(*bound.args, **bound.kwargs)

    namespace = getattr(plain, "__globals__", None)
    wanted = [gpu] if isinstance(gpu, str) else None if gpu is None else list(gpu)
    return forecast(
        Code(
            run,
            file,
            [{} if namespace is None else namespace, function, plain, args, tuple(kwargs.values())],
            functools.partial(linecache.getline, file),
            code,
            value,
        ),
        wanted,
        runs,
    )


def forecast(code: Code, gpus: Sequence[str] | None, runs: int = MOST_RUNS) -> Prediction:
    """Run code on virtual cards and say what it needs; `predict` is this for functions.

    One at a time: another thread's waits until this one is done.

    Args:
        code: what to run.
        gpus: the cards, or the machines of several; `None` for all that are known.
        runs: how often the code may run to find the largest batch.

    Raises:
        InvalidValueError: a card is not known.
        UnavailableError: PyTorch cannot have a virtual GPU, the CUDA context is lost, or the prediction that is running
            has started this thread.
    """
    __tracebackhide__ = True
    with turn():
        return _forecast(code, gpus, runs)


def _forecast(code: Code, gpus: Sequence[str] | None, runs: int) -> Prediction:
    __tracebackhide__ = True
    devices.check_context()
    from .virtual.cards import CARDS, parse_cards

    machines = [parse_cards(gpu) for gpu in gpus] if gpus else [(card,) for card in CARDS]
    if not devices.torch_installed():
        raise UnavailableError("a prediction needs PyTorch, which is not installed here; install torch and try again")
    began = time.monotonic()
    fixed = session_cards() or (None if gpus else parse_cards(DEFAULT_GPU))
    ways: dict[tuple[Card, ...], list[tuple[Card, ...]]] = {}
    for machine in machines:
        ways.setdefault(fixed or machine, []).append(machine)
    fits: dict[tuple[Card, ...], Fit] = {}
    first: Run | None = None
    search: BatchSearch | None = None
    for cards, rows in ways.items():
        run, found, search = forecast_as_on(cards, rows, code, runs)
        first = first or run
        fits |= found
    assert first is not None  # noqa: S101 - there is always a machine
    table = tuple(fits[machine] for machine in dict.fromkeys(machines))
    return Prediction(
        _uses(first, code),
        table if gpus else tuple(sorted(table, key=lambda fit: fit.usable)),
        time.monotonic() - began,
        search,
        None if not gpus or any(fit.fits for fit in table) else _smallest(first, CARDS),
        _placed(first.placeholders, code),
        first.not_undone,
        first.unsaved,
        first.unwatched,
        _placed(first.decisions, code),
    )


def printed_on_error() -> contextlib.AbstractContextManager[object]:
    """Return a context that shows what is printed inside only if there is an error."""

    @contextlib.contextmanager
    def context() -> Iterator[None]:
        out, err = io.StringIO(), io.StringIO()
        try:
            with undivided(contextlib.redirect_stdout(out)), undivided(contextlib.redirect_stderr(err)):
                yield
        except BaseException:
            sys.stdout.write(out.getvalue())
            sys.stderr.write(err.getvalue())
            raise

    return context()


def forecast_as_on(
    cards: tuple[Card, ...], rows: Sequence[tuple[Card, ...]], code: Code, limit: int
) -> tuple[Run, dict[tuple[Card, ...], Fit], BatchSearch | None]:
    """Run code as on these cards, and say of each machine whether it fits there."""
    __tracebackhide__ = True
    from .virtual.trial import Trials
    from .virtual.walk import names_in

    reaches, name = code.reaches, code.function or code.file
    names = frozenset().union(*map(names_in, code.codes))
    with Trials(cards, reaches, name, starting_settings(), aside, names).open() as trials:

        def sample(batch: int | None) -> Run:
            __tracebackhide__ = True
            with code.quietly():
                return trials.run(functools.partial(code.run, batch))

        if code.batch is None:
            run = sample(None)
            return run, {machine: _fit(run, machine) for machine in rows}, None
        name, value = code.batch
        search = Search(sample, lambda run: max(run.reserved), value, limit, code.most)
        run = search.samples[value]
        fits = {}
        for machine in rows:
            fit = _fit(run, machine)
            largest = search.largest(functools.partial(_goes, machine), fit.usable)
            fits[machine] = replace(
                fit,
                largest_batch=largest.value,
                largest_is_exact=largest.exact,
                largest_estimate=largest.estimate,
            )
        return run, fits, BatchSearch(name, value, search.trials, limit, search.stopped)


# What a run says


def _placed(texts: tuple[str, ...], code: Code) -> tuple[str, ...]:
    return tuple(text.replace(f"{code.file}:", "line ", 1) if code.file else text for text in texts)


def _uses(run: Run, code: Code) -> tuple[PredictedUse, ...]:
    return tuple(_use(run, index, code) for index, tape in enumerate(run.tapes) if tape.events or len(run.tapes) == 1)


def _use(run: Run, index: int, code: Code) -> PredictedUse:
    tape, card = run.tapes[index], run.cards[index]
    peak, number = tape.peak()
    parts = tape.parts_at(number)
    line = tape.lines[number] or None
    return PredictedUse(
        Device("cuda", index, card.label, card.total, virtual=True),
        run.start[index],
        peak,
        run.reserved[index],
        tuple(sorted(((name, size) for name, size in parts.items() if size), key=lambda part: -part[1])),
        line,
        (code.line(line).strip() or None) if line is not None else None,
        tape.phases[number] or None,
    )


def _fit(run: Run, machine: tuple[Card, ...]) -> Fit:
    """Return whether what ran fits on a machine: the verdict on its fullest card."""
    name = _name(machine)
    ran = run.cards == machine
    used = [index for index, tape in enumerate(run.tapes) if tape.events]
    if used and used[-1] >= len(machine):
        card = machine[-1]
        return Fit(name, card.total, card.context, max(run.reserved), fits=False, retries=0, line=None, ran=False)
    fits = [_fit_on(run, index, machine[index], name, ran=ran) for index in used or [0]]
    return min(fits, key=lambda fit: (fit.fits, fit.left))


def _fit_on(run: Run, index: int, card: Card, name: str, *, ran: bool) -> Fit:
    from .virtual.trial import replay, replay_without_end

    tape, there = run.tapes[index], run.cards[index]
    alike = (card.cublas, card.cublaslt) == (there.cublas, there.cublaslt)
    reserved = run.reserved[index] if alike else replay_without_end(tape, card, run.settings).reserved
    if reserved <= card.total - card.context:
        return Fit(name, card.total, card.context, reserved, fits=True, retries=0, line=None, ran=ran)
    found = replay(tape, card, run.settings)
    failed = found.failed
    line = None if failed is None else tape.lines[failed] or None
    return Fit(name, card.total, card.context, reserved, failed is None, found.retries, line, ran)


def _goes(machine: tuple[Card, ...], run: Run) -> bool:
    return _fit(run, machine).fits


def _smallest(run: Run, cards: Sequence[Card]) -> str | None:
    """Return the name of the smallest card on which what ran on one card fits."""
    if sum(bool(tape.events) for tape in run.tapes) != 1:
        return None
    for card in sorted(cards, key=lambda card: card.total - card.context):
        if _goes((card,), run):
            return card.name
    return None


def _name(machine: tuple[Card, ...]) -> str:
    names: dict[str, int] = {}
    for card in machine:
        names[card.name] = names.get(card.name, 0) + 1
    return " + ".join(name if count == 1 else f"{count}x{name}" for name, count in names.items())


def session_cards() -> tuple[Card, ...] | None:
    """Return the cards of the session's virtual GPU, without importing anything for it."""
    virtual = sys.modules.get("jupyter_gpumem.virtual.session")
    gpu = virtual.active() if virtual is not None else None
    return None if gpu is None else gpu.cards


# Functions


def plain_function(function: Any) -> Any:
    """Return the function inside partial objects, decorators and bound methods, or what is called on an object."""
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function)
    if not hasattr(function, "__code__") and not hasattr(function, "__func__"):
        kind = type(function)
        function = getattr(kind, "forward", None) or kind.__call__
    return getattr(function, "__func__", function)


def _checked(function: object, gpu: object, batch: object, runs: object) -> int:
    """Refuse what cannot be predicted with; returns `runs` as a number."""
    check_function("function", function, "the other arguments")
    if not (gpu is None or isinstance(gpu, Iterable)):
        raise InvalidValueError(f"gpu must be a card such as 'T4', or a list of some, got {shown(gpu)}")
    if batch is not None:
        check_text("batch", batch, "batch_size")
    return check_whole("runs", runs)


def _bound(function: Any, batch: str, args: Any, kwargs: Any) -> inspect.BoundArguments:
    bound = inspect.signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    if batch not in bound.arguments:
        raise InvalidValueError(
            f"{batch!r} is no argument of {getattr(function, '__name__', function)}; it has "
            f"{', '.join(bound.arguments) or 'none'}"
        )
    return bound


def whole_batch(name: str, value: object) -> int:
    """Return the value of a batch variable.

    Raises:
        InvalidValueError: it is no whole number of at least 1.
    """
    number = whole(value)
    if number is None or number < 1:
        raise InvalidValueError(f"the batch variable {name} must be a whole number of at least 1, got {value!r:.60}")
    return number
