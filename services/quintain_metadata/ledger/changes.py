"""Changes calls in memory, by the rows that were read for them, and writes what changed. No I/O.

Every transition is one of the table in `lifecycle`. Counters change with each call, so that the next one is decided as
if it came after it.
"""

from __future__ import annotations

from quintain.contracts.invoke import FaultReply, TokenUsage
from quintain.contracts.ledger import AttemptOutcome, Settle
from quintain.errors import Cancelled, Fault, TimedOut, WorkerLost
from quintain_metadata.ledger import call_rows
from quintain_metadata.ledger.call_rows import NO_COUNTS, AttemptCounts, CallKey, CallRow, Rows
from quintain_metadata.ledger.lifecycle import (
    MAX_ATTEMPTS,
    MAX_UNCOUNTED_ATTEMPTS,
    TRANSITIONS,
    CallState,
    LifecycleEvent,
    Transition,
    TransitionEffect,
    cancel_event,
    release_event,
)
from quintain_metadata.ledger.session_rows import TOKEN_KINDS, CostChange, Counters, clamp_token_counts
from quintain_metadata.ledger.targets import MAX_PAUSE_MS, MIN_PAUSE_SECONDS, PAUSE_TARGET_SQL
from quintain_metadata.store.base import ForEach, Moment, SqlProgram, SqlValue

_NO_TOKENS = (None,) * len(TOKEN_KINDS)


