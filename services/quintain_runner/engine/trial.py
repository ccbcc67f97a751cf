"""Executes one trial: reserves its calls, calls the target, runs the graders, and returns one result row."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial

from quintain.contracts.invoke import NO_TOKENS, Result, TokenUsage
from quintain.errors import BudgetExhausted, BusError, ConfigError, Fault, ReplyExpired
from quintain.observe import logs, semconv
from quintain.observe.spans import span
from quintain_runner.graders.base import GradingContext, PlannedCalls, ReservedSession, call_with_retry, is_in_doubt
from quintain_runner.plan.changes import reusable_grader_row
from quintain_runner.plan.trials import Trial
from quintain_runner.results.counts import count_most_calls
from quintain_runner.results.row import (
    BUDGET_EXHAUSTED,
    TARGET_CHANGED,
    Answer,
    GraderRow,
    Row,
    RowCase,
    RowError,
    RowStatus,
    target_changed_text,
)

#: How long a reservation of calls lasts, and the interval at which it is renewed, in seconds.
RESERVATION_SECONDS, RENEWAL_SECONDS = 1200.0, 300.0


@dataclass(slots=True)
class _Reservation:
    """The calls that are reserved for one trial, by request id, and the sessions of its graders, by name."""

    request_ids: list[str] = field(default_factory=list)
    sessions: dict[str, ReservedSession] = field(default_factory=dict)


class TrialBudget:
    """Decides whether the budget is enough for a whole trial.

    ``is_scarce`` says whether calls are reserved at all: not if the budget is enough for everything. ``most_calls`` are
    the most calls that one execution of each grader has made; a grader without a limit of its own is assumed to make as
    many, at first 1.
    """

    def __init__(self, context: GradingContext, *, is_scarce: bool, most_calls: Counter[str] | None = None) -> None:
        self.context, self.is_scarce = context, is_scarce
        self._most_calls = Counter() if most_calls is None else most_calls
        self._reserving_count = 0
        self._released = asyncio.Event()
        self._queue = asyncio.Lock()

    def add_row(self, row: Row) -> None:
        """Note how many calls the row's graders made."""
        count_most_calls(self._most_calls, row)

    @asynccontextmanager
    async def reserved(self, trial: Trial) -> AsyncIterator[GradingContext]:
        """Reserve the calls of a trial, and give the context that its graders run in; give back at the end what they
        did not use.

        Waits while other trials have reserved calls that they may not use. Raises `BudgetExhausted` if the calls are
        not there, and any other `Fault` of reserving them.
        """
        planned = self.planned_calls(trial) if self.is_scarce else {}
        if not planned:
            yield self.context
            return
        reservation = await self._wait_for_reservation(trial, planned)
        self._reserving_count += 1
        is_over = asyncio.Event()
        renewal = asyncio.create_task(self._renew(reservation.request_ids, is_over))
        try:
            yield replace(self.context, sessions=reservation.sessions)
        finally:
            is_over.set()
            await asyncio.wait([renewal])
            await self._release(reservation)
            self._reserving_count -= 1
            self._released.set()

    def planned_calls(self, trial: Trial) -> dict[str, PlannedCalls]:
        """The calls of the graders that have to run, by their names."""
        fingerprints = self.context.fingerprints
        planned = {
            grader.name: grader.planned_calls(trial, self.context, self._most_calls.get(grader.name, 1))
            for grader in self.context.graders
            if reusable_grader_row(trial.kept, grader.name, trial.fingerprints, fingerprints) is None
        }
        return {name: calls for name, calls in planned.items() if calls is not None}

    async def _wait_for_reservation(self, trial: Trial, planned: dict[str, PlannedCalls]) -> _Reservation:
        if not self._queue.locked():
            with contextlib.suppress(BudgetExhausted):
                return await self._reserve(trial, planned)
        # One trial waits at a time, so that calls are not divided among many that all lack some.
        async with self._queue:
            while True:
                self._released.clear()
                try:
                    return await self._reserve(trial, planned)
                except BudgetExhausted:
                    if not self._reserving_count:
                        raise
                await self._released.wait()

    async def _reserve(self, trial: Trial, planned: dict[str, PlannedCalls]) -> _Reservation:
        """Reserve all calls or none. A part is given back where the rest is refused."""
        reservation, session = _Reservation(), self.context.session
        own_ids = [calls.request_id for calls in planned.values() if calls.request_id is not None]
        request_ids = own_ids if trial.kept is not None else [trial.request_id, *own_ids]
        try:
            if request_ids and await self._reserve_ids(request_ids):
                reservation.request_ids = request_ids
            for name, calls in planned.items():
                if (request := calls.session) is not None:
                    opened = await call_with_retry(partial(session.open_child, request))
                    reservation.sessions[name] = ReservedSession.of(opened, request)
        except BaseException:
            await self._release(reservation)
            raise
        return reservation

    async def _reserve_ids(self, request_ids: Sequence[str]) -> bool:
        """Reserve calls by their ids. Returns False over HTTP, where that is not possible."""
        session = self.context.session
        try:
            await call_with_retry(lambda: session.reserve_ids(request_ids, deadline_seconds=RESERVATION_SECONDS))
        except ConfigError:
            return False
        return True

    async def _renew(self, request_ids: Sequence[str], is_over: asyncio.Event) -> None:
        """Renew the reservation of calls until the trial is over; a failure is repeated at the next interval."""
        while request_ids:
            try:
                await asyncio.wait_for(is_over.wait(), RENEWAL_SECONDS)
            except TimeoutError:
                with contextlib.suppress(Fault, BusError):
                    await self._reserve_ids(request_ids)
            else:
                return

    async def _release(self, reservation: _Reservation) -> None:
        """Give back what was not used. What cannot be given back now ends with its deadline."""
        for reserved in reservation.sessions.values():
            with contextlib.suppress(Fault, BusError):
                await self.context.client_of(reserved.opened.token).close_session()
        with contextlib.suppress(Fault, BusError):
            await self.context.session.release(reservation.request_ids)


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


