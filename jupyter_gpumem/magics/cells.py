"""Measuring whole cells while IPython runs them natively, as it would without us.

A cell whose first line is `%%gpumem` loses that line in an input transform and is measured by the hooks around every
cell: last value, `;`, `await`, error status, line numbers, history and `%debug` stay IPython's own. The transform may
run any number of times for one cell, so it only decides and never acts.

Inside a running cell (`%%capture`, `%%time`) the line is left alone, and the registered cell magic does the measuring:
there no hook is sure to follow.
"""

from __future__ import annotations

import re
import sys
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

from IPython.core.error import UsageError
from IPython.core.inputtransformer2 import classic_prompt, ipython_prompt, leading_empty_lines, leading_indent

from jupyter_gpumem.errors import GpumemError

from .catalogue import GPUMEM

if TYPE_CHECKING:
    import argparse

    from jupyter_gpumem.live import Panel
    from jupyter_gpumem.measurement import Measure
    from jupyter_gpumem.records import Measurement

    from .session import Session

_MAGIC_LINE = r"%%gpumem(?:[ \t]+(.*))?[ \t]*\n?"  # compiled at its first use, as those of the other magics are


_CLEANING: tuple[Any, ...] = (leading_empty_lines, leading_indent, classic_prompt, ipython_prompt)
"""What IPython does to the first lines of a cell, and so has to do to those below the magic's."""


class Auto(NamedTuple):
    """That every cell is measured, and which cells get a line: those that moved at least `minimum` bytes."""

    devices: tuple[str, ...] | None
    minimum: int


class _Running:
    """A cell that runs now: IPython's info object is its token; `options` are those of its own `%%gpumem`.

    `panel` is the live panel that was told of its beginning.
    """

    __slots__ = ("info", "measure", "options", "panel")

    def __init__(self, info: Any, options: argparse.Namespace | None) -> None:
        self.info = info
        self.options = options
        self.measure: Measure | None = None
        self.panel: Panel | None = None


