"""Executes one trial: calls the target, runs the graders on the answer, and returns one result row."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime

from quintain import logs
from quintain.contracts.invoke import NO_TOKENS, Result, TokenUsage
from quintain.errors import BudgetExhausted, Expired, Fault, ReplyExpired, TimedOut, WorkerLost
from quintain.telemetry import semconv
from quintain.telemetry.spans import span
from quintain_runner.engine.trial_budget import TrialBudget
from quintain_runner.graders.base import GradingContext
from quintain_runner.graders.requirements import makes_no_calls
from quintain_runner.graders.retry import call_with_retry
from quintain_runner.plan.changes import reusable_grader_row
from quintain_runner.plan.trials import Trial
from quintain_runner.results.row import (
    BUDGET_EXHAUSTED,
    TARGET_CHANGED,
    GraderRow,
    Row,
    RowError,
    RowStatus,
    target_changed_text,
)
from quintain_runner.results.row_content import Answer, RowCase

#: Faults after which the outcome of a charged call is unknown.
_UNKNOWN_OUTCOMES = (TimedOut, WorkerLost, Expired)


@dataclass(frozen=True, slots=True)
class TrialOutcome:
    """The result of a trial: its row, or None if the budget was spent before the target could be called.

    ``target_fault`` is the fault that the call of the target ended with; None if the target answered.
    """

    row: Row | None
    budget_spent: bool = False
    target_fault: Fault | None = None


@dataclass(frozen=True, slots=True)
class _GraderResults:
    """The results of a trial's graders.

    ``rows`` are by grader name. ``token_usage`` and ``calls`` are those of the graders that ran now.
    ``error`` is the error of the grader after which grading stopped, or None.
    ``budget_spent`` says whether that was for lack of budget.
    """

    rows: dict[str, GraderRow]
    token_usage: TokenUsage
    calls: int
    error: RowError | None = None
    budget_spent: bool = False


async def run_trial(trial: Trial, context: GradingContext, budget: TrialBudget | None = None) -> TrialOutcome:
    """Execute one trial and return its row; a `Fault` becomes an error row, every other error is raised.

    ``budget`` reserves its calls first; without it, or where the budget is enough for everything, none are reserved.

    The trial is traced in a trace of its own, linked to the trace of the run, because one trace of thousands of trials
    would be too large to display.
    """

    def span_attributes() -> semconv.SpanStart:
        return semconv.trial_span(logs.current_ids().get("runId"), trial.case.id, trial.target, trial.repeat)

    with span(span_attributes, new_trace=True) as trial_span:
        outcome = await _run_reserved(trial, context, budget)
        if outcome.row is not None:
            row = context.scoring.applied_to(outcome.row, trial.case)
            outcome = replace(outcome, row=row)
            trial_span.set_attributes({semconv.OUTCOME: row.status.value})
        return outcome


async def _run_reserved(trial: Trial, context: GradingContext, budget: TrialBudget | None) -> TrialOutcome:
    """Reserve the calls of the trial and of its graders, and execute it."""
    if budget is None:
        return await _run_trial_steps(trial, context)
    try:
        async with budget.reserved(trial) as reserved_context:
            return await _run_trial_steps(trial, reserved_context)
    except BudgetExhausted:
        return TrialOutcome(row=None, budget_spent=True)
    except Fault as fault:
        return TrialOutcome(row=_fault_row(trial, RowError(code=fault.code, error=fault.message), fault))


async def _run_trial_steps(trial: Trial, context: GradingContext) -> TrialOutcome:
    """Call the target, run the graders, and build the row."""
    try:
        kept = None if trial.kept is None else trial.kept.result
        result = kept or await _call_target(trial, context)
    except ReplyExpired:
        return await _run_trial_steps(trial.after_expired_reply(), context)
    except BudgetExhausted:
        return TrialOutcome(row=None, budget_spent=True)
    except Fault as fault:
        error = RowError(
            code=fault.code, error=fault.message, request_id=trial.request_id, provider_error=fault.provider_error
        )
        return TrialOutcome(row=_fault_row(trial, error, fault), target_fault=fault)
    if trial.target_fingerprint is not None and result.target_fingerprint != trial.target_fingerprint:
        error = RowError(code=TARGET_CHANGED, error=target_changed_text(trial.target), request_id=trial.request_id)
        return TrialOutcome(row=_fault_row(trial, error, result))
    if not result.replayed and not result.cached:
        trial = replace(trial, answered_at=datetime.now(UTC))
    grader_results = await _grade_all(trial, result, context)
    if (
        grader_results.error is not None
        and _may_lack_budget(grader_results, context)
        and await _is_budget_spent(context)
    ):
        grader_results = replace(
            grader_results, budget_spent=True, error=_budget_error(grader_results.error, context.max_calls)
        )
    return TrialOutcome(row=_graded_row(trial, result, grader_results), budget_spent=grader_results.budget_spent)


async def _call_target(trial: Trial, context: GradingContext) -> Result:
    """Call the target, with retries, under the trial's request id."""
    request, request_id = trial.request, trial.request_id
    return await call_with_retry(
        lambda: context.session.send(request, request_id=request_id),
        lambda error: context.on_retry(trial.column, error),
    )


