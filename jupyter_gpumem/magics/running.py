"""Running the user's code from inside a magic, as `%time` does: last value, own line numbers, own errors."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from jupyter_gpumem.errors import InvalidValueError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType

    from IPython.core.interactiveshell import InteractiveShell


def prepare(shell: InteractiveShell, code: str, local_ns: dict[str, Any] | None = None) -> Callable[[], Any]:
    """Compile code as the shell compiles a cell; the returned function runs it once and returns its last value.

    Raises:
        InvalidValueError: the code is not Python; nothing has run then.
    """
    __tracebackhide__ = True
    source = shell.transform_cell(code)  # type: ignore[no-untyped-call]
    # Named as a cell, so that a traceback shows the user's own lines.
    name = shell.compile.cache(source, shell.execution_count, raw_code=code)
    try:
        tree = shell.transform_ast(shell.compile.ast_parse(source, name))  # type: ignore[no-untyped-call]
    except SyntaxError as error:
        where = f"line {error.lineno}, " if "\n" in code.strip() else ""
        raise InvalidValueError(f"not Python: {error.msg} ({where}{(error.text or code).strip()!r})") from None
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    body = shell.compile(tree, name, "exec")
    value: CodeType | None = None
    if last is not None:
        value = shell.compile(ast.Expression(last.value), name, "eval")  # type: ignore[arg-type]
    namespaces = (shell.user_ns,) if local_ns is None else (shell.user_ns, local_ns)

    def run() -> Any:
        __tracebackhide__ = True
        exec(body, *namespaces)  # noqa: S102 - running the user's code is the magic's purpose
        return None if value is None else eval(value, *namespaces)  # noqa: S307

    return run
