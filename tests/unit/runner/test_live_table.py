"""The live table: what it says of targets, graders and the budget, and what it makes of the terminal's width."""

from __future__ import annotations

import io
import re
from datetime import datetime

import pytest
from rich.console import Console

from quintain.contracts.session import CostUsage, UsageLine
from quintain_runner.report.progress import MoneyProgress, ProgressState
from quintain_runner.report.progress_display import render_progress
from quintain_runner.results.bill import Bill
from quintain_runner.results.counts import CallsLeft, NeededCalls, ResumeState
from quintain_runner.results.row import GraderRow, Row, RowError, RowKey, RowStatus
from support.results_folder import MADE_OF

HOSTILE = "\x1b[2J[red]b:bomb:"


def row(case_id: str, *, target: str = "bot", took_ms: float = 100, error: str | None = None, calls: int = 2) -> Row:
    return Row(
        fingerprints=MADE_OF,
        case_id=case_id,
        target=target,
        repeat=1,
        status=RowStatus.GRADED if error is None else RowStatus.ERROR,
        output="x" if error is None else None,
        score=1.0 if error is None else None,
        graders={} if error else {"judge": GraderRow(score=1.0, passed=True, calls=calls - 1)},
        error=None if error is None else RowError(code=error, error="it failed"),
        calls=calls,
        duration_ms=took_ms,
    )


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
    heading, *lines = rendered_lines(progress_state, **options)  # type: ignore[arg-type]
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
        board.add_row(row(str(number), error="throttled", calls=0))
    line = cells(board)
    assert (line["done"], line["in flight"], line["queued"]) == ("100/1,000", "1", "899")
    assert (line["per min"], line["mean"], line["errors"], line["throttled"]) == ("100", "1.000", "10", "10")
    assert float(line["p50"].removesuffix("ms")) == pytest.approx(100, rel=0.1)
    assert float(line["p95"].removesuffix("s")) == pytest.approx(2.0, rel=0.1)


@pytest.mark.parametrize("width", range(60, 141, 3))
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
    assert [(name in line) for name in ("case0", "case1", "case2", "case3", "case4")] == [
        True,
        False,
        True,
        True,
        False,
    ]
    assert "1.8 min" in line
    assert "1 more" in line
    assert cells(board)["in flight"] == "5"


def test_graders_have_lines_of_their_own() -> None:
    board = progress_state(3)
    board.add_row(row("1"))
    failed = row("2").model_copy(update={"graders": {"judge": GraderRow(error="crashed", calls=1)}})
    board.add_row(failed)
    (line,) = (line.split() for line in rendered_lines(board) if line.startswith("judge"))
    assert line == ["judge", "1", "1", "1.000", "1", "2"]


def half_done() -> ProgressState:
    """50 of 100 trials are done; the others need a call of their target and one of a judge."""
    board = progress_state(100)
    board.calls_open = CallsLeft({"judged": 1})
    for number in range(50):
        board.add_row(row(str(number)))
        board.calls_open.add("bot", NeededCalls(asks=True, graders=("judged",)))
    return board


def test_the_budget_says_how_much_the_run_will_take() -> None:
    board = half_done()
    board.budget.update(0, 400)
    board.budget.update(100, 400)
    (line,) = (line for line in rendered_lines(board) if line.startswith("budget"))
    assert "█" * 7 + "░" * 23 in line
    assert "100/400 calls, about 200 in total" in line


def test_calls_of_trials_that_have_not_ended_are_projected_once() -> None:
    """Of 30 open trials the ledger counts the target's call already, and the budget is exactly enough."""
    board = half_done()
    board.budget.update(0, 200)
    board.budget.update(130, 200)
    assert (board.calls, board.projected_calls) == (130, 200)
    (line,) = (line for line in rendered_lines(board) if line.startswith("budget"))
    assert "spent" not in line


def test_a_grader_that_takes_now_more_now_less_is_projected_by_its_mean() -> None:
    board = progress_state(200)
    board.calls_open = CallsLeft({"judge": 50})
    for number in range(100):
        board.add_row(row(str(number), calls=2 + 4 * (number % 2)))
        board.calls_open.add("bot", NeededCalls(asks=True, graders=("judge",)))
    assert board.projected_calls == 800


def test_a_budget_that_does_not_last_says_when_it_is_spent() -> None:
    board = half_done()
    board.budget.update(0, 150)
    board.budget.update(100, 150)
    (line,) = (line for line in rendered_lines(board, seconds=120) if line.startswith("budget"))
    assert "spent about 04:01 before the run ends: the run needs about 200" in line


def test_the_end_is_that_of_the_slowest_target() -> None:
    board = progress_state(100, "fast", "slow")
    for number in range(50):
        board.add_row(row(str(number), target="fast"))
    board.add_row(row("1", target="slow"))
    (line,) = (line for line in rendered_lines(board, seconds=60) if line.startswith("ends"))
    assert line == "ends    about 05:39 (slow)"


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


def test_nothing_is_projected_before_there_is_a_pace() -> None:
    assert not [line for line in rendered_lines(progress_state(100)) if line.startswith(("ends", "budget"))]
