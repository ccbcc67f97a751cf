"""What a person sees while a run is under way: the live table of a terminal, and the lines of a pipe."""

from __future__ import annotations

import io
import re
from datetime import datetime

import pytest
from rich.console import Console

from quintain.contracts.session import CostUsage, UsageLine
from quintain_runner.report.progress import MoneyProgress, ProgressState
from quintain_runner.report.progress_display import Lines, LiveTable, progress_display, render_progress
from quintain_runner.results.bill import Bill
from quintain_runner.results.counts import CallsLeft, NeededCalls, ResumeState
from quintain_runner.results.row import GraderRow, Row, RowError, RowKey
from support.results_folder import errored_row, graded_row

HOSTILE = "\x1b[2J\x1b]0;owned\x07[red]:bomb: wiped\r\nline"


def row(case_id: str, *, target: str = "bot", took_ms: float = 100, calls: int = 2) -> Row:
    """A row with a call of its target, and the others of a judge."""
    judged = {"judge": GraderRow(score=1.0, passed=True, calls=calls - 1)}
    return graded_row(case_id, 1.0, target=target).with_fields(graders=judged, calls=calls, duration_ms=took_ms)


def failed(case_id: str, error: str = "it failed", code: str = "x") -> Row:
    return errored_row(case_id).with_fields(error=RowError(code=code, error=error), calls=0)


def progress_state(cases: int, *targets: str) -> ProgressState:
    return ProgressState(targets or ("bot",), cases=cases, repeats=1, resume_state=ResumeState())


def rendered_lines(progress_state: ProgressState, *, seconds: float = 60, width: int = 140) -> list[str]:
    stream = io.StringIO()
    now = datetime(2026, 11, 21, 4, 0).astimezone()
    Console(file=stream, width=width).print(
        render_progress(progress_state, elapsed_seconds=seconds, clock_seconds=seconds, width=width, now=now)
    )
    return stream.getvalue().splitlines()


def cells(progress_state: ProgressState, target: str = "bot", **options: float) -> dict[str, str]:
    """A target's line by its headings."""
    heading, *lines = rendered_lines(progress_state, **options)
    line = next(line for line in lines if line.startswith(target))
    names = ["target", *(name for name in HEADINGS if name in heading)]
    # A unit belongs to its number.
    return dict(zip(names, re.sub(r" (ms|s)\b", r"\1", line).split(), strict=True))


HEADINGS = (
    "done", "in flight", "queued", "per min", "p50", "p95", "mean", "errors", "in doubt", "throttled",
    "calls", "tokens",
)  # fmt: skip


def test_a_target_has_a_line_with_everything_that_is_known_of_it() -> None:
    board = progress_state(1000)
    board.trial_started(RowKey("100", "bot", 1), 0)
    for number in range(90):
        board.add_row(row(str(number), took_ms=100 if number < 80 else 2000))
    for number in range(90, 100):
        board.add_row(failed(str(number), code="throttled"))
    line = cells(board)
    assert (line["done"], line["in flight"], line["queued"]) == ("100/1,000", "1", "899")
    assert (line["per min"], line["mean"], line["errors"], line["throttled"]) == ("100", "1.000", "10", "10")
    assert float(line["p50"].removesuffix("ms")) == pytest.approx(100, rel=0.1)
    assert float(line["p95"].removesuffix("s")) == pytest.approx(2.0, rel=0.1)


@pytest.mark.parametrize("width", range(60, 141, 16))
def test_a_narrow_terminal_has_the_columns_that_matter_most_each_in_full(width: int) -> None:
    board = progress_state(100_000, "a target · with a long name")
    board.trial_started(RowKey("1", "a target · with a long name", 1), 1)
    lines = rendered_lines(board, width=width)
    assert "100,000" in lines[1]
    assert lines[1].startswith("a target · with a long name ")
    assert {"done", "errors"} <= set(lines[0].split())
    assert width > 80 or "p50" not in lines[0]
    assert all(len(line) <= width for line in lines)
    assert "…" not in lines[0]


def test_trials_that_run_for_over_a_minute_are_named_with_their_time_the_oldest_first() -> None:
    board = progress_state(100)
    for number in range(6):
        board.trial_started(RowKey(f"case{number}", "bot", 1), 10.0 * number)
    board.trial_ended(RowKey("case1", "bot", 1))
    assert not any("case" in line for line in rendered_lines(board, seconds=59))
    (line,) = (line for line in rendered_lines(board, seconds=105) if "case" in line)
    assert re.findall(r"case\d", line) == ["case0", "case2", "case3"]
    assert "1.8 min" in line
    assert "1 more" in line
    assert cells(board)["in flight"] == "5"


def half_done() -> ProgressState:
    """50 of 100 trials are done; the others need a call of their target and one of a judge."""
    board = progress_state(100)
    board.calls_open = CallsLeft({"judged": 1})
    for number in range(50):
        board.add_row(row(str(number)))
        board.calls_open.add("bot", NeededCalls(asks=True, graders=("judged",)))
    return board


