"""One trial: ask the target, let the graders look, and say what became of it as one row."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime

from quintain import logs
from quintain.contracts.invoke import NO_TOKENS, Result, TokenUsage
from quintain.errors import BudgetExhausted, Expired, Fault, TimedOut, WorkerLost
from quintain.telemetry import conventions
from quintain.telemetry.spans import span
from quintain_runner.grading import Bench
from quintain_runner.patience import patiently
from quintain_runner.plan import Trial
from quintain_runner.rows import BUDGET_EXHAUSTED, GraderRow, Row, RowError, Status

#: Charged, and nobody knows what came of it.
_UNKNOWN_OUTCOMES = (TimedOut, WorkerLost, Expired)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a trial left: a row, or none where the budget did not even let it ask."""

    row: Row | None
    budget_spent: bool = False


@dataclass(frozen=True, slots=True)
class _Grades:
    """What the graders left: their rows, what they spent, and why they ended early, if they did."""

    rows: dict[str, GraderRow]
    token_usage: TokenUsage
    error: RowError | None = None
    budget_spent: bool = False

    @property
    def calls(self) -> int:
        return sum(row.calls for row in self.rows.values())


async def run_trial(trial: Trial, bench: Bench) -> Outcome:
    """Run one trial to its row. Raises what is no `Fault`: a bus that is gone ends the run.

    It is a trace of its own, linked to the run's: a run of thousands in one trace would be more than anybody can show.
    """

    def opening() -> conventions.Opening:
        return conventions.trial(logs.ids().get("runId"), trial.case.id, trial.target, trial.repeat)

    with span(opening, apart=True) as trying:
        outcome = await _run_trial(trial, bench)
        if outcome.row is not None:
            trying.tell({conventions.OUTCOME: outcome.row.status.value})
        return outcome


async def _run_trial(trial: Trial, bench: Bench) -> Outcome:
    try:
        result = await _ask(trial, bench)
    except BudgetExhausted:
        return Outcome(row=None, budget_spent=True)
    except Fault as fault:
        return Outcome(row=_faulted(trial, fault))
    if not result.replayed and not result.cached:
        trial = replace(trial, answered_at=datetime.now(UTC))
    grades = await _grade_all(trial, result, bench)
    if grades.error is not None and await _is_spent(bench):
        grades = replace(grades, budget_spent=True, error=_for_want_of_budget(grades.error, bench.max_calls))
    return Outcome(row=_graded(trial, result, grades), budget_spent=grades.budget_spent)


async def _ask(trial: Trial, bench: Bench) -> Result:
    request, request_id = trial.request, trial.request_id
    return await patiently(
        lambda: bench.session.send(request, request_id=request_id),
        lambda error: bench.heard(trial.target, error),
    )


async def _grade_all(trial: Trial, result: Result, bench: Bench) -> _Grades:
    """Every grader in its order, up to the first without a verdict: the row errs, so the others' calls are saved."""
    rows: dict[str, GraderRow] = {}
    usage = NO_TOKENS
    for grader in bench.graders:
        try:
            graded = await grader.grade(trial, result, bench)
        except Fault as fault:
            return _Grades(rows, usage, RowError(code=fault.code, error=f"grader {grader.name}: {fault.message}"))
        rows[grader.name] = graded.row
        usage += graded.token_usage
        if graded.row.error is not None:
            sentence = f"grader {grader.name}: {graded.row.error}"
            return _Grades(rows, usage, RowError(code=graded.code, error=sentence))
    return _Grades(rows, usage)


async def _is_spent(bench: Bench) -> bool:
    try:
        info = await bench.session.get_info()
    except Fault:
        # The row errs either way, and the grader's own sentence is the better one.
        return False
    return info.call_count >= info.max_calls


def _for_want_of_budget(error: RowError, max_calls: int) -> RowError:
    sentence = f"The run's budget is spent (limit: {max_calls}), and {error.error}"
    return RowError(code=BUDGET_EXHAUSTED, error=sentence)


def _faulted(trial: Trial, fault: Fault) -> Row:
    in_doubt = fault.charged and isinstance(fault, _UNKNOWN_OUTCOMES)
    before = _spent_before(trial)
    return Row(
        case_id=trial.case.id,
        target=trial.target,
        repeat=trial.repeat,
        tries=trial.tries,
        status=Status.IN_DOUBT if in_doubt else Status.ERROR,
        error=RowError(code=fault.code, error=fault.message),
        calls=before.calls + (0 if before.has_call else int(fault.charged)),
        token_usage=before.token_usage,
    )


def _graded(trial: Trial, result: Result, grades: _Grades) -> Row:
    scores = [row.score for row in grades.rows.values() if row.score is not None]
    before = _spent_before(trial)
    asking = NO_TOKENS if before.has_call else result.token_usage or NO_TOKENS
    return Row(
        case_id=trial.case.id,
        target=trial.target,
        repeat=trial.repeat,
        tries=trial.tries,
        status=Status.ERROR if grades.error else Status.GRADED,
        output=result.raw_text,
        score=None if grades.error else sum(scores) / len(scores),
        graders=grades.rows,
        error=grades.error,
        calls=before.calls + (0 if before.has_call else 1) + grades.calls,
        token_usage=before.token_usage + asking + grades.token_usage,
        duration_ms=result.duration_ms,
    )


@dataclass(frozen=True, slots=True)
class _Before:
    """What a trial's rows of before spent. ``has_call``: this try's call is among it."""

    calls: int
    token_usage: TokenUsage
    has_call: bool


def _spent_before(trial: Trial) -> _Before:
    mark = trial.before
    if mark is None:
        return _Before(0, NO_TOKENS, has_call=False)
    usage = TokenUsage(input=mark.input_tokens, output=mark.output_tokens)
    return _Before(mark.calls, usage, has_call=mark.answered)
