"""Running the user's code from inside a magic, as `%time` does: last value, own line numbers, own errors."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from IPython.core.displayhook import DisplayHook

from jupyter_gpumem.errors import InvalidValueError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType

    from IPython.core.interactiveshell import InteractiveShell

_ASYNC = re.compile(r"\b(await|async|asynchronous)\b.* outside")


class Prepared(NamedTuple):
    """Code that is ready to run: calling it runs it once and returns its last value.

    Attributes:
        run: does so.
        file: the file name of the code in tracebacks.
        codes: what it was compiled to.
        silent: whether a `;` at the end silences the value: nobody gets it, as at the end of a cell.
    """

    run: Callable[[], Any]
    file: str
    codes: tuple[CodeType, ...]
    silent: bool

    def __call__(self) -> Any:
        """Run the code once."""
        __tracebackhide__ = True
        return self.run()


def prepare(
    shell: InteractiveShell,
    code: str,
    local_ns: dict[str, Any] | None = None,
    *,
    number: int,
    above: int,
    adapt: Callable[[ast.Module], object] | None = None,
    advice: str = "begin a cell with %%gpumem, without -r",
) -> Prepared:
    """Compile code as the shell compiles a cell.

    Args:
        shell: the shell.
        code: what to run.
        local_ns: the names of the caller, beside those of the notebook.
        number: the number of the cell that the code is part of, for tracebacks.
        above: how many lines of that cell precede the code.
        adapt: changes the code before it is compiled.
        advice: what to do where the code awaits, which is not possible here.

    Raises:
        InvalidValueError: the code is not Python; nothing has run then.
    """
    __tracebackhide__ = True
    above += _leading_blank_lines(code)
    source = "\n" * above + shell.transform_cell(code)  # type: ignore[no-untyped-call]
    # Named as a cell, so that a traceback shows the user's own lines.
    name = shell.compile.cache(source, number, raw_code=code)
    value: CodeType | None = None
    try:
        tree = shell.transform_ast(shell.compile.ast_parse(source, name))  # type: ignore[no-untyped-call]
        if adapt is not None:
            adapt(tree)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        body = shell.compile(tree, name, "exec")
        if last is not None:
            value = shell.compile(ast.Expression(last.value), name, "eval")  # type: ignore[arg-type]
    except SyntaxError as error:
        if _ASYNC.search(error.msg):
            raise InvalidValueError(f"code inside a magic cannot await; {advice}") from None
        where = f"line {error.lineno}, " if "\n" in code.strip() else ""
        raise InvalidValueError(f"not Python: {error.msg} ({where}{(error.text or code).strip()!r})") from None
    namespaces = (shell.user_ns,) if local_ns is None else (shell.user_ns, local_ns)

    def run() -> Any:
        __tracebackhide__ = True
        exec(body, *namespaces)  # noqa: S102 - running the user's code is the magic's purpose
        return None if value is None else eval(value, *namespaces)  # noqa: S307

    codes = (body,) if value is None else (body, value)
    silent: bool = DisplayHook.semicolon_at_end_of_expression(source)  # type: ignore[no-untyped-call]
    return Prepared(run, name, codes, silent)


def _leading_blank_lines(code: str) -> int:
    """Return how many lines IPython drops at the beginning."""
    return code[: len(code) - len(code.lstrip())].count("\n")
