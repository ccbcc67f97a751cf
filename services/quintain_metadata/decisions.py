"""Decides admits and settles by the rows that were read for them, and lists what is to be written. No I/O.

Every transition is one of the table in `lifecycle`. The rows are changed in memory with each decision, so that the
next one is decided as if it came after it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import Enum, auto

from quintain.contracts.credentials import CallProof, SessionToken
from quintain.contracts.invoke import FaultReply, TokenUsage
from quintain.contracts.ledger import Admission, Admit, AttemptOutcome, Settle
from quintain.errors import Cancelled, Expired, Fault, Unauthorized
from quintain_metadata import attempts, call_rows, replies, sessions
from quintain_metadata.attempts import AttemptRow, WorkerRow
from quintain_metadata.call_counter import Counters
from quintain_metadata.call_rows import CallKey, CallRow
from quintain_metadata.lifecycle import (
    MAX_DEADLINE_AHEAD_MS,
    CallState,
    LifecycleEvent,
    Transition,
    TransitionEffect,
    admit_event,
    refund_event,
    transition,
)
from quintain_metadata.session_rows import SessionRow, require_authorized, require_authorized_for
from quintain_metadata.store import Moment, SqlProgram, SqlValue, for_each


class DeferReason(Enum):
    """Why an admit must wait."""

    #: Another attempt runs the call; it waits for its end.
    CALL = auto()
    #: The target is at its fleet-wide limit, or paused; it waits for a free slot or the end of the pause.
    TARGET = auto()
    #: The worker has no valid lease; it waits for its heartbeat.
    LEASE = auto()


@dataclass(frozen=True, slots=True)
class Deferred:
    """An admit that must wait. ``deadline`` is the call's if it were granted now, in milliseconds since the epoch."""

    session_id: str
    request_id: str
    target: str
    reason: DeferReason
    deadline: int
    #: Whether it takes over a call that is charged already; it is granted before new calls.
    is_takeover: bool = False

    @property
    def is_duplicate(self) -> bool:
        """Whether it is a duplicate of a running call."""
        return self.reason is DeferReason.CALL


@dataclass(frozen=True, slots=True)
class Replay:
    """An admit that is answered with the stored answer of its call."""

    session: SessionRow
    call: CallRow
    attempt_id: str


#: How long a duplicate counts as waiting, in milliseconds: its worker repeats its admit every 3 s, and two may be lost.
DUPLICATE_WAIT_MS = 10_000


@dataclass(frozen=True, slots=True)
class Requester:
    """Who asks for an attempt. ``after_others``: other admits wait for the target, so that a new call waits too."""

    request: Admit
    credential: SessionToken | CallProof
    incarnation: str
    after_others: bool


@dataclass(slots=True)
class Rows:
    """What operations are decided by. ``capacities`` are how many more calls may run, of targets with a limit."""

    sessions: dict[str, SessionRow]
    calls: dict[CallKey, CallRow]
    attempts: dict[str, AttemptRow]
    workers: dict[str, WorkerRow]
    capacities: dict[str, int]