async def _grade_all(trial: Trial, result: Result, context: GradingContext) -> _GraderResults:
    """Run the graders in order up to the first that fails: the row is an error then, so the calls of the others are
    saved. A verdict of the kept row is reused if nothing that made it has changed.
    """
    rows: dict[str, GraderRow] = {}
    usage, calls = NO_TOKENS, 0
    fingerprints, generation = context.fingerprints.graders_of(trial.target), context.fingerprints.generation
    for grader in context.graders:
        kept = reusable_grader_row(trial.kept, grader.name, trial.fingerprints, context.fingerprints)
        if kept is not None:
            rows[grader.name] = kept
            continue
        try:
            grading = await grader.grade(trial, result, context)
        except Fault as fault:
            return _GraderResults(
                rows, usage, calls, RowError(code=fault.code, error=f"grader {grader.name}: {fault.message}")
            )
        rows[grader.name] = grading.row.model_copy(
            update={"fingerprint": fingerprints.get(grader.name), "generation": generation}
        )
        usage += grading.token_usage
        calls += grading.row.calls
        if grading.row.error is not None:
            message = f"grader {grader.name}: {grading.row.error}"
            return _GraderResults(rows, usage, calls, RowError(code=grading.error_code, error=message))
    return _GraderResults(rows, usage, calls)


def _may_lack_budget(grader_results: _GraderResults, context: GradingContext) -> bool:
    """Whether a spent budget can be the reason of a grader's failure.

    It cannot if that grader makes no calls, or has made fewer than were reserved for it.
    """
    failed = {name: row for name, row in grader_results.rows.items() if row.error is not None}
    if any(makes_no_calls(grader) for grader in context.graders if grader.name in failed):
        return False
    reserved = {name: context.sessions[name].calls for name in failed if name in context.sessions}
    return all(failed[name].calls >= calls for name, calls in reserved.items())


async def _is_budget_spent(context: GradingContext) -> bool:
    """Whether the session has no calls left; False if its counters cannot be read."""
    try:
        info = await context.session.get_info()
    except Fault:
        # The row is an error in both cases, and the grader's own message is more useful than this one.
        return False
    return info.call_count >= info.max_calls


def _budget_error(error: RowError, max_calls: int) -> RowError:
    """The error of a grader that failed when the budget was spent."""
    message = f"The run's budget is spent (limit: {max_calls}): {error.error}"
    return RowError(code=BUDGET_EXHAUSTED, error=message)


def _fault_row(trial: Trial, error: RowError, answer: Fault | Result) -> Row:
    """The row of a trial without a usable answer: a fault, or a result of a different configuration."""
    is_unknown = isinstance(answer, Fault) and answer.charged is None
    in_doubt = is_unknown or (isinstance(answer, _UNKNOWN_OUTCOMES) and answer.charged)
    earlier = _earlier_spending(trial)
    usage = (answer.token_usage if isinstance(answer, Result) else None) or NO_TOKENS
    return Row(
        case_id=trial.case.id,
        target=trial.target,
        prompt=trial.prompt,
        repeat=trial.repeat,
        tries=trial.tries,
        status=RowStatus.IN_DOUBT if in_doubt else RowStatus.ERROR,
        case=RowCase.of(trial.case),
        error=error,
        calls=earlier.calls + int(isinstance(answer, Result) or answer.charged is not False),
        token_usage=earlier.token_usage + usage,
        fingerprints=trial.fingerprints,
    )


def _graded_row(trial: Trial, result: Result, grader_results: _GraderResults) -> Row:
    """The row of a trial whose target answered, not yet with its score: the graders' verdicts, or the error of one."""
    earlier = _earlier_spending(trial)
    call_usage = NO_TOKENS if earlier.includes_this_call else result.token_usage or NO_TOKENS
    return Row(
        case_id=trial.case.id,
        target=trial.target,
        prompt=trial.prompt,
        repeat=trial.repeat,
        tries=trial.tries,
        status=RowStatus.ERROR if grader_results.error else RowStatus.GRADED,
        case=RowCase.of(trial.case),
        output=result.raw_text,
        graders=grader_results.rows,
        error=grader_results.error,
        calls=earlier.calls + (0 if earlier.includes_this_call else 1) + grader_results.calls,
        token_usage=earlier.token_usage + call_usage + grader_results.token_usage,
        duration_ms=result.duration_ms,
        fingerprints=trial.fingerprints,
        answer=(trial.kept and trial.kept.answer) or Answer.of(result, trial.request_id),
        stale=list(trial.stale) or None,
        stale_kept=bool(trial.stale),
    )


@dataclass(frozen=True, slots=True)
class _EarlierSpending:
    """The calls and tokens of a trial's earlier rows.

    ``includes_this_call`` says whether the call of this try is among them: the target answered before.
    """

    calls: int
    token_usage: TokenUsage
    includes_this_call: bool


def _earlier_spending(trial: Trial) -> _EarlierSpending:
    """Read the earlier spending of a trial from its previous row."""
    previous = trial.previous
    if previous is None:
        return _EarlierSpending(0, NO_TOKENS, includes_this_call=False)
    usage = TokenUsage(input=previous.input_tokens, output=previous.output_tokens)
    return _EarlierSpending(previous.calls, usage, includes_this_call=trial.kept is not None)
