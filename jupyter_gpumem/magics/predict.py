"""`%gpumem_predict` and `%%gpumem_predict`: what code would need on a GPU, without running it for real."""

from __future__ import annotations

import ast
import contextlib
from typing import TYPE_CHECKING, Any

from IPython.utils.capture import capture_output

from jupyter_gpumem.errors import InvalidValueError
from jupyter_gpumem.finishing import undivided
from jupyter_gpumem.prediction import Code, forecast, whole_batch

from .gpumem import deliver, lines_above_call
from .running import prepare

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from jupyter_gpumem.records import Record

    from .session import Session

_BATCH = "_gpumem_batch"


def line(session: Session, options: argparse.Namespace, local_ns: dict[str, Any] | None) -> Record | None:
    """Run `%gpumem_predict`: one statement."""
    __tracebackhide__ = True
    if not options.statement:
        raise InvalidValueError("there is no code: write %gpumem_predict STATEMENT, or %%gpumem_predict above a cell")
    return _predicted(session, options, options.statement, local_ns, above=lines_above_call(session))


def cell(session: Session, options: argparse.Namespace, body: str) -> None:
    """Run `%%gpumem_predict`."""
    __tracebackhide__ = True
    if options.statement:
        raise InvalidValueError(
            f"the code of a cell begins on the second line, got {options.statement!r} on the first; "
            "for one statement write %gpumem_predict with one percent sign"
        )
    if options.output:
        raise InvalidValueError("a cell cannot return the result (-o); store it in a variable with -v NAME")
    _predicted(session, options, body, None, above=session.cells.lines_above(body))


def _predicted(
    session: Session, options: argparse.Namespace, code: str, local_ns: dict[str, Any] | None, *, above: int
) -> Record | None:
    __tracebackhide__ = True
    shell = session.shell
    namespace: dict[str, Any] = shell.user_ns
    batch = _Batch(options.batch, namespace) if options.batch else None
    prepared = prepare(
        shell,
        code,
        local_ns,
        number=session.cells.number(),
        above=above,
        adapt=None if batch is None else batch.adapt,
        advice="put what awaits into another cell",
    )

    def run(size: int | None) -> object:
        __tracebackhide__ = True
        if size is not None:
            namespace[options.batch] = namespace[_BATCH] = size
        return prepared()

    lines = ["", *([""] * above), *code.splitlines()]
    reaches = [namespace] if local_ns is None else [namespace, local_ns]
    auto, free = session.cells.auto, session.errors.free
    try:
        result = forecast(
            Code(
                run,
                prepared.file,
                reaches,
                lambda number: lines[number] if number < len(lines) else "",
                batch=None if batch is None else (options.batch, batch.value()),
                codes=prepared.codes,
                quietly=_captured,
            ),
            options.gpu,
            options.runs,
        )
    finally:
        session.cells.auto = auto
        if session.errors.free != free:
            session.errors.free = free
    if options.quiet and result.not_undone:  # what is different now is to be known, however little is to be shown
        session.show_text(f"Not undone: {'; '.join(result.not_undone)}.")
    return deliver(session, options, result)


class _Batch:
    """The batch variable: one of the notebook, or one that the code itself sets to a number."""

    def __init__(self, name: str, namespace: dict[str, Any]) -> None:
        self._name = name
        self._given = namespace.get(name)
        self._set: int | None = None

    def adapt(self, tree: ast.Module) -> None:
        """Let the code take other values where it sets the variable.

        Raises:
            InvalidValueError: it does so in a way that cannot be replaced.
        """
        for statement in tree.body:
            if not isinstance(statement, ast.Assign) or not any(self._is_it(target) for target in statement.targets):
                continue
            if not isinstance(statement.value, ast.Constant):
                raise InvalidValueError(
                    f"the code computes {self._name} itself ({ast.unparse(statement)[:60]!r}), so that no other value "
                    "can be tried; set it to a number, or in a cell before"
                )
            self._set = whole_batch(self._name, statement.value.value)
            statement.value = ast.copy_location(ast.Name(_BATCH, ast.Load()), statement.value)

    def value(self) -> int:
        """Return the value that the code has for it.

        Raises:
            InvalidValueError: there is none, or it is no number.
        """
        if self._set is not None:
            return self._set
        if self._given is None:
            raise InvalidValueError(f"there is no variable {self._name}; --batch names one that holds the batch size")
        return whole_batch(self._name, self._given)

    def _is_it(self, target: ast.expr) -> bool:
        return isinstance(target, ast.Name) and target.id == self._name


@contextlib.contextmanager
def _captured() -> Iterator[None]:
    """Show what the code prints and displays only if it fails: the numbers in it would be placeholders."""
    __tracebackhide__ = True
    captured: Any = None
    try:
        with undivided(capture_output()) as captured:
            yield
    except BaseException:
        if captured is not None:
            captured.show()
        raise
