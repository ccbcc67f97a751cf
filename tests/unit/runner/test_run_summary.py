"""The counts, the exit code, and the last line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from quintain.contracts.session import AGENTS, UsageLine
from quintain_runner.report.notes import unaccounted_calls_note
from quintain_runner.report.progress import ProgressState
from quintain_runner.report.summary import ExitCode, RunSummary, RunTotals, exit_line, summarize
from quintain_runner.results.bill import Bill
from quintain_runner.results.counts import ResumeState
from quintain_runner.results.row import Row
from support.results_folder import errored_row, graded_row

GOOD = RunTotals(cases=4, trials=4, graded=4, passed=3, mean_score=0.75, calls=8, max_calls=100)
PASSED = RunSummary(
    total=GOOD, per_target={}, threshold=0.7, is_budget_spent=False, results=Path("runs/eval/results.jsonl")
)
COMMAND = "quintain run eval.yaml"


def row(case_id: str, score: float, *, target: str = "bot") -> Row:
    return graded_row(case_id, score, target=target).with_fields(calls=2)


def resume_state(*rows: Row) -> ResumeState:
    kept = ResumeState()
    for one in rows:
        kept.add_row(one)
    return kept


def with_totals(summary: RunSummary, **changes: int | float | None) -> RunSummary:
    return replace(summary, total=summary.total.with_fields(**changes))


def test_rows_are_counted_per_target_and_the_ledger_has_the_last_word_on_calls() -> None:
    board = ProgressState(["bot", "other"], cases=3, repeats=1, resume_state=ResumeState())
    for one in (row("1", 1.0), row("2", 0.0), errored_row("3"), row("1", 0.5, target="other")):
        board.add_row(one)
    board.budget.update(12, 50)
    summary = summarize(board, threshold=None, is_budget_spent=False, results=Path("r"))
    bot = summary.per_target["bot"]
    assert (bot.trials, bot.graded, bot.passed, bot.errors, bot.waiting) == (3, 2, 1, 1, 0)
    assert (bot.mean_score, bot.calls, bot.token_usage.input) == (0.5, 5, 20)
    assert summary.per_target["other"].waiting == 2
    assert summary.total.mean_score == 0.5
    assert (summary.total.calls, summary.total.max_calls, summary.total.calls_without_row) == (12, 50, 5)


def test_a_row_that_supersedes_an_errored_one_takes_its_place_in_the_counts() -> None:
    kept = resume_state(errored_row("1"))
    board = ProgressState(["bot"], cases=1, repeats=1, resume_state=kept)
    assert (board.tallies["bot"].errors, board.done) == (1, 1)
    board.add_row(row("1", 1.0), errored_row("1"))
    tally = board.tallies["bot"]
    assert (tally.errors, tally.graded, tally.calls, board.done) == (0, 1, 2, 1)
    assert board.calls_in_rows == 2
    # Kept rows of targets and repeats that are not asked count for what they spent alone.
    others = resume_state(row("1", 1.0).with_fields(repeat=2), row("1", 1.0, target="other"))
    board = ProgressState(["bot"], cases=1, repeats=1, resume_state=others)
    assert (board.done, board.calls_in_rows) == (0, 4)


@pytest.mark.parametrize(
    ("summary", "code"),
    [
        (PASSED, ExitCode.PASSED),
        (replace(PASSED, threshold=None), ExitCode.PASSED),
        (replace(PASSED, threshold=0.75), ExitCode.PASSED),
        (replace(PASSED, threshold=0.76), ExitCode.BELOW_THRESHOLD),
        (with_totals(PASSED, mean_score=0.7 - 1e-16), ExitCode.PASSED),
        (with_totals(PASSED, errors=1, mean_score=0.1), ExitCode.ERRORS),
        (with_totals(PASSED, in_doubt=1), ExitCode.ERRORS),
        (replace(with_totals(PASSED, errors=1), is_budget_spent=True), ExitCode.BUDGET_SPENT),
    ],
)
def test_the_exit_code_is_the_first_that_holds(summary: RunSummary, code: ExitCode) -> None:
    assert summary.exit_code is code


@pytest.mark.parametrize(
    ("summary", "said"),
    [
        (PASSED, ["exit 0: mean score 0.750, threshold 0.7", "quintain view runs/eval"]),
        (with_totals(PASSED, errors=1), ["exit 1: 1 of 4 trials erred", COMMAND]),
        (with_totals(PASSED, in_doubt=2), ["exit 1: 2 of 4 trials are in doubt", f"{COMMAND} --in-doubt retry"]),
        (replace(PASSED, threshold=0.9), ["exit 3:", "below the threshold 0.9", "quintain view runs"]),
        (
            replace(with_totals(PASSED, graded=2, calls=4, max_calls=4, calls_left=4), is_budget_spent=True),
            ["exit 4:", "4 of 4 calls", "2 trials wait", f"{COMMAND} --max-calls 8"],
        ),
        (
            replace(with_totals(PASSED, graded=2, max_calls=20), is_budget_spent=True, spent_parent="0123456789ab"),
            ["PATCH /sessions/0123456789ab", f"{COMMAND} --max-calls 20"],
        ),
    ],
)
def test_the_last_line_says_the_exit_code_why_and_what_to_do_next(summary: RunSummary, said: list[str]) -> None:
    line = exit_line(summary, COMMAND)
    assert [words for words in said if words not in line] == []
    parked = replace(with_totals(PASSED, calls=30, max_calls=30, calls_left=7), is_budget_spent=True)
    assert exit_line(parked, f"{COMMAND} --max-calls 30 --json").endswith(f"{COMMAND} --json --max-calls 37")


def test_calls_that_no_row_accounts_for_are_said() -> None:
    assert unaccounted_calls_note(GOOD, None) is None
    some = GOOD.with_fields(calls_without_row=3)
    assert "3 of 8 calls are in no row" in str(unaccounted_calls_note(some, None))
    lines = [UsageLine(target="gpt", calls=5), UsageLine(target="gpt", grader=AGENTS, calls=2)]
    assert "2 were made by agents" in str(unaccounted_calls_note(some, Bill.of(lines)))
    only = str(unaccounted_calls_note(GOOD.with_fields(calls_without_row=2), Bill.of(lines)))
    assert "graders" not in only
