"""The options of the magics: parsed, explained by `--help` and `?`, and completed, all from one definition."""

from __future__ import annotations

import argparse
import functools
import os
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from IPython.core.error import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_THE_SHELLS = {"In", "Out", "get_ipython", "exit", "quit", "open"}
_TOKEN = re.compile(r"\s*(\S+)")
_NEGATIVE = re.compile(r"-\.?\d")


class _Parser(argparse.ArgumentParser):
    """A parser that refuses in one line instead of ending the process."""

    def error(self, message: str) -> NoReturn:
        """Refuse.

        Raises:
            UsageError: always.
        """
        raise UsageError(f"{self.prog}: {message}; {self.prog} --help lists what there is")


class Options:
    """The options of one magic. The parser is built when the magic is first used: loading must take milliseconds.

    Args:
        name: the magic's name, without percent signs.
        summary: what it does: the first sentence stands alone.
        usage: the usage lines.
        statement: whether the rest of the line, from the first word that is no option, belongs to the user verbatim.
        examples: lines for the end of the help.
    """

    def __init__(
        self, name: str, summary: str, *, usage: Iterable[str], statement: bool = False, examples: str = ""
    ) -> None:
        self.name = name
        self.takes_statement = statement
        self._summary, self._examples = summary, examples
        self._usage = "\n       ".join(usage).replace("%", "%%")
        self._arguments: list[tuple[tuple[str, ...], Callable[[str], Iterable[str]] | None, dict[str, Any]]] = []
        self._completers: dict[str, Callable[[str], Iterable[str]]] = {}
        self.parse = functools.lru_cache(maxsize=64)(self._parse)

    def option(self, *flags: str, complete: Callable[[str], Iterable[str]] | None = None, **kwargs: Any) -> Options:
        """Add an option or argument; `complete` lists the values that Tab offers for the beginning of one."""
        self._arguments.append((flags, complete, kwargs))
        return self

    def result(self, *, stored: bool = False, cell: bool = False) -> Options:
        """Add what can be done with a result instead of showing it: `-q`, `-o`, and in cells or on demand `-v`."""
        line_only = " (line only)" if cell else ""
        self.option("-q", "--quiet", action="store_true", help="show no report")
        self.option(
            "-o", "--output", action="store_true", help=f"return the result object instead of showing it{line_only}"
        )
        if stored or cell:
            self.option(
                "-v",
                "--variable",
                metavar="NAME",
                type=variable,
                help="store the result object in this variable",
            )
        return self

    def finish(self) -> Options:
        """Add `--help`, last, and return the finished options."""
        return self.option("--help", action="store_true", help="show this help")

    def format_help(self) -> str:
        """Return the help, for `--help` and `?`."""
        return self._parser.format_help()

    @functools.cached_property
    def _parser(self) -> _Parser:
        parser = _Parser(
            prog=f"%{self.name}",
            add_help=False,
            allow_abbrev=False,
            formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, max_help_position=26, width=88),
            usage=self._usage,
            description=self._summary,
            epilog=self._examples or None,
        )
        parser._negative_number_matcher = _NEGATIVE  # argparse would take -5GiB for an option; it is a bad size
        for flags, complete, kwargs in self._arguments:
            action = parser.add_argument(*flags, **kwargs)
            if complete is not None:
                self._completers[action.dest] = complete
        return parser

    @property
    def _actions(self) -> list[argparse.Action]:
        return self._parser._actions

    def _parse(self, line: str) -> argparse.Namespace:
        """Return the options of a magic's line; equal lines give the same object. `statement` is the user's rest.

        Raises:
            UsageError: an option or value is not understood.
        """
        words, statement = self._split(line)
        if "--help" in words:
            return argparse.Namespace(help=True)
        options = self._parser.parse_args(words)
        options.statement = statement
        return options

    def _split(self, line: str) -> tuple[list[str], str]:
        if not self.takes_statement:
            try:
                return shlex.split(line.rstrip().removesuffix(";")), ""  # which silences a value elsewhere
            except ValueError as error:
                self._parser.error(f"cannot read {line.strip()!r} ({error})")
        words: list[str] = []
        end = 0
        while match := _TOKEN.match(line, end):
            word = match[1]
            if word == "--":
                return words, line[match.end() :].strip()
            if not (words and self._wants_value(words[-1])) and not word.startswith("-"):
                break
            words.append(word)
            end = match.end()
        rest = line[end:].strip()
        return words, "" if rest.startswith("#") else rest

    def _wants_value(self, word: str) -> bool:
        """Whether an option leaves its value to the next word, as `-d`, `--device` and, in a group, `-qd` do."""
        flags = {flag for action in self._actions if action.nargs != 0 for flag in action.option_strings}
        if word.startswith("--") or not word.startswith("-"):
            return word in flags
        return next((end for end, letter in enumerate(word[1:], 2) if f"-{letter}" in flags), None) == len(word)

    def complete(self, line: str, word: str) -> list[str]:
        """Return what Tab offers for `word`, the unfinished last word of a magic's `line`; nothing in a statement."""
        before = line.split()
        if before and word:
            before = before[:-1]
        if before and self._wants_value(before[-1]) and (action := self._flag(before[-1])) is not None:
            return self._values(action, word)
        if self.takes_statement and any(w == "--" or not w.startswith("-") for w in self._without_values(before)):
            return []
        if word.startswith("-"):
            return sorted(flag for a in self._actions for flag in a.option_strings if flag.startswith(word))
        arguments = [action for action in self._actions if not action.option_strings]
        given = sum(not w.startswith("-") for w in self._without_values(before))
        if arguments and arguments[-1].nargs == "*":
            given = min(given, len(arguments) - 1)
        found = self._values(arguments[given], word) if given < len(arguments) else []
        return found if found or word else sorted(a.option_strings[-1] for a in self._actions if a.option_strings)

    def _without_values(self, words: list[str]) -> list[str]:
        return [word for number, word in enumerate(words) if not number or not self._wants_value(words[number - 1])]

    def _flag(self, word: str) -> argparse.Action | None:
        group = not word.startswith("--") and len(word) > 2
        flag = f"-{word[-1]}" if group else word
        return next((action for action in self._actions if flag in action.option_strings), None)

    def _values(self, action: argparse.Action, word: str) -> list[str]:
        complete = self._completers.get(action.dest)
        values = complete(word) if complete else (action.choices or ())
        return [str(value) for value in values if str(value).startswith(word)]


