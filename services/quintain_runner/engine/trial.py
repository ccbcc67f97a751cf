"""Executes one trial: calls the target, runs the graders, and returns one result row."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime

from quintain.contracts.invoke import NO_TOKENS, Result, TokenUsage
from quintain.errors import BudgetExhausted, Fault, ReplyExpired
from quintain.observe import logs, semconv
from quintain.observe.spans import span
from quintain_runner.engine.conversation import MayGoOn, always, hold_conversation
from quintain_runner.engine.trial_budget import TrialBudget
from quintain_runner.graders.base import GradingContext, final_verdict, is_in_doubt
from quintain_runner.plan.address import AnswerMissing, NumberedRequest, Saved
from quintain_runner.plan.changes import unchanged_grader_row
from quintain_runner.plan.conversation import TrialConversation
from quintain_runner.plan.trials import Trial
from quintain_runner.results.answer import Answer, ConversationRow, steps_of_turns
from quintain_runner.results.row import BUDGET_EXHAUSTED, GraderRow, Row, RowCase, RowError, RowStatus


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
    ``error`` is the error of the grader after which grading stopped, or None. ``in_doubt`` says whether a call of that
    grader may have been charged without an answer, ``may_lack_budget`` whether one may have been refused for the run's
    budget, and ``budget_spent`` whether it failed for lack of budget.
    """

    rows: dict[str, GraderRow]
    token_usage: TokenUsage
    calls: int
    error: RowError | None = None
    in_doubt: bool = False
    may_lack_budget: bool = False
    budget_spent: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answered:
    """The answer of a trial's target, and what it took now to get it; of a conversation, the last answer and all of it.

    ``result`` is what graders are given, and ``answer`` what the row keeps.
    """

    result: Result
    answer: Answer
    calls: int = 1
    token_usage: TokenUsage = NO_TOKENS
    conversation: ConversationRow | None = None


async def run_trial(
    trial: Trial, context: GradingContext, budget: TrialBudget | None = None, may_go_on: MayGoOn = always
) -> TrialOutcome:
    """Execute one trial and return its row; a `Fault` becomes an error row, every other error is raised.

    ``budget`` reserves its calls first; without it none are reserved. ``may_go_on`` is asked before each turn of a
    conversation but the first.

    The trial is traced in a trace of its own, linked to the trace of the run, because one trace of thousands of trials
    would be too large to display.
    """

    def span_attributes() -> semconv.SpanStart:
        return semconv.trial_span(logs.current_ids().get("runId"), trial.case.id, trial.target, trial.repeat)

    with span(span_attributes, new_trace=True) as trial_span:
        if context.answers.has_some:
            context = replace(context, saved=Saved(has_row=trial.previous is not None))
        outcome = await _run_reserved(trial, context, budget, may_go_on)
        if (row := outcome.row) is None:
            return outcome
        trial_span.set_attributes({semconv.OUTCOME: row.status.value})
        before = trial.kept
        row = context.scoring.applied_to(row, trial.case).with_fields(
            cached=context.saved.answers + (0 if before is None else before.cached),
            saved_usd=context.saved.usd + (0.0 if before is None else before.saved_usd),
        )
        return TrialOutcome(row, outcome.budget_spent, outcome.target_fault)


async def _run_reserved(
    trial: Trial, context: GradingContext, budget: TrialBudget | None, may_go_on: MayGoOn
) -> TrialOutcome:
    """Reserve the calls of the trial and of its graders, unless stored answers are enough, and execute it."""
    if budget is None or not budget.is_scarce:
        return await _run_trial_steps(trial, context, may_go_on)
    if context.answers.has_some:
        try:
            return await _run_trial_steps(trial, replace(context, only_stored=True), always)
        except* AnswerMissing:
            context.saved.answers, context.saved.usd = 0, 0.0
    try:
        async with budget.reserved(trial) as reserved:
            return await _run_trial_steps(trial, replace(reserved, saved=context.saved), may_go_on)
    except BudgetExhausted:
        return TrialOutcome(row=None, budget_spent=True)
    except Fault as fault:
        return TrialOutcome(row=_ungraded_row(trial, RowError(code=fault.code, error=fault.message)))