@pytest.mark.parametrize(
    ("charged", "max_calls", "told"),
    [
        (100, 400, "█" * 7 + "░" * 23 + " 100/400 calls, about 200 in total"),
        # Of 30 open trials the ledger counts the target's call already, and the budget is exactly enough.
        (130, 200, "130/200 calls, about 200 in total"),
        (100, 150, "spent about 04:01 before the run ends: the run needs about 200"),
    ],
)
def test_the_budget_says_what_the_run_will_take_and_when_it_is_spent(charged: int, max_calls: int, told: str) -> None:
    board = half_done()
    assert not [line for line in rendered_lines(progress_state(100)) if line.startswith(("ends", "budget"))]
    for calls in (0, charged):
        board.budget.update(calls, max_calls)
    assert board.projected_calls == 200
    # A grader that takes now more now less is projected by its mean.
    uneven = progress_state(200)
    uneven.calls_open = CallsLeft({"judge": 50})
    for number in range(100):
        uneven.add_row(row(str(number), calls=2 + 4 * (number % 2)))
        uneven.calls_open.add("bot", NeededCalls(asks=True, graders=("judge",)))
    assert uneven.projected_calls == 800
    (line,) = (line for line in rendered_lines(board, seconds=120) if line.startswith("budget"))
    assert told in line
    assert ("spent" in line) == ("spent" in told)


def test_what_it_cost_is_shown_as_far_as_it_is_known() -> None:
    board = progress_state(10, "bot", "free")
    board.budget.update(0, 20)
    board.add_row(row("1"))
    board.budget.update(2, 20)
    board.bill = Bill.of([UsageLine(target="bot", calls=1, tries=1, cost=CostUsage(spent_usd=2.0))])
    lines = rendered_lines(board)
    assert lines[0].endswith("cost")
    assert [line.split()[-1] for line in lines[1:3]] == ["$2.00", "-"]
    assert not [line for line in lines if line.startswith("money")]
    board.money.update(2, CostUsage(spent_usd=2.0, held_usd=1.0, reserved_usd=0.5), 40.0)
    (money,) = (line for line in rendered_lines(board) if line.startswith("money"))
    assert all(part in money for part in ("$2.00 spent", "≤ $1.00", "≤ $0.5000", "limit $40.00", "in total"))


def test_a_part_of_the_limit_that_is_spent_or_held_is_said_once() -> None:
    money = MoneyProgress(warn_at=0.8)
    assert money.update(1, CostUsage(spent_usd=7.0, reserved_usd=3.0), 10.0) is None
    assert "warn_at: 0.8" in str(money.update(1, CostUsage(spent_usd=7.0, held_usd=1.0), 10.0))
    assert money.update(1, CostUsage(spent_usd=9.0), 10.0) is None
    assert MoneyProgress().update(1, CostUsage(spent_usd=9.0), 10.0) is None


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
    kept = ResumeState()
    kept.add_row(row("1"))
    Lines(console).start(ProgressState(["bot"], cases=3, repeats=1, resume_state=kept))
    assert stream.getvalue().endswith("3 trials: 3 cases for bot, 2 to execute\n"), "what was kept"
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


@pytest.mark.parametrize("kind", [Lines, LiveTable])
def test_errors_and_waits_are_told_once_and_hostile_text_is_text(kind: type[Lines | LiveTable]) -> None:
    console, stream = terminal() if kind is LiveTable else pipe()
    clock = Clock()
    board, progress = progress_state(1000), kind(console, clock=clock)
    progress.start(board)
    board.add_row(failed("case\x1b[1A", HOSTILE))
    board.waits = ("412 wait for openai-team",)
    for number in range(3):
        board.add_row(failed(str(number), "bad"))
    clock.now = 10.0
    progress.tick()
    progress.stop()
    shown = stream.getvalue()
    assert all(part in shown for part in ("waits", "412 wait for openai-team"))
    # Equal errors are one line with their number.
    assert [line for line in shown.splitlines() if all(part in line for part in ("× 3", "bad", "0 · bot"))]
    assert "1 · bot" not in shown
    assert "error: case · bot: [red]:bomb: wiped line" in shown
    assert "\x1b[2J" not in shown
    assert "owned" not in shown


def test_a_flood_of_errors_is_told_by_its_first() -> None:
    console, stream = pipe()
    board, lines = progress_state(100), Lines(console)
    lines.start(board)
    for number in range(15):
        board.add_row(failed(str(number), f"bad {number}"))
        lines.tick()
    lines.stop()
    told = [line for line in stream.getvalue().splitlines() if line.startswith("error")]
    assert len(told) == 11
    assert told[-1] == "error: there are more errors; all are in the results"


def test_a_live_table_is_for_terminals_that_can_draw_one() -> None:
    good, dumb = terminal()[0], Console(file=io.StringIO(), force_terminal=True, _environ={"TERM": "dumb"})
    assert isinstance(progress_display(good, {}), LiveTable)
    assert isinstance(progress_display(good, {"CI": "true"}), Lines)
    assert isinstance(progress_display(dumb, {}), Lines)
    assert isinstance(progress_display(pipe()[0], {}), Lines)