def positive(text: str) -> int:
    """Read a whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"not a number of at least 1: {text!r}")
    return int(text)


def index(text: str) -> int:
    """Read a device's index."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"not a device's index: {text!r}")
    return int(text)


def cores() -> int:
    """Return how many processes can work at once."""
    count = getattr(os, "process_cpu_count", os.cpu_count)()  # the first is of Python 3.13
    return count or 1


def file_names(word: str) -> Iterable[str]:  # noqa: ARG001 - all completers take the word
    """Return the recordings of the current folder, for completion."""
    return sorted(path.name for path in Path().glob("*.pickle*"))


def file(text: str) -> str:
    """Read the name of a file: no shell has seen its `~`."""
    return os.path.expanduser(text)


def variable(text: str) -> str:
    """Read the name of a variable."""
    import keyword

    if not text.isidentifier() or keyword.iskeyword(text):
        raise argparse.ArgumentTypeError(f"not a variable name: {text!r}")
    if text in _THE_SHELLS or text.startswith("__"):
        raise argparse.ArgumentTypeError(f"{text!r} belongs to the notebook; choose another name")
    return text


def size(text: str) -> int:
    """Read a size such as 512MiB."""
    from jupyter_gpumem.errors import InvalidValueError
    from jupyter_gpumem.units import parse_bytes

    try:
        return parse_bytes(text)
    except InvalidValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def ratio(text: str) -> float:
    """Read a number from 0 to 1."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number <= 1:
        raise argparse.ArgumentTypeError(f"not a number from 0 to 1: {text!r}")
    return number


def settings(word: str) -> Iterable[str]:
    """Return what an allocator settings string can go on with: a key, or a value of the key that was begun."""
    from jupyter_gpumem.allocator.keys import KEYS, is_known_to
    from jupyter_gpumem.devices import versions

    inside = word.count("[") > word.count("]")  # of a list, whose commas begin no setting
    begin = word.rfind(",", 0, word.rfind("[") if inside else None) + 1
    head, (key, colon, _) = word[:begin], word[begin:].partition(":")
    if not colon:
        version = versions().get("torch", "")
        return [f"{head}{name}:" for name in KEYS if is_known_to(name, version)]
    return [f"{head}{key}:{value}" for value in KEYS[key].examples] if key in KEYS else []