async def _run_trial_steps(trial: Trial, context: GradingContext, may_go_on: MayGoOn) -> TrialOutcome:
    """Call the target, run the graders, and build the row."""
    if (kept := trial.kept) is not None and kept.result is not None and kept.answer is not None:
        if kept.conversation is not None:
            trial = replace(trial, conversation=TrialConversation.of_row(trial.case, kept))
        asked = _Answered(result=kept.result, answer=kept.answer, calls=0, conversation=kept.conversation)
        return await _grade(trial, asked, context)
    if trial.case.is_conversation:
        return await _run_conversation(trial, context, may_go_on)
    return await _run_one_call(trial, context)


async def _run_conversation(trial: Trial, context: GradingContext, may_go_on: MayGoOn) -> TrialOutcome:
    """Hold the conversation, run the graders, and build the row."""
    held = await hold_conversation(trial, context, may_go_on)
    if held.expired:
        return await _run_conversation(trial.after_expired_reply(held.calls + 1), context, may_go_on)
    if held.budget_spent:
        return TrialOutcome(row=None, budget_spent=True)
    conversation, row = held.conversation, held.row
    turns = conversation.turns
    duration_ms = sum(turn.duration_ms for turn in turns)
    if held.error is not None:
        ungraded = _ungraded_row(
            trial, held.error, calls=held.calls, token_usage=held.usage, in_doubt=held.in_doubt, conversation=row
        )
        duration_ms += (held.fault and held.fault.duration_ms) or 0
        return TrialOutcome(row=ungraded.with_fields(duration_ms=duration_ms), target_fault=held.fault)
    last = turns[-1]
    assert last.answer is not None, "a turn of a conversation that was held has its answer"
    result = held.last or last.answer.to_result(last.output or "", trial.target)
    steps, cut = steps_of_turns(turns)
    result = result.with_fields(duration_ms=duration_ms, steps=steps, steps_cut=cut)
    if not result.replayed and not result.cached:
        trial = replace(trial, answered_at=datetime.now(UTC))
    asked = _Answered(result=result, answer=last.answer, calls=held.calls, token_usage=held.usage, conversation=row)
    return await _grade(replace(trial, conversation=conversation), asked, context)


async def _run_one_call(trial: Trial, context: GradingContext) -> TrialOutcome:
    """Call the target once, run the graders, and build the row."""
    request_id = trial.request_id
    try:
        result = await context.ask(
            NumberedRequest(trial.request, trial.number, trial.times_asked), request_id, column=trial.column
        )
    except ReplyExpired:
        return await _run_one_call(trial.after_expired_reply(), context)
    except BudgetExhausted:
        return TrialOutcome(row=None, budget_spent=True)
    except Fault as fault:
        failure = RowError.of_call(fault, request_id)
        row = _ungraded_row(trial, failure, calls=int(fault.charged is not False), in_doubt=is_in_doubt(fault))
        return TrialOutcome(row=row.with_fields(duration_ms=fault.duration_ms or 0), target_fault=fault)
    calls, usage = (0, NO_TOKENS) if result.cached else (1, result.token_usage or NO_TOKENS)
    if (error := RowError.of_change(trial.target, trial.fingerprints.target, result, request_id)) is not None:
        row = _ungraded_row(trial, error, calls=calls, token_usage=usage)
        return TrialOutcome(row=row.with_fields(duration_ms=result.duration_ms))
    if not result.replayed and not result.cached:
        trial = replace(trial, answered_at=datetime.now(UTC))
    answer = Answer.of(result, request_id)
    return await _grade(trial, _Answered(result=result, answer=answer, calls=calls, token_usage=usage), context)


async def _grade(trial: Trial, asked: _Answered, context: GradingContext) -> TrialOutcome:
    """Run the graders, and build the row; where calls lack for a comparison, the row before it stays."""
    grader_results = await _grade_all(trial, asked.result, context)
    failure = grader_results.error
    if failure is not None and (
        failure.code == BUDGET_EXHAUSTED or (grader_results.may_lack_budget and await _is_budget_spent(context))
    ):
        if trial.opponents:
            return TrialOutcome(row=None, budget_spent=True)
        grader_results = replace(grader_results, budget_spent=True, error=_budget_error(failure, context.max_calls))
    rows, kept = grader_results.rows, _kept_verdicts(trial, context)
    grader_results = replace(grader_results, rows={**kept, **rows} if trial.opponents else {**rows, **kept})
    return TrialOutcome(_graded_row(trial, asked, grader_results), grader_results.budget_spent)