class Decisions:
    """The decisions on several operations of different calls, one after another, and what they write."""

    def __init__(self, moment: Moment, rows: Rows) -> None:
        self._moment, self._rows = moment, rows
        self._counters = Counters(rows.sessions)
        self._running: Counter[tuple[str, str]] = Counter()
        self._written: dict[str, list[tuple[SqlValue, ...]]] = {}

    def write(self) -> SqlProgram[None]:
        """Write what was decided, each kind of row with one statement for all."""
        for sql, parameters in self._written.items():
            yield from for_each(sql, parameters)
        # Sorted, so that two services lock the rows in one order.
        running = [(*key, count) for key, count in sorted(self._running.items()) if count]
        yield from for_each(call_rows.COUNT_RUNNING_SQL, running)
        yield from self._counters.write()

    def admit(self, requester: Requester) -> Admission | Deferred | Replay:
        """Decide whether an attempt may run: a grant, the stored answer, or `Deferred`.

        Raises the `Fault` that refuses it. The checks are in the protocol's order: token, body, target, request id, the
        call's state, deadline, budget. A refusal releases the call's reservation.
        """
        request = requester.request
        session = self._authenticate(requester)
        call = self._rows.calls.get((session.id, request.request_id))
        if call is None or call.state is not CallState.RESERVED:
            return self._decide_admission(requester, session, call)
        try:
            return self._decide_admission(requester, session, call)
        except Fault as refusal:
            self._apply(call, transition(call.state, LifecycleEvent.RELEASED), None)
            return Admission(attempt_id=request.attempt_id, fault=FaultReply.from_fault(refusal))

    def _authenticate(self, requester: Requester) -> SessionRow:
        credential = requester.credential
        session = self._rows.sessions.get(credential.id)
        try:
            return require_authorized(self._moment.now, credential, session)
        except Unauthorized:
            if not isinstance(credential, CallProof):
                raise
            call = self._rows.calls.get((credential.id, requester.request.request_id))
            target = None if call is None or not call.target else call.target
            return require_authorized_for(self._moment.now, credential, session, target)

    def _decide_admission(
        self, requester: Requester, session: SessionRow, call: CallRow | None
    ) -> Admission | Deferred | Replay:
        request = requester.request
        sessions.require_valid(request, session, call)
        if call is None:
            return self._start_attempt(requester, session, None, transition(CallState.NONE, LifecycleEvent.ADMITTED))
        is_alive = self._is_lease_valid(call.incarnation)
        is_lost = call.state is CallState.RUNNING and not is_alive
        lost = attempts.with_loss(call, self._lost_calls(call)) if is_lost else call
        event = admit_event(
            call.state,
            current=call.attempt_id == request.attempt_id,
            attempts_left=lost.counted_attempts < attempts.MAX_ATTEMPTS,
            holder_alive=is_alive,
            past_deadline=call.deadline <= self._moment.now,
            cancelled=call.is_cancelled,
        )
        change = transition(call.state, event)
        match change.effect:
            case TransitionEffect.HELD:
                # So that it cannot be cancelled meanwhile, unless it already is.
                joined = (self._moment.now + DUPLICATE_WAIT_MS, call.session_id, call.request_id)
                self._write(call_rows.JOIN_SQL, *joined)
                return self._deferred(request, session, DeferReason.CALL)
            case TransitionEffect.REPLAYED:
                return Replay(session, call, request.attempt_id)
            case TransitionEffect.REFUSED:
                raise Cancelled
        if event is LifecycleEvent.LOST:
            fault = FaultReply.from_fault(attempts.fault_of_loss(call, self._lost_calls(call)))
            self._record_loss(call)
            self._apply(call, change, fault.to_wire().decode())
            return Admission(attempt_id=request.attempt_id, fault=fault)
        if event is LifecycleEvent.ADMITTED_AGAIN:
            # Another attempt may take over from a holder whose lease has lapsed; if none did, it goes on after its
            # renewal.
            return self._grant(session, call) if is_alive else self._deferred(request, session, DeferReason.LEASE)
        return self._start_attempt(requester, session, lost, change)

    def _start_attempt(
        self, requester: Requester, session: SessionRow, call: CallRow | None, change: Transition
    ) -> Admission | Deferred:
        """Start an attempt: the only place where a call becomes running."""
        request, incarnation = requester.request, requester.incarnation
        is_running = call is not None and call.state is CallState.RUNNING
        if not is_running:
            # A takeover is not a new call: it was charged already, and a pause of the session does not end it.
            sessions.require_not_paused(session)
        deadline = call.deadline if call is not None and is_running else self._deadline(request, session)
        if deadline <= self._moment.now:
            raise Expired("The deadline passed before a worker was free")
        if request.attempt_id in self._rows.attempts:
            raise Cancelled("Its worker gave up this attempt before it was granted")
        if not self._is_lease_valid(incarnation):
            return self._deferred(request, session, DeferReason.LEASE)
        is_full = self._rows.capacities.get(request.target, 1) <= 0
        if is_full or (requester.after_others and not is_running):
            key = (session.id, request.request_id, request.target)
            return Deferred(*key, DeferReason.TARGET, deadline, is_takeover=is_running)
        if call is not None and is_running and not request.alone and self._must_be_alone(call):
            return Admission(attempt_id=request.attempt_id, must_be_alone=True)
        call_count = self._counters.charge(session) if change.used else self._counters.used(session)
        if call is not None:
            self._replace_attempt(call)
        started = CallRow(
            session.id,
            request.request_id,
            request.body_sha256,
            request.target,
            change.to,
            (0 if call is None else call.attempts) + change.attempts,
            request.attempt_id,
            incarnation,
            deadline,
            call_count,
            fault=None,
            uncounted_attempts=0 if call is None else call.uncounted_attempts,
        )
        self._write(call_rows.START_CALL_SQL, *call_rows.start_parameters(self._moment, started))
        self._running[request.target, incarnation] += 1
        if request.target in self._rows.capacities:
            self._rows.capacities[request.target] -= 1
        return self._grant(session, started)

    def settle(self, settlement: Settle) -> tuple[CallRow | None, Transition]:
        """Record the outcome of an attempt; returns the call as it was and the transition.

        A result of any attempt commits the call, even if another attempt has taken over.
        """
        call = self._rows.calls.get((settlement.session_id, settlement.request_id))
        row = self._rows.attempts.get(settlement.attempt_id)
        is_holder = call is not None and call.attempt_id == settlement.attempt_id
        if call is None or (row is None and not is_holder) or (row is not None and row.state == "void"):
            change = Transition(CallState.NONE, effect=TransitionEffect.NOTED)
            if settlement.outcome is AttemptOutcome.NEVER_SENT:
                # A later grant has no effect.
                key = (settlement.attempt_id, settlement.session_id, settlement.request_id)
                self._write(attempts.INSERT_ATTEMPT_SQL, *key, 0, "", "void", self._moment.now)
                # With a fault the caller was refused; without one the call returned to its queue.
                change = change if settlement.fault is None else self._release_if_reserved(call)
            return call, change
        change = transition(call.state, self._settle_event(settlement, call))
        self._record_outcome(call, settlement)
        if change.effect is TransitionEffect.NOTED:
            return call, change
        session = self._rows.sessions[call.session_id]
        self._apply(call, change, replies.stored_fault(settlement, change), settlement.token_usage)
        if settlement.outcome is AttemptOutcome.RESULT and session.store_replies:
            stored = replies.reply_parameters(self._moment, call, settlement)
            if stored is not None:
                self._write(replies.STORE_REPLY_SQL, *stored)
        if settlement.token_usage is not None:
            self._counters.add_tokens(session, settlement.token_usage)
        return call, change

    def _settle_event(self, settlement: Settle, call: CallRow) -> LifecycleEvent:
        is_current = call.attempt_id == settlement.attempt_id
        match settlement.outcome:
            case AttemptOutcome.RESULT:
                return LifecycleEvent.ANSWERED
            case AttemptOutcome.CHARGED:
                return LifecycleEvent.CHARGED if is_current else LifecycleEvent.STALE
            case AttemptOutcome.IN_DOUBT:
                return LifecycleEvent.DOUBTED if is_current else LifecycleEvent.STALE
            case AttemptOutcome.REFUND | AttemptOutcome.NEVER_SENT:
                others = self._count_other_unproven(call, settlement.attempt_id)
                return refund_event(current=is_current, others_unproven=others > 0)

    def _record_outcome(self, call: CallRow, settlement: Settle) -> None:
        """Record the outcome of a granted attempt; one that was never sent becomes void and is not counted.

        The attempt that holds its call gets a row only where it was proven that nothing was billed.
        """
        state = {AttemptOutcome.NEVER_SENT: "void", AttemptOutcome.REFUND: "proven"}.get(settlement.outcome)
        if state is not None:
            row = (
                settlement.attempt_id,
                call.session_id,
                call.request_id,
                call.attempts,
                call.incarnation or "",
                state,
            )
            self._write(attempts.UPSERT_ATTEMPT_SQL, *row, self._moment.now)
        elif settlement.attempt_id in self._rows.attempts:
            self._write(attempts.RECORD_UNPROVEN_SQL, self._moment.now, settlement.attempt_id)
        if settlement.outcome is AttemptOutcome.NEVER_SENT:
            self._write(call_rows.UNCOUNT_ATTEMPT_SQL, call.session_id, call.request_id)

    def _release_if_reserved(self, call: CallRow | None) -> Transition:
        if call is None or call.state is not CallState.RESERVED:
            return Transition(CallState.NONE if call is None else call.state, effect=TransitionEffect.NOTED)
        change = transition(call.state, LifecycleEvent.RELEASED)
        self._apply(call, change, None)
        return change

    def _apply(
        self, call: CallRow, change: Transition, fault: str | None, token_usage: TokenUsage | None = None
    ) -> None:
        """Apply a transition; ``fault`` is the fault to store, as JSON."""
        parameters = call_rows.transition_parameters(self._moment, call, change, fault, token_usage)
        self._write(call_rows.TRANSITION_SQL, *parameters)
        if call.state is CallState.RUNNING and change.to is not CallState.RUNNING:
            assert call.incarnation is not None, "a running call is held by an attempt"
            self._running[call.target, call.incarnation] -= 1
        if change.used < 0:
            self._counters.refund(self._rows.sessions[call.session_id], -change.used)

    def _replace_attempt(self, call: CallRow) -> None:
        """Give the attempt that held this call a row, before another attempt holds it; one that runs is lost."""
        if call.state is CallState.RUNNING:
            assert call.incarnation is not None, "a running call is held by an attempt"
            self._record_loss(call)
            self._running[call.target, call.incarnation] -= 1
        if call.attempt_id is not None:
            row = (call.attempt_id, call.session_id, call.request_id, call.attempts, call.incarnation or "", "running")
            self._write(attempts.INSERT_ATTEMPT_SQL, *row, self._moment.now)
            self._rows.attempts.setdefault(
                call.attempt_id, AttemptRow(call.attempt_id, call.session_id, call.request_id, "running")
            )

    def _record_loss(self, call: CallRow) -> None:
        """Record how many calls ran at the holder of this one, which is gone, before it is no longer counted there."""
        if call.incarnation in self._rows.workers:
            self._write(attempts.RECORD_LOSS_SQL, self._lost_calls(call), call.incarnation)

    def _lost_calls(self, call: CallRow) -> int:
        worker = self._rows.workers.get(call.incarnation or "")
        return 0 if worker is None else worker.lost_calls

    def _is_lease_valid(self, incarnation: str | None) -> bool:
        worker = self._rows.workers.get(incarnation or "")
        return worker is not None and worker.lease_until > self._moment.lease_expiry_cutoff

    def _must_be_alone(self, call: CallRow) -> bool:
        """Whether a running call whose holder is gone may be taken over only where nothing runs beside it.

        Of a running call each attempt that is not proven unbilled was lost with its worker, the holder among them.
        """
        assert call.attempt_id is not None, "a running call is held by an attempt"
        return self._count_other_unproven(call, call.attempt_id) + 1 >= attempts.LOSSES_BEFORE_ALONE

    def _count_other_unproven(self, call: CallRow, attempt_id: str) -> int:
        """Return how many attempts may have been billed beside this one, which holds the call: each has a row."""
        if call.attempts <= 1:
            return 0
        return sum(
            row.session_id == call.session_id
            and row.request_id == call.request_id
            and row.id != attempt_id
            and row.state not in {"proven", "void"}
            for row in self._rows.attempts.values()
        )

    def _deferred(self, request: Admit, session: SessionRow, reason: DeferReason) -> Deferred:
        return Deferred(session.id, request.request_id, request.target, reason, self._deadline(request, session))

    def _deadline(self, request: Admit, session: SessionRow) -> int:
        now = self._moment.now
        requested = now + session.deadline_ms if request.deadline is None else request.deadline
        return min(requested, now + MAX_DEADLINE_AHEAD_MS)

    def _grant(self, session: SessionRow, call: CallRow) -> Admission:
        assert call.attempt_id is not None, "a running call is held by an attempt"
        return Admission.unchecked(
            attempt_id=call.attempt_id,
            attempt=call.attempts,
            deadline=call.deadline,
            call_count=call.call_count,
            max_calls=session.max_calls,
            store_replies=bool(session.store_replies),
            unproven=self._count_other_unproven(call, call.attempt_id) > 0,
            ignore_unsupported=bool(session.ignore_unsupported),
            max_body_bytes=session.max_body_bytes,
            replay=None,
            fault=None,
            must_be_alone=None,
        )

    def _write(self, sql: str, *parameters: SqlValue) -> None:
        self._written.setdefault(sql, []).append(parameters)