class CellWatch:
    """The input transform and the two hooks of a session, and the cells that run in each thread.

    Attributes:
        auto: how every cell is measured, or `None`.
    """

    def __init__(self, session: Session) -> None:
        self.auto: Auto | None = None
        self._session = session
        self._threads = threading.local()

        def without_magic_line(lines: list[str]) -> list[str]:
            return self._strip(lines)

        # Otherwise a terminal would think `%%gpumem` complete after its first line: cell magics end with a blank one.
        without_magic_line.has_side_effects = True  # type: ignore[attr-defined]
        self._transform = without_magic_line

    def load(self) -> None:
        """Add the transform and the hooks."""
        shell = self._session.shell
        shell.input_transformers_cleanup.append(self._transform)
        shell.events.register("pre_run_cell", self._before)
        shell.events.register("post_run_cell", self._after)

    def unload(self) -> None:
        """Remove them, and end what is still being measured."""
        shell = self._session.shell
        shell.input_transformers_cleanup.remove(self._transform)
        shell.events.unregister("pre_run_cell", self._before)
        shell.events.unregister("post_run_cell", self._after)
        self._abandon(0)

    def _abandon(self, position: int) -> None:
        """End, without a report, what is measured for the cells from a position of the stack on."""
        for running in self._stack[position:]:
            if running.measure is not None:
                running.measure.stop(search_workspaces=False)
        del self._stack[position:]

    @property
    def _stack(self) -> list[_Running]:
        """The cells that run in this thread, outermost first."""
        if not hasattr(self._threads, "stack"):
            self._threads.stack = []
        stack: list[_Running] = self._threads.stack
        return stack

    def lines_above(self, body: str) -> int:
        """Return how many lines of the running cell precede the body that a cell magic was given."""
        cell = self._stack[-1].info.raw_cell.removesuffix("\n") + "\n" if self._stack else ""
        return cell.removesuffix(body).count("\n") if cell.endswith(body) else 0

    def number(self) -> int:
        """Return the number that IPython gives to the running cell; it has counted on already."""
        counted = bool(self._stack) and self._stack[-1].info.store_history
        return int(self._session.shell.execution_count) - counted

    def _request(self, lines: list[str]) -> argparse.Namespace | None:
        """Return the options of a cell that is to be measured natively, or `None` if it is not or cannot be."""
        match = re.fullmatch(_MAGIC_LINE, lines[0]) if lines else None
        if match is None:
            return None
        try:
            options = GPUMEM.options.parse(match[1] or "")
            _work().check(options, cell=True)
        except (UsageError, GpumemError):
            return None  # the registered magic says what is wrong, before anything of the user's runs
        return options if not options.help and options.repeat is None else None

    def _strip(self, lines: list[str]) -> list[str]:
        if not lines or not lines[0].startswith("%%gpumem") or self._inside_a_cell() or self._request(lines) is None:
            return lines
        rest = lines[1:]
        for clean in _CLEANING:
            rest = clean(rest)
        # Blank lines keep the user's line numbers; but another cell magic is only one in the first line.
        return rest if rest and rest[0].startswith("%%") else ["\n"] * (len(lines) - len(rest)) + rest

    def _before(self, info: Any) -> None:
        """Begin to measure if the cell asks for it, or every cell does. On `pre_run_cell`."""
        outermost = not self._inside_a_cell(itself=True)
        if outermost and info.store_history:
            self._abandon(0)
        options = self._request(self._cleaned(info.raw_cell)) if outermost and "%%gpumem" in info.raw_cell else None
        running = _Running(info, options)
        self._stack.append(running)
        running.panel = open_panel() if outermost and info.store_history else None
        if options is not None:
            running.measure = _work().Measure(devices=options.device).start()
        elif outermost and (self.auto is not None or running.panel is not None):
            running.measure = _work().Measure(devices=self.auto.devices if self.auto is not None else None).start()
        if running.panel is not None:
            running.panel.began(self.number())

    def _after(self, result: Any) -> None:
        """End the measurement of the cell that just ended, and show it. On `post_run_cell`.

        A `post` without its `pre` (an empty cell, the cell that loaded us) is not ours; a lost `post` is made up for.
        """
        stack = self._stack
        position = next((n for n in reversed(range(len(stack))) if _is_result_of(stack[n].info, result)), None)
        if position is None:
            return
        self._abandon(position + 1)
        ended = stack.pop()
        if ended.measure is None:
            return
        error = KeyboardInterrupt() if result is None else self._session.errors.error_of(result)
        measurement = ended.measure.stop(
            None if error is None else type(error), search_workspaces=ended.options is not None
        )
        if error is not None:
            _work().devices.note_loss(error)  # before the panel goes on, and after the counters were read
        if ended.panel is not None:
            ended.panel.ended(measurement)
        if (
            result is not None
            and result.error_before_exec is not None
            and not any(u.changed for u in measurement.devices)
        ):
            return  # a syntax error; only if one came up while compiling statement by statement has anything run
        last = _cells_around() == 0
        if ended.options is None:
            self._show_line(measurement, last=last)
        else:
            _work().deliver(self._session, ended.options, measurement, error, last=last)

    def _inside_a_cell(self, *, itself: bool = False) -> bool:
        """Whether another cell encloses the one at hand, which is itself running already or not yet.

        The stack alone cannot tell: a `post` that was lost would leave every later cell inside that one.
        """
        return bool(self._stack) and _cells_around() > itself

    def _show_line(self, measurement: Measurement, *, last: bool) -> None:
        moved = [abs(size or 0) for u in measurement.devices for size in (u.peak_over_start, u.delta_allocated)]
        trouble = measurement.error or any(u.ooms or u.retries for u in measurement.devices)
        if self.auto is not None and (trouble or max(moved, default=0) >= self.auto.minimum):
            from jupyter_gpumem import report

            self._session.show_text(report.measurement_line(measurement), last=last)

    def _cleaned(self, raw_cell: str) -> list[str]:
        """Return the lines of a cell as our transform gets them; of one that begins as it will, only the first."""
        transforms = self._session.shell.input_transformers_cleanup
        if self._transform not in transforms:
            return []  # somebody has taken it out: the line stays, and the registered magic is run
        before = tuple(transforms[: transforms.index(self._transform)])
        lines = raw_cell.splitlines(keepends=True)
        if raw_cell.startswith("%%") and before == _CLEANING:
            return lines[:1]
        for transform in before:
            lines = transform(lines)
        return lines


def _cells_around() -> int:
    """Return how many cells are running around the caller, in its thread."""
    frame = sys._getframe()
    cells = 0
    while frame.f_back is not None:
        frame = frame.f_back
        cells += frame.f_code.co_name == "run_cell_async"
    return cells


def open_panel() -> Panel | None:
    """Return the live panel, if one is open."""
    live = sys.modules.get("jupyter_gpumem.live")
    panel: Panel | None = live.opened() if live is not None else None
    return panel


def _work() -> Any:
    """Return the module that does the measuring, imported when a cell first asks for it."""
    from . import gpumem

    return gpumem


def _is_result_of(info: Any, result: Any) -> bool:
    """Whether a result belongs to the run of a cell that `info` stands for.

    `None` is what is left of a run that was cut off before it had a result: the innermost one. One that was cut off
    outside the user's code (Ctrl-C at an `await`) gets a result whose info is made up again from the cell's text.
    """
    if result is None or result.info is info:
        return True
    return result.error_in_exec is not None and result.info.raw_cell == info.raw_cell