async def _grade_all(trial: Trial, result: Result, context: GradingContext) -> _GraderResults:
    """Run the graders in order up to the first that fails: the row is an error then, so the calls of the others are
    saved. A verdict of the kept row is reused if nothing that made it has changed.
    """
    rows: dict[str, GraderRow] = {}
    usage, calls = NO_TOKENS, 0
    fingerprints = context.fingerprints.graders_of(trial.target, trial.case)
    generation = context.fingerprints.generation
    for grader in context.graders_of(trial):
        kept = context.reusable(trial, grader.name)
        if kept is not None:
            rows[grader.name] = kept
            continue
        try:
            grading = await grader.grade(trial, result, context)
        except Fault as fault:
            return _GraderResults(
                rows, usage, calls, RowError(code=fault.code, error=f"grader {grader.name}: {fault.message}")
            )
        rows[grader.name] = final_verdict(grader.spec, grading.row).with_fields(
            fingerprint=fingerprints.get(grader.name), generation=generation
        )
        usage += grading.token_usage
        calls += grading.calls
        if grading.row.error is not None:
            message = f"grader {grader.name}: {grading.row.error}"
            error = RowError(code=grading.error_code, error=message)
            return _GraderResults(
                rows, usage, calls, error, in_doubt=grading.in_doubt, may_lack_budget=grading.may_lack_budget
            )
    return _GraderResults(rows, usage, calls)


def _kept_verdicts(trial: Trial, context: GradingContext) -> dict[str, GraderRow]:
    """The verdicts of the kept row that its graders do not give now: comparisons are made apart from all others, and a
    command may leave graders out."""
    if (kept := trial.kept) is None:
        return {}
    keeps_others = context.fingerprints.keeps_other_graders and kept.fingerprints.grading == trial.fingerprints.grading
    running, fingerprints = {grader.name for grader in context.graders_of(trial)}, context.fingerprints
    selected = fingerprints.graders_of(trial.target, trial.case)
    return {
        name: verdict
        for name, verdict in kept.graders.items()
        if name not in running
        and (
            trial.opponents
            or (keeps_others and name not in selected)
            or (
                name in fingerprints.pairwise_graders
                and unchanged_grader_row(kept, name, trial.fingerprints, fingerprints) is not None
            )
        )
    }


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
    # The words of a refusal name its limit, of calls or of money; a grader's own do not.
    limit = "" if error.code == BUDGET_EXHAUSTED else f" (limit: {max_calls})"
    return RowError(code=BUDGET_EXHAUSTED, error=f"The run's budget is spent{limit}: {error.error}")


def _ungraded_row(
    trial: Trial,
    error: RowError,
    *,
    calls: int = 0,
    token_usage: TokenUsage = NO_TOKENS,
    in_doubt: bool = False,
    conversation: ConversationRow | None = None,
) -> Row:
    """The row of a trial without a usable answer; ``calls`` of its target may have been charged now."""
    return Row(
        case_id=trial.case.id,
        target=trial.target,
        prompt=trial.prompt,
        repeat=trial.repeat,
        tries=trial.tries,
        status=RowStatus.IN_DOUBT if in_doubt else RowStatus.ERROR,
        case=RowCase.of(trial.case),
        error=error,
        calls=trial.earlier_calls + calls,
        token_usage=trial.earlier_usage + token_usage,
        fingerprints=trial.fingerprints,
        conversation=conversation,
    )


def _graded_row(trial: Trial, asked: _Answered, grader_results: _GraderResults) -> Row:
    """The row of a trial whose target answered, not yet with its score: the graders' verdicts, or the error of one."""
    failed = RowStatus.IN_DOUBT if grader_results.in_doubt else RowStatus.ERROR
    return Row(
        case_id=trial.case.id,
        target=trial.target,
        prompt=trial.prompt,
        repeat=trial.repeat,
        tries=trial.tries,
        status=failed if grader_results.error else RowStatus.GRADED,
        case=RowCase.of(trial.case),
        output=asked.result.raw_text,
        graders=grader_results.rows,
        error=grader_results.error,
        calls=trial.earlier_calls + asked.calls + grader_results.calls,
        token_usage=trial.earlier_usage + asked.token_usage + grader_results.token_usage,
        duration_ms=asked.result.duration_ms,
        fingerprints=trial.fingerprints,
        answer=asked.answer,
        conversation=asked.conversation,
    )