class Changes:
    """The changes of several calls, one after another; each call may be changed once."""

    def __init__(self, moment: Moment, rows: Rows) -> None:
        self.moment, self.rows = moment, rows
        self.counters = Counters(rows.sessions)
        #: The sessions for whose money calls wait that were decided before.
        self.short_payers = set[str]()
        self._written: dict[str, list[tuple[SqlValue, ...]]] = {}
        #: By how much more tries of targets cost than what was reserved for them, in picodollars.
        self._bound_excess: dict[str, int] = {}

    def write(self) -> SqlProgram[None]:
        """Write what was decided, each kind of row with one statement for all."""
        for sql, parameters in self._written.items():
            yield ForEach(sql, parameters)
        wrong = [(excess, target, excess) for target, excess in self._bound_excess.items()]
        yield ForEach(call_rows.RECORD_EXCESS_SQL, wrong)
        yield from self.counters.write()

    def start(self, call: CallRow, before: CallRow | None) -> None:
        """Make a call running that is new, or that another attempt held ``before``."""
        if before is not None:
            self._replace_attempt(before)
        now = self.moment.now
        told = (*call[:10], call.uncounted_attempts, call.cost, call.counted_tries, call.grader, now, now)
        self.add(call_rows.START_CALL_SQL, *told)

    def reserve(self, key: CallKey, deadline: int) -> int:
        """Reserve a call, or renew its reservation until the later deadline; returns how many calls that charges.

        One with a row that is not released costs nothing; nor does one that is cancelled, which stays so.
        """
        call, now = self.rows.calls.get(key), self.moment.now
        change = TRANSITIONS[CallState.NONE if call is None else call.state, LifecycleEvent.RESERVED]
        if change.effect is TransitionEffect.NOTED or (call is not None and call.is_cancelled):
            return 0
        later = deadline if call is None else max(deadline, call.deadline)
        self.add(call_rows.RESERVE_SQL, *key, change.to, later, now, now)
        return change.used

    def release(self, call: CallRow) -> Transition:
        """End a call's reservation, if it is still only reserved; returns the transition.

        It is in doubt, with the fault `TimedOut`, where it waits for its next try and an earlier one may have been
        billed.
        """
        change = TRANSITIONS[call.state, release_event(unproven=self.count_unproven(call) > 0)]
        if change.effect is not TransitionEffect.NOTED:
            fault = FaultReply.from_fault(TimedOut()).to_wire().decode() if change.to is CallState.IN_DOUBT else None
            self.apply(call, change, fault)
        return change

    def count_unproven(self, call: CallRow, *, but: str | None = None) -> int:
        """Return how many attempts with a row may have been billed, beside this one."""
        attempts = self.rows.attempts.get((call.session_id, call.request_id))
        if not attempts:
            return 0
        return sum(each != but and state not in {"proven", "void"} for each, state in attempts.items())

    def cancel(self, key: CallKey) -> Transition:
        """Mark a call as cancelled, known or not; returns the transition, which is noted where nothing is marked.

        A call that does not run is refused when it is admitted, and its reservation ends. One that another delivery
        waits for, that has ended or that is marked already is left alone.
        """
        call, now = self.rows.calls.get(key), self.moment.now
        if call is None:
            change = TRANSITIONS[CallState.NONE, LifecycleEvent.CANCELLED]
        else:
            is_joined = call.state is CallState.RUNNING and call.joined_until > now
            is_unproven = call.state is CallState.RESERVED and self.count_unproven(call) > 0
            event = cancel_event(cancelled=call.is_cancelled, joined=is_joined, unproven=is_unproven)
            change = TRANSITIONS[call.state, event]
        if change.effect is not TransitionEffect.NOTED:
            self.add(call_rows.CANCEL_SQL, *key, change.to, now, now, now)
            if change.to is CallState.IN_DOUBT:
                fault = FaultReply.from_fault(Cancelled(charged=True)).to_wire().decode()
                self.add(call_rows.STORE_FAULT_SQL, fault, *key)
            if change.used < 0:
                self.counters.refund(self.rows.sessions[key[0]], -change.used)
        return change

    def end_lost(self, call: CallRow, refusal: Fault | None = None) -> Fault:
        """Mark a running call as in doubt, whose holder or whose settle is lost, and which no attempt may take over.

        ``refusal`` says why not, where that is neither the deadline nor the number of attempts. Returns its fault.
        """
        holder = self.rows.holder(call)
        fault: Fault = TimedOut()
        if call.is_cancelled:
            fault = Cancelled(charged=True)
        elif not holder.is_alive:
            lost = with_loss(call, holder.lost_calls)
            if refusal is not None:
                fault = WorkerLost(f"Its worker was lost, and no further attempt may be made: {refusal.message}")
            elif lost.attempts - lost.uncounted_attempts >= MAX_ATTEMPTS:
                fault = WorkerLost()
        if not holder.is_alive:
            self.add(call_rows.RECORD_LOSS_SQL, holder.lost_calls, call.incarnation)
        change = TRANSITIONS[call.state, LifecycleEvent.LOST]
        self.apply(call, change, FaultReply.from_fault(fault).to_wire().decode())
        return fault

    def apply(
        self,
        call: CallRow,
        change: Transition,
        fault: str | None,
        token_usage: TokenUsage | None = None,
        counts: AttemptCounts = NO_COUNTS,
        *,
        is_reported: bool = False,
    ) -> None:
        """Apply a transition; ``fault`` is the fault to store, as JSON.

        ``counts`` are added to the call's. ``is_reported``: the attempt that holds it, or held it last, tells its end.
        """
        tokens = _NO_TOKENS if token_usage is None else clamp_token_counts(token_usage)
        key = (call.session_id, call.request_id, call.state)
        left, lost = (0, 0) if is_reported else (call.cost, call.lost)
        if call.state is CallState.RUNNING and change.to is not CallState.RUNNING and not is_reported:
            counts, lost = counts.plus(self._lose_attempt(call)), 1
        self.add(call_rows.TRANSITION_SQL, change.to, fault, left, lost, self.moment.now, *tokens, *counts, *key)
        if change.used < 0:
            self.counters.refund(self.rows.sessions[call.session_id], -change.used)

    def count_settled(self, call: CallRow, settlement: Settle, *, was_lost: bool) -> AttemptCounts:
        """Count the requests of an attempt, and settle what was reserved for it, by what its worker knows of its bill.

        ``was_lost``: it was counted as lost before, and reports for the first time. Returns what is added to its call;
        nothing for the repetition of a settlement.
        """
        is_holder = call.attempt_id == settlement.attempt_id
        is_reserved = is_holder and call.state is CallState.RUNNING
        if not (is_reserved or was_lost):
            return NO_COUNTS
        amount = call.cost if is_holder else self.rows.attempt_costs.get(settlement.attempt_id, 0)
        counts, billed = _settled_counts(settlement, amount), billed_cost(settlement) or 0
        if counts.held:
            self.add(call_rows.HELD_FOR_SQL, _held_for(settlement), call.session_id, call.request_id)
        if was_lost:
            counts = counts.plus(_lost_counts(amount), times=-1)
            if is_holder:
                self.add(call_rows.RESOLVE_CALL_COST_SQL, call.session_id, call.request_id)
            else:
                self.add(call_rows.RESOLVE_ATTEMPT_COST_SQL, settlement.attempt_id)
        spent = billed if not amount else min(billed, amount)
        change = CostChange(spent, counts.held, -amount if is_reserved else 0, billed - spent, counts.unknown)
        self._count(call, counts, change)
        if billed > spent and not settlement.is_estimate:
            self._bound_excess[call.target] = max(billed - spent, self._bound_excess.get(call.target, 0))
        return counts

    def wait_for_next_try(self, call: CallRow, retry_after_ms: int, *, is_counted: bool) -> None:
        """Note that a try of a call failed, and how many milliseconds from now its next one begins at the earliest."""
        tries = call.counted_tries + is_counted
        self.add(call_rows.RETRY_SQL, tries, self.moment.now + retry_after_ms, call.session_id, call.request_id)

    def pause(self, target: str, settlement: Settle) -> None:
        """Pause a target whose provider asks for that in a try that failed, unless the governor of its quota does."""
        rates = None if settlement.report is None or settlement.fault is None else settlement.report.rates
        seconds = 0.0 if rates is None else rates.retry_after_seconds or 0.0
        if seconds > MIN_PAUSE_SECONDS:
            until = self.moment.now + min(int(seconds * 1000), MAX_PAUSE_MS)
            self.add(PAUSE_TARGET_SQL, until, target, until)

    def add_counts(self, call: CallRow, counts: AttemptCounts) -> None:
        """Add to the counters of a call that no transition changes."""
        if counts != NO_COUNTS:
            self.add(call_rows.COUNT_SQL, *counts, call.session_id, call.request_id)

    def _lose_attempt(self, call: CallRow) -> AttemptCounts:
        """Count a running attempt that nobody has heard the end of; returns what is added to its call."""
        counts = _lost_counts(call.cost)
        if counts.held:
            self.add(call_rows.HELD_FOR_SQL, WorkerLost.code, call.session_id, call.request_id)
        self._count(call, counts, CostChange(held=call.cost, reserved=-call.cost, unknown=counts.unknown))
        return counts

    def _count(self, call: CallRow, counts: AttemptCounts, change: CostChange) -> None:
        """Add what the end of an attempt changes: as if it was a lost one, so that take-overs rather wait than end."""
        session, lost = self.rows.sessions[call.session_id], self.rows.lost_costs
        self.counters.add_tries(session, counts.tries, counts.unproven)
        if not any(change):
            return
        self.counters.add_cost(session, change)
        for payer in (session, *session.ancestors):
            if payer.id in lost:
                lost[payer.id] += change.reserved

    def _replace_attempt(self, call: CallRow) -> None:
        """Give the attempt that held this call a row, before another attempt holds it; one that runs is lost."""
        if call.state is CallState.RUNNING:
            assert call.incarnation is not None, "a running call is held by an attempt"
            self.add(call_rows.RECORD_LOSS_SQL, self.rows.holder(call).lost_calls, call.incarnation)
            self.add_counts(call, self._lose_attempt(call))
        if call.attempt_id is not None:
            key = (call.session_id, call.request_id)
            held = (*key, call.attempts, call.incarnation or "", "running", self.moment.now, call.cost)
            self.add(call_rows.INSERT_ATTEMPT_SQL, call.attempt_id, *held)
            self.rows.attempts.setdefault(key, {}).setdefault(call.attempt_id, "running")

    def add(self, sql: str, *parameters: SqlValue) -> None:
        """Write with this statement too, for these parameters."""
        self._written.setdefault(sql, []).append(parameters)


