"""The counts, the exit code, and the last line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from quintain.contracts.invoke import TokenUsage
from quintain.contracts.metadata import Info, SessionState
from quintain_runner.closing import closing_table, last_line
from quintain_runner.rows import GraderRow, Key, Mark, Row, RowError, Status
from quintain_runner.summary import Counts, ExitCode, RunSummary, calls_to_finish, summarize
from quintain_runner.tally import Board

GOOD = Counts(
    trials=4, graded=4, passed=3, errors=0, in_doubt=0, mean_score=0.75, calls=8, input_tokens=40, output_tokens=8
)
PASSED = RunSummary(
    cases=4,
    per_target={"bot": GOOD},
    total=GOOD,
    calls=8,
    max_calls=100,
    threshold=0.7,
    parked=False,
    results=Path("runs/eval/results.jsonl"),
)
COMMAND = "quintain run eval.yaml"


def row(case_id: str, score: float, *, target: str = "bot") -> Row:
    graders = {"g": GraderRow(score=score, passed=score >= 0.5)}
    usage = TokenUsage(input=10, output=1)
    return Row(
        case_id=case_id,
        target=target,
        repeat=1,
        status=Status.GRADED,
        score=score,
        graders=graders,
        calls=2,
        token_usage=usage,
    )


def errored(case_id: str) -> Row:
    error = RowError(code="provider_error", error="it failed")
    return Row(case_id=case_id, target="bot", repeat=1, status=Status.ERROR, error=error, calls=1)


def counted(summary: RunSummary, **changes: int | float | None) -> RunSummary:
    return replace(summary, total=replace(summary.total, **changes))  # type: ignore[arg-type]


def text_of_table(summary: RunSummary) -> str:
    console = Console(width=200, no_color=True)
    with console.capture() as capture:
        console.print(closing_table(summary))
    return capture.get()


def test_rows_are_counted_per_target_and_the_ledger_has_the_last_word_on_calls() -> None:
    board = Board(["bot", "other"], cases=3, repeats=1, kept={})
    for one in (row("1", 1.0), row("2", 0.0), errored("3"), row("1", 0.5, target="other")):
        board.add(one)
    info = Info(
        session_id="s",
        target_name="bot",
        max_calls=50,
        call_count=12,
        available_targets=["bot"],
        token_usage=TokenUsage(),
        state=SessionState.OPEN,
        now=0,
    )
    summary = summarize(board, info, threshold=None, parked=False, results=Path("r"))
    bot = summary.per_target["bot"]
    assert (bot.trials, bot.graded, bot.passed, bot.errors, bot.waiting) == (3, 2, 1, 1, 0)
    assert (bot.mean_score, bot.calls, bot.input_tokens) == (0.5, 5, 20)
    assert summary.per_target["other"].waiting == 2
    assert (summary.total.mean_score, summary.total.calls) == (0.5, 7)
    assert (summary.calls, summary.max_calls) == (12, 50)


def test_a_row_that_supersedes_an_errored_one_takes_its_place_in_the_counts() -> None:
    board = Board(["bot"], cases=1, repeats=1, kept={Key("1", "bot", 1): Mark.of(errored("1"))})
    assert (board.tallies["bot"].errors, board.done) == (1, 1)
    board.add(row("1", 1.0))
    tally = board.tallies["bot"]
    assert (tally.errors, tally.graded, tally.calls, board.done) == (0, 1, 2, 1)


def test_kept_rows_of_targets_and_repeats_that_are_not_asked_are_not_counted() -> None:
    kept = {Key("1", "bot", 2): Mark.of(row("1", 1.0)), Key("1", "other", 1): Mark.of(row("1", 1.0))}
    assert Board(["bot"], cases=1, repeats=1, kept=kept).done == 0


def test_the_mean_does_not_depend_on_the_order_in_which_cases_end() -> None:
    scores = [0.1, 0.2, 0.3, 0.7, 1 / 3, 0.9, 1e-9]
    means = set()
    for order in (scores, scores[::-1], scores[3:] + scores[:3]):
        board = Board(["bot"], cases=len(scores), repeats=1, kept={})
        for number, score in enumerate(order):
            board.add(row(str(number), score))
        means.add(board.tallies["bot"].mean_score)
    assert len(means) == 1


@pytest.mark.parametrize(
    ("summary", "code"),
    [
        (PASSED, ExitCode.PASSED),
        (replace(PASSED, threshold=None), ExitCode.PASSED),
        (replace(PASSED, threshold=0.75), ExitCode.PASSED),
        (replace(PASSED, threshold=0.76), ExitCode.BELOW_THRESHOLD),
        (counted(PASSED, mean_score=0.7 - 1e-16), ExitCode.PASSED),
        (counted(PASSED, errors=1, mean_score=0.1), ExitCode.ERRORS),
        (counted(PASSED, in_doubt=1), ExitCode.ERRORS),
        (replace(counted(PASSED, errors=1), parked=True), ExitCode.BUDGET_SPENT),
    ],
)
def test_the_exit_code_is_the_first_that_holds(summary: RunSummary, code: ExitCode) -> None:
    assert summary.exit_code is code


@pytest.mark.parametrize(
    ("summary", "said"),
    [
        (PASSED, ["exit 0: mean score 0.750, threshold 0.7", "runs/eval/results.jsonl"]),
        (counted(PASSED, errors=1), ["exit 1: 1 of 4 trials erred", COMMAND]),
        (counted(PASSED, in_doubt=2), ["exit 1: 2 of 4 trials are in doubt", "grep inDoubt runs/eval/results.jsonl"]),
        (replace(PASSED, threshold=0.9), ["exit 3:", "below the threshold 0.9", "grep '\"pass\":false' runs/"]),
        (
            replace(counted(PASSED, graded=2, calls=4), parked=True, calls=4, max_calls=4),
            ["exit 4: the budget is spent (4 of 4 calls), 2 trials wait", f"{COMMAND} --max-calls 8"],
        ),
    ],
)
def test_the_last_line_says_the_exit_code_why_and_what_to_do_next(summary: RunSummary, said: list[str]) -> None:
    line = last_line(summary, COMMAND)
    assert [words for words in said if words not in line] == []


def test_what_finishing_costs_is_reckoned_from_what_was_spent() -> None:
    parked = replace(counted(PASSED, trials=10, graded=3, errors=1, calls=6), parked=True, calls=6, max_calls=6)
    assert calls_to_finish(parked) == 6 + 11
    nothing = counted(PASSED, trials=10, graded=0, errors=0, calls=0)
    assert calls_to_finish(replace(nothing, calls=0, max_calls=0)) == 10


def test_the_closing_table_has_a_row_for_each_target_and_one_for_all() -> None:
    both = replace(PASSED, per_target={"bot": GOOD, "[red]evil\x1b[2J": GOOD})
    text = text_of_table(both)
    for words in ("target", "cases", "passed", "mean score", "calls", "tokens", "3/4", "0.750", "40/8"):
        assert words in text
    assert "[red]evil" in text
    assert "\x1b" not in text
    assert "│ all " in text
    assert "4 x 2" in text_of_table(replace(PASSED, per_target={"bot": replace(GOOD, trials=8)}))
    assert "│ all " not in text_of_table(PASSED)
