"""What a person sees while a run is under way."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from quintain_runner.report.progress import ProgressState
from quintain_runner.report.progress_display import Lines, LiveTable, progress_display
from quintain_runner.results.counts import ResumeState
from quintain_runner.results.row import Row, RowError, RowStatus
from support.results_folder import MADE_OF

HOSTILE = "\x1b[2J\x1b]0;owned\x07[red]:bomb: wiped\r\nline"


def row(case_id: str, *, error: str | None = None) -> Row:
    if error is None:
        return Row(
            fingerprints=MADE_OF, case_id=case_id, target="bot", repeat=1, status=RowStatus.GRADED, score=1.0, calls=2
        )
    return Row(
        fingerprints=MADE_OF,
        case_id=case_id,
        target="bot",
        repeat=1,
        status=RowStatus.ERROR,
        error=RowError(code="x", error=error),
    )


def progress_state(cases: int) -> ProgressState:
    return ProgressState(["bot"], cases=cases, repeats=1, resume_state=ResumeState())


class Clock:
    """A clock that stands still until it is told."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def pipe() -> tuple[Console, io.StringIO]:
    stream = io.StringIO()
    return Console(file=stream, width=100), stream


def terminal() -> tuple[Console, io.StringIO]:
    stream = io.StringIO()
    return Console(file=stream, width=100, force_terminal=True, color_system=None, _environ={"TERM": "xterm"}), stream


def test_in_a_pipe_a_line_is_written_every_tenth_of_the_way() -> None:
    console, stream = pipe()
    board, lines = progress_state(20), Lines(console, clock=Clock())
    lines.start(board)
    for number in range(20):
        board.add_row(row(str(number)))
        lines.tick()
    lines.stop()
    written = stream.getvalue().splitlines()
    assert written[0] == "20 trials: 20 cases for bot"
    assert written[1:] == [f"{done}/20 bot {done}/20 mean 1.000" for done in range(2, 21, 2)]


def test_in_a_pipe_a_slow_run_writes_a_line_every_ten_seconds_if_there_is_news() -> None:
    console, stream = pipe()
    clock = Clock()
    board, lines = progress_state(1000), Lines(console, clock=clock)
    lines.start(board)
    board.add_row(row("1"))
    for clock.now in (1.0, 9.9, 10.0, 11.0, 20.0, 30.0):
        lines.tick()
    assert len(stream.getvalue().splitlines()) == 2


def test_a_run_that_was_taken_up_says_what_it_kept() -> None:
    console, stream = pipe()
    kept = ResumeState()
    kept.add_row(row("1"))
    Lines(console).start(ProgressState(["bot"], cases=3, repeats=1, resume_state=kept))
    assert stream.getvalue() == "3 trials: 3 cases for bot, 2 to execute\n"


@pytest.mark.parametrize("kind", [Lines, LiveTable])
def test_hostile_text_is_shown_as_text(kind: type[Lines | LiveTable]) -> None:
    console, stream = terminal() if kind is LiveTable else pipe()
    board, progress = progress_state(2), kind(console)
    progress.start(board)
    board.add_row(row("case\x1b[1A", error=HOSTILE))
    progress.tick()
    progress.stop()
    shown = stream.getvalue()
    assert "error: case · bot: [red]:bomb: wiped line" in shown
    assert "\x1b[2J" not in shown
    assert "owned" not in shown


def test_a_flood_of_errors_is_told_by_its_first() -> None:
    console, stream = pipe()
    board, lines = progress_state(100), Lines(console)
    lines.start(board)
    for number in range(15):
        board.add_row(row(str(number), error=f"bad {number}"))
        lines.tick()
    lines.stop()
    told = [line for line in stream.getvalue().splitlines() if line.startswith("error")]
    assert len(told) == 11
    assert told[-1] == "error: there are more errors; all are in the results"


@pytest.mark.parametrize("kind", [Lines, LiveTable])
def test_equal_errors_are_one_line_with_their_number(kind: type[Lines | LiveTable]) -> None:
    console, stream = terminal() if kind is LiveTable else pipe()
    board, progress = progress_state(1000), kind(console)
    progress.start(board)
    for number in range(3):
        board.add_row(row(str(number), error="bad"))
    progress.stop()
    assert [line for line in stream.getvalue().splitlines() if "× 3" in line and "bad" in line and "0 · bot" in line]
    assert "1 · bot" not in stream.getvalue()


def test_the_live_table_is_gone_when_the_run_ends() -> None:
    console, stream = terminal()
    progress = LiveTable(console)
    progress.start(progress_state(1))
    # The line before the table stays.
    lines_drawn = stream.getvalue().count("\n")
    progress.stop()
    after_the_last_drawing = stream.getvalue().rpartition("0/1")[2]
    assert after_the_last_drawing.count("\x1b[2K") == lines_drawn


def test_a_live_table_is_for_terminals_that_can_draw_one() -> None:
    good, dumb = terminal()[0], Console(file=io.StringIO(), force_terminal=True, _environ={"TERM": "dumb"})
    assert isinstance(progress_display(good, {}), LiveTable)
    assert isinstance(progress_display(good, {"CI": "true"}), Lines)
    assert isinstance(progress_display(dumb, {}), Lines)
    assert isinstance(progress_display(pipe()[0], {}), Lines)