def _held_for(settlement: Settle) -> str:
    """Return why the bill of an attempt is not known: the provider's HTTP status, or the code of the fault."""
    if (fault := settlement.fault) is None:
        return "no usage"
    status = None if fault.provider_error is None else fault.provider_error.status
    return fault.code if status is None else f"HTTP {status}"


def _lost_counts(amount: int) -> AttemptCounts:
    """Return what an attempt counts as that was lost: one request that may have been billed."""
    return AttemptCounts(tries=1, unproven=1, held=amount, unknown=0 if amount else 1)


def _settled_counts(settlement: Settle, amount: int) -> AttemptCounts:
    """Return what an attempt counts as, for which so many picodollars were reserved: for one try of unknown bill."""
    billed, unproven = billed_cost(settlement), settlement.unproven or 0
    if settlement.cost is not None and settlement.outcome is not AttemptOutcome.RESULT:
        unproven = 0  # the provider says what its failures cost
    unknown = unproven
    if billed is None:
        # An answer of unknown cost, besides the tries that failed before it.
        unknown = unproven + 1 if settlement.outcome is AttemptOutcome.RESULT else max(1, unproven)
    held = amount if billed is None else 0
    return AttemptCounts(settlement.tries, unproven, billed or 0, held, unknown - 1 if held else unknown)


def billed_cost(settlement: Settle) -> int | None:
    """Return what an attempt cost, in picodollars; None where that is unknown."""
    match settlement.outcome:
        case AttemptOutcome.REFUND | AttemptOutcome.NEVER_SENT:
            return 0
        case AttemptOutcome.RETRY:
            return settlement.cost if settlement.unproven else 0
    return settlement.cost


def with_loss(call: CallRow, lost_calls: int) -> CallRow:
    """Return a running call whose holder is gone, with the loss of its attempt counted or not.

    ``lost_calls``: how many calls the holder ran.
    """
    if lost_calls <= 1 or call.uncounted_attempts >= MAX_UNCOUNTED_ATTEMPTS:
        return call
    return call._replace(uncounted_attempts=call.uncounted_attempts + 1)
