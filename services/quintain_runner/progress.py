"""What a person sees while a run is under way: a live table on a terminal, plain lines elsewhere, or nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Protocol

from rich.console import Console, RenderableType
from rich.live import Live

from quintain_runner.board import Board
from quintain_runner.figures import score
from quintain_runner.live_view import live_view
from quintain_runner.tally import Tally
from quintain_runner.terminal import shown

#: How often a run lets its progress draw, in seconds: at most 4 times a second.
TICK_SECONDS = 0.25

#: How often a line is written where nobody watches a terminal, in seconds, and in parts of the whole.
_LINE_SECONDS = 10.0
_LINE_PART = 0.1

#: How many errors are told while a run goes on; all of them are in the results.
_ERRORS_TOLD = 10

Clock = Callable[[], float]


class Progress(Protocol):
    """Shows a board. `tick` comes at most every `TICK_SECONDS`."""

    def start(self, board: Board) -> None:
        """The run begins."""

    def tick(self) -> None:
        """Time has passed: draw, if there is something new."""

    def stop(self) -> None:
        """The run is over, or was interrupted: leave the terminal as it was."""


class Silent:
    """Shows nothing: for ``--json``."""

    def start(self, board: Board) -> None:
        """Nothing to draw."""

    def tick(self) -> None:
        """Nothing to draw."""

    def stop(self) -> None:
        """Nothing to draw."""


class _Errors:
    """Tells the first errors of a run, one line each, and then that there are more."""

    def __init__(self, console: Console) -> None:
        self._console, self._told = console, 0

    def tell(self, board: Board) -> None:
        for error in board.new_errors():
            self._told += 1
            if self._told <= _ERRORS_TOLD:
                self._console.print(shown(f"error: {error}", "red"), soft_wrap=True)
            elif self._told == _ERRORS_TOLD + 1:
                self._console.print(shown("error: and more of them; all are in the results", "red"))


class Lines:
    """One line every ten seconds, or every tenth of the way."""

    def __init__(self, console: Console, *, clock: Clock = time.monotonic) -> None:
        self._console, self._clock = console, clock
        self._errors = _Errors(console)
        self._board: Board | None = None
        self._at, self._done = 0.0, 0

    def start(self, board: Board) -> None:
        """Say what is to be done."""
        self._board, self._at, self._done = board, self._clock(), board.done
        self._print(opening_line(board))

    def tick(self) -> None:
        """Write a line where one is due."""
        board = self._board
        if board is None:
            return
        self._errors.tell(board)
        far = board.done - self._done >= max(1, board.trials * _LINE_PART)
        if far or (self._clock() - self._at >= _LINE_SECONDS and board.done > self._done):
            self._at, self._done = self._clock(), board.done
            self._print(line_of(board))

    def stop(self) -> None:
        """Write what is not written yet."""
        if self._board is not None:
            self._errors.tell(self._board)
            if self._board.done > self._done:
                self._print(line_of(self._board))

    def _print(self, line: str) -> None:
        self._console.print(shown(line), soft_wrap=True)


class LiveTable:
    """A table that is drawn again in place, and gone when the run ends."""

    def __init__(self, console: Console, *, clock: Clock = time.monotonic) -> None:
        self._console, self._clock = console, clock
        self._errors = _Errors(console)
        self._board: Board | None = None
        self._live: Live | None = None
        self._started = 0.0

    def start(self, board: Board) -> None:
        """Draw the table for the first time."""
        self._board, self._started = board, self._clock()
        self._console.print(shown(opening_line(board)), soft_wrap=True)
        self._live = Live(self._table(board), console=self._console, auto_refresh=False, transient=True)
        self._live.start(refresh=True)

    def tick(self) -> None:
        """Draw the table again."""
        if self._board is not None and self._live is not None:
            self._errors.tell(self._board)
            self._live.update(self._table(self._board), refresh=True)

    def stop(self) -> None:
        """Take the table away."""
        if self._board is not None and self._live is not None:
            self._errors.tell(self._board)
            self._live.stop()

    def _table(self, board: Board) -> RenderableType:
        now = datetime.now().astimezone()
        return live_view(board, seconds=self._clock() - self._started, width=self._console.width, now=now)


def progress_on(console: Console, env: Mapping[str, str]) -> Progress:
    """A live table on a terminal that can draw one; lines in a pipe, in CI, and on a dumb terminal."""
    if console.is_terminal and not console.is_dumb_terminal and not env.get("CI"):
        return LiveTable(console)
    return Lines(console)


def opening_line(board: Board) -> str:
    """What is to be done, and what becomes of the rows of before."""
    resumed = f", {board.resumed}" if board.resumed else ""
    return f"{board.trials} trials: {board.cases} cases for {', '.join(board.tallies)}{resumed}"


def line_of(board: Board) -> str:
    """The board as one line."""
    targets = "; ".join(f"{name} {_short(tally)}" for name, tally in board.tallies.items())
    budget = f" calls {board.budget.calls}/{board.budget.max_calls}" if board.budget.max_calls else ""
    return f"{board.done}/{board.trials} {targets}{budget}"


def _short(tally: Tally) -> str:
    errors = f", {tally.errors} errors" if tally.errors else ""
    return f"{tally.done}/{tally.trials} mean {score(tally.mean_score)}{errors}"
