"""Progress displays of a run: a live table on a terminal, plain lines elsewhere, or none."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Protocol

from rich.console import Console, RenderableType
from rich.live import Live

from quintain_runner.escaping import plain_text
from quintain_runner.progress.live_table import render_progress
from quintain_runner.progress.state import ProgressState, TargetProgress
from quintain_runner.results.counts import RowTally
from quintain_runner.statistics.formatting import format_score

#: The interval between two calls of `ProgressDisplay.tick`, in seconds.
TICK_SECONDS = 0.25

#: Without a terminal, a line is written after this many seconds, or after this fraction of all trials.
_LINE_SECONDS = 10.0
_LINE_FRACTION = 0.1

#: The most errors shown during a run; the results contain all of them.
_MAX_SHOWN_ERRORS = 10

Clock = Callable[[], float]


class ProgressDisplay(Protocol):
    """Shows the progress of a run. The run calls `tick` every `TICK_SECONDS`."""

    def start(self, progress_state: ProgressState) -> None:
        """Show the beginning of the run; ``progress_state`` changes while it runs."""

    def tick(self) -> None:
        """Update the display if the progress has changed."""

    def stop(self) -> None:
        """End the display when the run ends or is interrupted, and restore the terminal."""


class NoProgressDisplay:
    """Shows nothing; used with ``--json``."""

    def start(self, progress_state: ProgressState) -> None:
        """Show nothing at the start of the run."""

    def tick(self) -> None:
        """Show nothing while the run goes on."""

    def stop(self) -> None:
        """Show nothing at the end of the run."""


class _ErrorPrinter:
    """Prints the first errors of a run, one line each, and then one line that there are more."""

    def __init__(self, console: Console) -> None:
        self._console, self._printed_count = console, 0

    def print_new(self, progress_state: ProgressState) -> None:
        """Print the errors since the last call."""
        for error in progress_state.take_new_errors():
            self._printed_count += 1
            if self._printed_count <= _MAX_SHOWN_ERRORS:
                self._console.print(plain_text(f"error: {error}", "red"), soft_wrap=True)
            elif self._printed_count == _MAX_SHOWN_ERRORS + 1:
                self._console.print(plain_text("error: there are more errors; all are in the results", "red"))


class Lines:
    """Prints a line of progress every ten seconds, or after every tenth of the trials. ``clock`` returns seconds."""

    def __init__(self, console: Console, *, clock: Clock = time.monotonic) -> None:
        self._console, self._clock = console, clock
        self._errors = _ErrorPrinter(console)
        self._progress_state: ProgressState | None = None
        self._printed_at, self._printed_done = 0.0, 0

    def start(self, progress_state: ProgressState) -> None:
        """Print the line about the planned trials."""
        self._progress_state, self._printed_at, self._printed_done = progress_state, self._clock(), progress_state.done
        self._print(start_line(progress_state))

    def tick(self) -> None:
        """Print new errors, and a line of progress if one is due."""
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
        """Print the errors and the progress that are not yet printed."""
        if self._progress_state is not None:
            self._errors.print_new(self._progress_state)
            if self._progress_state.done > self._printed_done:
                self._print(progress_line(self._progress_state))

    def _print(self, line: str) -> None:
        """Print one line, without wrapping."""
        self._console.print(plain_text(line), soft_wrap=True)


class LiveTable:
    """A table that is redrawn in place and removed when the run ends. ``clock`` returns seconds."""

    def __init__(self, console: Console, *, clock: Clock = time.monotonic) -> None:
        self._console, self._clock = console, clock
        self._errors = _ErrorPrinter(console)
        self._progress_state: ProgressState | None = None
        self._live: Live | None = None
        self._started = 0.0

    def start(self, progress_state: ProgressState) -> None:
        """Print the line about the planned trials, and draw the table."""
        self._progress_state, self._started = progress_state, self._clock()
        self._console.print(plain_text(start_line(progress_state)), soft_wrap=True)
        self._live = Live(self._render(progress_state), console=self._console, auto_refresh=False, transient=True)
        self._live.start(refresh=True)

    def tick(self) -> None:
        """Print new errors and redraw the table."""
        if self._progress_state is not None and self._live is not None:
            self._errors.print_new(self._progress_state)
            self._live.update(self._render(self._progress_state), refresh=True)

    def stop(self) -> None:
        """Print new errors and remove the table."""
        if self._progress_state is not None and self._live is not None:
            self._errors.print_new(self._progress_state)
            self._live.stop()

    def _render(self, progress_state: ProgressState) -> RenderableType:
        """The table at this moment."""
        now = datetime.now().astimezone()
        return render_progress(
            progress_state, elapsed_seconds=self._clock() - self._started, width=self._console.width, now=now
        )


def progress_display(console: Console, env: Mapping[str, str]) -> ProgressDisplay:
    """The display for a console: a live table on a capable terminal; lines in a pipe, in CI, and on a dumb terminal."""
    if console.is_terminal and not console.is_dumb_terminal and not env.get("CI"):
        return LiveTable(console)
    return Lines(console)


def start_line(progress_state: ProgressState) -> str:
    """The number of trials, the targets, and how many of the trials this command executes, if not all."""
    pending = progress_state.pending_trials
    executed = "" if pending == progress_state.trials else f", {pending} to execute"
    targets = ", ".join(progress_state.tallies)
    return f"{progress_state.trials} trials: {progress_state.cases} cases for {targets}{executed}"


def progress_line(progress_state: ProgressState) -> str:
    """The progress of all targets as one line."""
    targets = "; ".join(
        f"{name} {_target_text(tally, progress_state.target_gauges[name])}"
        for name, tally in progress_state.tallies.items()
    )
    budget = (
        f" calls {progress_state.calls}/{progress_state.budget.max_calls}" if progress_state.budget.max_calls else ""
    )
    return f"{progress_state.done}/{progress_state.trials} {targets}{budget}"


def _target_text(tally: RowTally, progress: TargetProgress) -> str:
    """The progress of one target."""
    errors = f", {tally.errors} errors" if tally.errors else ""
    parked = ", parked" if progress.is_parked else ""
    in_doubt = f", {tally.in_doubt} in doubt" if tally.in_doubt else ""
    return f"{tally.done}/{tally.trials} mean {format_score(tally.mean_score)}{errors}{in_doubt}{parked}"