async def run_trial(trial: Trial, context: GradingContext, budget: TrialBudget | None = None) -> TrialOutcome:
    """Execute one trial and return its row; a `Fault` becomes an error row, every other error is raised.

    ``budget`` reserves its calls first; without it none are reserved.

    The trial is traced in a trace of its own, linked to the trace of the run, because one trace of thousands of trials
    would be too large to display.
    """

    def span_attributes() -> semconv.SpanStart:
        return semconv.trial_span(logs.current_ids().get("runId"), trial.case.id, trial.target, trial.repeat)

    with span(span_attributes, new_trace=True) as trial_span:
        outcome = await _run_reserved(trial, context, budget)
        if (row := outcome.row) is None:
            return outcome
        trial_span.set_attributes({semconv.OUTCOME: row.status.value})
        return TrialOutcome(context.scoring.applied_to(row, trial.case), outcome.budget_spent, outcome.target_fault)


async def _run_reserved(trial: Trial, context: GradingContext, budget: TrialBudget | None) -> TrialOutcome:
    """Reserve the calls of the trial and of its graders, and execute it."""
    if budget is None or not budget.is_scarce:
        return await _run_trial_steps(trial, context)
    try:
        async with budget.reserved(trial) as reserved_context:
            return await _run_trial_steps(trial, reserved_context)
    except BudgetExhausted:
        return TrialOutcome(row=None, budget_spent=True)
    except Fault as fault:
        return TrialOutcome(row=_ungraded_row(trial, RowError(code=fault.code, error=fault.message)))


async def _run_trial_steps(trial: Trial, context: GradingContext) -> TrialOutcome:
    """Call the target, run the graders, and build the row."""
    request_id, result = trial.request_id, None if trial.kept is None else trial.kept.result
    try:
        if result is None:
            result = await call_with_retry(
                lambda: context.session.send(
                    trial.request, request_id=request_id, deadline_seconds=context.deadline_seconds(trial.target)
                ),
                lambda error: context.on_retry(trial.column, error),
                lambda error: context.waits.goes_on(trial.target, error),
            )
    except ReplyExpired:
        return await _run_trial_steps(trial.after_expired_reply(), context)
    except BudgetExhausted:
        return TrialOutcome(row=None, budget_spent=True)
    except Fault as fault:
        error = RowError(
            code=fault.code, error=fault.message, request_id=request_id, provider_error=fault.provider_error
        )
        row = _ungraded_row(trial, error, calls=int(fault.charged is not False), in_doubt=is_in_doubt(fault))
        return TrialOutcome(row=row, target_fault=fault)
    planned = trial.fingerprints.target
    if planned is not None and result.target_fingerprint != planned:
        error = RowError(code=TARGET_CHANGED, error=target_changed_text(trial.target), request_id=request_id)
        return TrialOutcome(row=_ungraded_row(trial, error, calls=1, token_usage=result.token_usage or NO_TOKENS))
    if not result.replayed and not result.cached:
        trial = replace(trial, answered_at=datetime.now(UTC))
    grader_results = await _grade_all(trial, result, context)
    failure = grader_results.error
    if failure is not None and (
        failure.code == BUDGET_EXHAUSTED or (grader_results.may_lack_budget and await _is_budget_spent(context))
    ):
        grader_results = replace(grader_results, budget_spent=True, error=_budget_error(failure, context.max_calls))
    return TrialOutcome(_graded_row(trial, request_id, result, grader_results), grader_results.budget_spent)


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
        rows[grader.name] = grading.row.with_fields(fingerprint=fingerprints.get(grader.name), generation=generation)
        usage += grading.token_usage
        calls += grading.row.calls
        if grading.row.error is not None:
            message = f"grader {grader.name}: {grading.row.error}"
            error = RowError(code=grading.error_code, error=message)
            return _GraderResults(
                rows, usage, calls, error, in_doubt=grading.in_doubt, may_lack_budget=grading.may_lack_budget
            )
    return _GraderResults(rows, usage, calls)


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
    trial: Trial, error: RowError, *, calls: int = 0, token_usage: TokenUsage = NO_TOKENS, in_doubt: bool = False
) -> Row:
    """The row of a trial without a usable answer; ``calls`` of its target were charged, or perhaps charged, now."""
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
    )


def _graded_row(trial: Trial, request_id: str, result: Result, grader_results: _GraderResults) -> Row:
    """The row of a trial whose target answered, not yet with its score: the graders' verdicts, or the error of one."""
    failed = RowStatus.IN_DOUBT if grader_results.in_doubt else RowStatus.ERROR
    # The earlier rows include the call of a kept answer.
    call_usage = NO_TOKENS if trial.kept else result.token_usage or NO_TOKENS
    return Row(
        case_id=trial.case.id,
        target=trial.target,
        prompt=trial.prompt,
        repeat=trial.repeat,
        tries=trial.tries,
        status=failed if grader_results.error else RowStatus.GRADED,
        case=RowCase.of(trial.case),
        output=result.raw_text,
        graders=grader_results.rows,
        error=grader_results.error,
        calls=trial.earlier_calls + (0 if trial.kept else 1) + grader_results.calls,
        token_usage=trial.earlier_usage + call_usage + grader_results.token_usage,
        duration_ms=result.duration_ms,
        fingerprints=trial.fingerprints,
        answer=(trial.kept and trial.kept.answer) or Answer.of(result, request_id),
        stale=list(trial.stale) or None,
        stale_kept=bool(trial.stale),
    )
