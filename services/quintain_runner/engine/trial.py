"""Runs one trial: calls the target, runs the graders on the answer, and returns one result row."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime

from quintain import logs
from quintain.contracts.invoke import NO_TOKENS, Result, TokenUsage
from quintain.errors import BudgetExhausted, Expired, Fault, TimedOut, WorkerLost
from quintain.telemetry import semconv
from quintain.telemetry.spans import span
from quintain_runner.graders.base import GradingContext
from quintain_runner.graders.retry import call_with_retry
from quintain_runner.results.row import BUDGET_EXHAUSTED, GraderRow, Row, RowError, RowStatus
from quintain_runner.spec.plan import Trial

#: Charged, and nobody knows what came of it.
_UNKNOWN_OUTCOMES = (TimedOut, WorkerLost, Expired)


@dataclass(frozen=True, slots=True)
class TrialOutcome:
    """What a trial left: a row, or none where the budget did not even let it ask."""

    row: Row | None
    budget_spent: bool = False


@dataclass(frozen=True, slots=True)
class _GraderResults:
    """What the graders left: their rows, what they spent, and why they ended early, if they did."""

    rows: dict[str, GraderRow]
    token_usage: TokenUsage
    error: RowError | None = None
    budget_spent: bool = False

    @property
    def calls(self) -> int:
        return sum(row.calls for row in self.rows.values())


async def run_trial(trial: Trial, context: GradingContext) -> TrialOutcome:
    """Run one trial to its row. Raises what is no `Fault`: a bus that is gone ends the run.

    It is a trace of its own, linked to the run's: a run of thousands in one trace would be more than anybody can show.
    """

    def span_attributes() -> semconv.SpanStart:
        return semconv.trial_span(logs.current_ids().get("runId"), trial.case.id, trial.target, trial.repeat)

    with span(span_attributes, new_trace=True) as trial_span:
        outcome = await _run_trial_steps(trial, context)
        if outcome.row is not None:
            trial_span.set_attributes({semconv.OUTCOME: outcome.row.status.value})
        return outcome


async def _run_trial_steps(trial: Trial, context: GradingContext) -> TrialOutcome:
    try:
        result = await _call_target(trial, context)
    except BudgetExhausted:
        return TrialOutcome(row=None, budget_spent=True)
    except Fault as fault:
        return TrialOutcome(row=_fault_row(trial, fault))
    if not result.replayed and not result.cached:
        trial = replace(trial, answered_at=datetime.now(UTC))
    grader_results = await _grade_all(trial, result, context)
    if grader_results.error is not None and await _is_budget_spent(context):
        grader_results = replace(
            grader_results, budget_spent=True, error=_budget_error(grader_results.error, context.max_calls)
        )
    return TrialOutcome(row=_graded_row(trial, result, grader_results), budget_spent=grader_results.budget_spent)


async def _call_target(trial: Trial, context: GradingContext) -> Result:
    request, request_id = trial.request, trial.request_id
    return await call_with_retry(
        lambda: context.session.send(request, request_id=request_id),
        lambda error: context.on_retry(trial.target, error),
    )


async def _grade_all(trial: Trial, result: Result, context: GradingContext) -> _GraderResults:
    """Every grader in its order, up to the first without a verdict: the row errs, so the others' calls are saved."""
    rows: dict[str, GraderRow] = {}
    usage = NO_TOKENS
    for grader in context.graders:
        try:
            grading = await grader.grade(trial, result, context)
        except Fault as fault:
            return _GraderResults(
                rows, usage, RowError(code=fault.code, error=f"grader {grader.name}: {fault.message}")
            )
        rows[grader.name] = grading.row
        usage += grading.token_usage
        if grading.row.error is not None:
            message = f"grader {grader.name}: {grading.row.error}"
            return _GraderResults(rows, usage, RowError(code=grading.error_code, error=message))
    return _GraderResults(rows, usage)


async def _is_budget_spent(context: GradingContext) -> bool:
    try:
        info = await context.session.get_info()
    except Fault:
        # The row errs either way, and the grader's own sentence is the better one.
        return False
    return info.call_count >= info.max_calls


def _budget_error(error: RowError, max_calls: int) -> RowError:
    message = f"The run's budget is spent (limit: {max_calls}), and {error.error}"
    return RowError(code=BUDGET_EXHAUSTED, error=message)


def _fault_row(trial: Trial, fault: Fault) -> Row:
    in_doubt = fault.charged and isinstance(fault, _UNKNOWN_OUTCOMES)
    earlier = _earlier_spending(trial)
    return Row(
        case_id=trial.case.id,
        target=trial.target,
        repeat=trial.repeat,
        tries=trial.tries,
        status=RowStatus.IN_DOUBT if in_doubt else RowStatus.ERROR,
        error=RowError(code=fault.code, error=fault.message),
        calls=earlier.calls + (0 if earlier.includes_this_call else int(fault.charged)),
        token_usage=earlier.token_usage,
    )


def _graded_row(trial: Trial, result: Result, grader_results: _GraderResults) -> Row:
    scores = [row.score for row in grader_results.rows.values() if row.score is not None]
    earlier = _earlier_spending(trial)
    call_usage = NO_TOKENS if earlier.includes_this_call else result.token_usage or NO_TOKENS
    return Row(
        case_id=trial.case.id,
        target=trial.target,
        repeat=trial.repeat,
        tries=trial.tries,
        status=RowStatus.ERROR if grader_results.error else RowStatus.GRADED,
        output=result.raw_text,
        score=None if grader_results.error else sum(scores) / len(scores),
        graders=grader_results.rows,
        error=grader_results.error,
        calls=earlier.calls + (0 if earlier.includes_this_call else 1) + grader_results.calls,
        token_usage=earlier.token_usage + call_usage + grader_results.token_usage,
        duration_ms=result.duration_ms,
    )


@dataclass(frozen=True, slots=True)
class _EarlierSpending:
    """What a trial's rows of before spent. ``includes_this_call``: this try's call is among it."""

    calls: int
    token_usage: TokenUsage
    includes_this_call: bool


def _earlier_spending(trial: Trial) -> _EarlierSpending:
    previous = trial.previous
    if previous is None:
        return _EarlierSpending(0, NO_TOKENS, includes_this_call=False)
    usage = TokenUsage(input=previous.input_tokens, output=previous.output_tokens)
    return _EarlierSpending(previous.calls, usage, includes_this_call=previous.answered)
