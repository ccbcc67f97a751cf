"""Progress displays of a run: a live table on a terminal, plain lines elsewhere, or none."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Protocol

from rich.console import Console, RenderableType
from rich.live import Live

from quintain_runner.progress.live_table import render_progress
from quintain_runner.progress.state import ProgressState
from quintain_runner.progress.terminal_text import plain_text
from quintain_runner.results.counts import RowTally
from quintain_runner.statistics.formatting import format_score

#: How often a run lets its progress draw, in seconds: at most 4 times a second.
TICK_SECONDS = 0.25

#: How often a line is written where nobody watches a terminal, in seconds, and in parts of the whole.
_LINE_SECONDS = 10.0
_LINE_FRACTION = 0.1

#: How many errors are told while a run goes on; all of them are in the results.
_MAX_SHOWN_ERRORS = 10

Clock = Callable[[], float]


class ProgressDisplay(Protocol):
    """Shows a board. `tick` comes at most every `TICK_SECONDS`."""

    def start(self, progress_state: ProgressState) -> None:
        """The run begins."""

    def tick(self) -> None:
        """Time has passed: draw, if there is something new."""

    def stop(self) -> None:
        """The run is over, or was interrupted: leave the terminal as it was."""


class NoProgressDisplay:
    """Shows nothing: for ``--json``."""

    def start(self, progress_state: ProgressState) -> None:
        """Nothing to draw."""

    def tick(self) -> None:
        """Nothing to draw."""

    def stop(self) -> None:
        """Nothing to draw."""


class _ErrorPrinter:
    """Tells the first errors of a run, one line each, and then that there are more."""

    def __init__(self, console: Console) -> None:
        self._console, self._printed_count = console, 0

    def print_new(self, progress_state: ProgressState) -> None:
        for error in progress_state.take_new_errors():
            self._printed_count += 1
            if self._printed_count <= _MAX_SHOWN_ERRORS:
                self._console.print(plain_text(f"error: {error}", "red"), soft_wrap=True)
            elif self._printed_count == _MAX_SHOWN_ERRORS + 1:
                self._console.print(plain_text("error: and more of them; all are in the results", "red"))


class Lines:
    """One line every ten seconds, or every tenth of the way."""

    def __init__(self, console: Console, *, clock: Clock = time.monotonic) -> None:
        self._console, self._clock = console, clock
        self._errors = _ErrorPrinter(console)
        self._progress_state: ProgressState | None = None
        self._printed_at, self._printed_done = 0.0, 0

    def start(self, progress_state: ProgressState) -> None:
        """Say what is to be done."""
        self._progress_state, self._printed_at, self._printed_done = progress_state, self._clock(), progress_state.done
        self._print(start_line(progress_state))

    def tick(self) -> None:
        """Write a line where one is due."""
        progress_state = self._progress_state
        if progress_state is None:
            return
        self._errors.print_new(progress_state)
        is_step_reached = progress_state.done - self._printed_done >= max(1, progress_state.trials * _LINE_FRACTION)
        if is_step_reached or (
            self._clock() - self._printed_at >= _LINE_SECONDS and progress_state.done > self._printed_done
        ):
            self._printed_at, self._printed_done = self._clock(), progress_state.done
            self._print(progress_line(progress_state))

    def stop(self) -> None:
        """Write what is not written yet."""
        if self._progress_state is not None:
            self._errors.print_new(self._progress_state)
            if self._progress_state.done > self._printed_done:
                self._print(progress_line(self._progress_state))

    def _print(self, line: str) -> None:
        self._console.print(plain_text(line), soft_wrap=True)


class LiveTable:
    """A table that is drawn again in place, and gone when the run ends."""

    def __init__(self, console: Console, *, clock: Clock = time.monotonic) -> None:
        self._console, self._clock = console, clock
        self._errors = _ErrorPrinter(console)
        self._progress_state: ProgressState | None = None
        self._live: Live | None = None
        self._started = 0.0

    def start(self, progress_state: ProgressState) -> None:
        """Draw the table for the first time."""
        self._progress_state, self._started = progress_state, self._clock()
        self._console.print(plain_text(start_line(progress_state)), soft_wrap=True)
        self._live = Live(self._render(progress_state), console=self._console, auto_refresh=False, transient=True)
        self._live.start(refresh=True)

    def tick(self) -> None:
        """Draw the table again."""
        if self._progress_state is not None and self._live is not None:
            self._errors.print_new(self._progress_state)
            self._live.update(self._render(self._progress_state), refresh=True)

    def stop(self) -> None:
        """Take the table away."""
        if self._progress_state is not None and self._live is not None:
            self._errors.print_new(self._progress_state)
            self._live.stop()

    def _render(self, progress_state: ProgressState) -> RenderableType:
        now = datetime.now().astimezone()
        return render_progress(
            progress_state, elapsed_seconds=self._clock() - self._started, width=self._console.width, now=now
        )


def progress_display(console: Console, env: Mapping[str, str]) -> ProgressDisplay:
    """A live table on a terminal that can draw one; lines in a pipe, in CI, and on a dumb terminal."""
    if console.is_terminal and not console.is_dumb_terminal and not env.get("CI"):
        return LiveTable(console)
    return Lines(console)


def start_line(progress_state: ProgressState) -> str:
    """What is to be done, and what becomes of the rows of before."""
    resumed = f", {progress_state.resume_note}" if progress_state.resume_note else ""
    return (
        f"{progress_state.trials} trials: {progress_state.cases} cases for {', '.join(progress_state.tallies)}{resumed}"
    )


def progress_line(progress_state: ProgressState) -> str:
    """The board as one line."""
    targets = "; ".join(f"{name} {_target_text(tally)}" for name, tally in progress_state.tallies.items())
    budget = (
        f" calls {progress_state.budget.calls}/{progress_state.budget.max_calls}"
        if progress_state.budget.max_calls
        else ""
    )
    return f"{progress_state.done}/{progress_state.trials} {targets}{budget}"


def _target_text(tally: RowTally) -> str:
    errors = f", {tally.errors} errors" if tally.errors else ""
    return f"{tally.done}/{tally.trials} mean {format_score(tally.mean_score)}{errors}"
