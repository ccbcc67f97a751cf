"""Admits and settles the plain calls of a batch together, as `calls` would one after another.

Plain are the first attempts at calls that are new or reserved, and the results of running calls. A store with a single
writer decides them in memory by what it read at the beginning of the transaction, and writes each table with one
statement for all. What is not plain is left to `calls`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from quintain.contracts.invoke import TokenUsage
from quintain.contracts.ledger import Admission, Admit, AttemptOutcome, Settle
from quintain.errors import BudgetExhausted, Fault
from quintain_metadata import attempts, call_counter, call_rows, calls, replies, session_rows, sessions, targets
from quintain_metadata.call_counter import ChargedInMemory
from quintain_metadata.call_rows import CallRow
from quintain_metadata.calls import DeferReason, Deferred
from quintain_metadata.lifecycle import CallState, LifecycleEvent, Transition, transition
from quintain_metadata.session_rows import SessionRow
from quintain_metadata.store import (
    BatchProgram,
    BatchSteps,
    Moment,
    Row,
    SqlProgram,
    SqlValue,
    Statement,
    StatementForEach,
)

#: The session id and the request id of a call.
CallKey = tuple[str, str]

_Settled = tuple[CallRow | None, Transition]

#: The capacity of a target that is not registered, and so has no limit.
_UNLIMITED = 10**9


_START_NEW = transition(CallState.NONE, LifecycleEvent.ADMITTED)
_START_RESERVED = transition(CallState.RESERVED, LifecycleEvent.ADMITTED)
_ANSWERED = transition(CallState.RUNNING, LifecycleEvent.ANSWERED)


def _run_admits(moment: Moment, admits: Sequence[AdmitOperation]) -> BatchProgram[Admission | Deferred]:
    """Decide the admits up to the first that is not plain: those after it depend on what becomes of it."""
    batch = _AdmitBatch(moment)
    yield from batch.read(admits)
    outcomes: list[Admission | Deferred | Exception | None] = []
    for each in admits:
        try:
            outcome: Admission | Deferred | Exception | None = batch.decide(each)
        except BudgetExhausted as exhausted:
            outcome = exhausted
        if outcome is None:
            break
        outcomes.append(outcome)
    yield from batch.write()
    return outcomes + [None] * (len(admits) - len(outcomes))


class _AdmitBatch:
    """What a batch of admits is decided by, and the calls that were started so far."""

    def __init__(self, moment: Moment) -> None:
        self._moment = moment
        #: Attempt id → its session, where the admit is authorized.
        self._sessions: dict[str, SessionRow] = {}
        self._calls: dict[CallKey, CallRow] = {}
        #: Those that are not new.
        self._known_attempts: set[str] = set()
        self._incarnations: set[str] = set()
        self._capacities: dict[str, int] = {}
        self._charged = ChargedInMemory()
        self._started: dict[CallKey, CallRow] = {}

    def read(self, admits: Sequence[AdmitOperation]) -> BatchSteps[None]:
        """Read the sessions, calls, attempts, leases and capacities of these admits."""
        requests = [each.request for each in admits]
        rows = dict[str, SessionRow | None]()
        for request in requests:
            try:
                credential = request.credential()
                if credential.id not in rows:
                    rows[credential.id] = yield from session_rows.load_session(credential.id)
                session = session_rows.require_authorized(self._moment.now, credential, rows[credential.id])
                sessions.require_not_paused(session)
            except Fault:
                continue  # it is not plain
            self._sessions[request.attempt_id] = session
        authorized = [each for each in requests if each.attempt_id in self._sessions]
        keys = [(self._sessions[each.attempt_id].id, each.request_id) for each in authorized]
        self._calls = yield from _read_calls(keys)
        attempt_ids = Counter(each.attempt_id for each in requests)
        attempt_rows = yield from attempts.rows_of_attempts(list(attempt_ids))
        self._known_attempts = {attempt_id for attempt_id, count in attempt_ids.items() if count > 1}
        self._known_attempts.update(row[0] for row in attempt_rows)
        for incarnation in dict.fromkeys(each.incarnation for each in admits):
            if (yield from call_rows.is_lease_valid(self._moment, incarnation)):
                self._incarnations.add(incarnation)
        for target in dict.fromkeys(each.target for each in requests):
            capacity = yield from targets.free_capacity(self._moment, target)
            self._capacities[target] = _UNLIMITED if capacity is None else capacity

    def decide(self, admit: AdmitOperation) -> Admission | Deferred | None:
        """Decide an admit; None where it is not plain. Raises `BudgetExhausted`."""
        request, session = admit.request, self._sessions.get(admit.request.attempt_id)
        if session is None or admit.incarnation not in self._incarnations:
            return None
        key = (session.id, request.request_id)
        call = self._calls.get(key)
        deadline = calls.effective_deadline(self._moment, request, session)
        is_plain = call is None or (call.state is CallState.RESERVED and not call.attempts and not call.is_cancelled)
        if not is_plain or key in self._started or request.attempt_id in self._known_attempts:
            return None
        if deadline <= self._moment.now or not _is_valid(request, session, call):
            return None
        if admit.after_others or self._capacities[request.target] <= 0:
            return Deferred(*key, request.target, DeferReason.TARGET, deadline)
        change = _START_NEW if call is None else _START_RESERVED
        call_count = self._charged.charge(session) if change.used else self._charged.used(session)
        self._capacities[request.target] -= 1
        started = self._started[key] = CallRow(
            *key,
            request.body_sha256,
            request.target,
            change.to,
            change.attempts,
            request.attempt_id,
            admit.incarnation,
            deadline,
            call_count,
            fault=None,
        )
        return calls.granted(session, started, request.attempt_id, unproven=False)

    def write(self) -> BatchSteps[None]:
        """Write the calls that were started, and charge them."""
        started = self._started.values()
        yield from _for_each(
            call_rows.START_CALL_SQL, [call_rows.start_parameters(self._moment, call) for call in started]
        )
        yield from _count_running(started, +1)
        yield from self._charged.write()


def _is_valid(request: Admit, session: SessionRow, call: CallRow | None) -> bool:
    try:
        calls.require_valid(request, session, call)
    except Fault:
        return False
    return True


def _run_settles(moment: Moment, settles: Sequence[SettleOperation]) -> BatchProgram[_Settled]:
    """Apply the results of the attempts that hold their calls. Settles of different calls do not depend on each other.

    Such an attempt was granted, and it needs no row to count as unproven.
    """
    settlements = [each.settlement for each in settles]
    keys = [(each.session_id, each.request_id) for each in settlements]
    found = yield from _read_calls(keys)
    times = Counter(keys)
    results = [
        (settlement, found[key])
        for settlement, key in zip(settlements, keys, strict=True)
        if times[key] == 1
        and key in found
        and found[key].state is CallState.RUNNING
        and settlement.outcome is AttemptOutcome.RESULT
        and found[key].attempt_id == settlement.attempt_id
    ]
    yield from _write_results(moment, results, _ANSWERED)
    applied = {call[:2]: (call, _ANSWERED) for _, call in results}
    return [applied.get(key) for key in keys]


def _write_results(moment: Moment, results: Sequence[tuple[Settle, CallRow]], change: Transition) -> BatchSteps[None]:
    """Write results of running calls, with their replies and token usages, as `calls.settle` does."""
    yield from _for_each(
        call_rows.TRANSITION_SQL,
        [
            call_rows.transition_parameters(moment, call, change, None, settlement.token_usage)
            for settlement, call in results
        ],
    )
    yield from _count_running([call for _, call in results], -1)
    usages: defaultdict[str, list[TokenUsage]] = defaultdict(list)
    loaded: dict[str, SessionRow] = {}
    stored = list[tuple[SqlValue, ...] | None]()
    for settlement, call in results:
        session = loaded.get(call.session_id)
        if session is None:
            session = yield from session_rows.load_session(call.session_id)
            assert session is not None
            loaded[call.session_id] = session
        if session.store_replies:
            stored.append(replies.reply_parameters(moment, call, settlement))
        if settlement.token_usage is not None:
            usages[call.session_id].append(settlement.token_usage)
    yield from _for_each(replies.STORE_REPLY_SQL, [reply for reply in stored if reply is not None])
    for session_id, of_session in usages.items():
        yield from call_counter.add_tokens(loaded[session_id], *of_session)


def _count_running(calls: Iterable[CallRow], change: int) -> BatchSteps[None]:
    """Change the numbers of running calls by ``change`` for each of these calls."""
    counts = Counter((call.target, call.incarnation) for call in calls)
    for (target, incarnation), count in counts.items():
        assert incarnation is not None, "a running call is held by an attempt"
        yield from call_rows.count_running(target, incarnation, change * count)


def _read_calls(keys: Iterable[CallKey]) -> BatchSteps[dict[CallKey, CallRow]]:
    """Return those of these calls that the ledger has."""
    wanted = list(keys)
    if not wanted:
        return {}
    sql, parameters = call_rows.load_calls_statement(wanted)
    rows = yield Statement(sql, parameters)
    return {call[:2]: call for call in map(call_rows.call_from_row, rows)}


def _for_each(sql: str, parameters: Sequence[tuple[SqlValue, ...]]) -> BatchSteps[list[Row]]:
    return (yield StatementForEach(sql, parameters)) if parameters else []


_RunAdmits = Callable[[Moment, "Sequence[AdmitOperation]"], BatchProgram[Admission | Deferred]]
_RunSettles = Callable[[Moment, "Sequence[SettleOperation]"], BatchProgram[_Settled]]


@dataclass(frozen=True, slots=True)
class AdmitOperation:
    """`calls.admit`, which may run together with others."""

    request: Admit
    incarnation: str
    after_others: bool = False
    run_batch: ClassVar[_RunAdmits] = staticmethod(_run_admits)

    def __call__(self, moment: Moment) -> SqlProgram[Admission | Deferred]:
        """Decide this admit by itself."""
        return calls.admit(moment, self.request, self.incarnation, after_others=self.after_others)


@dataclass(frozen=True, slots=True)
class SettleOperation:
    """`calls.settle`, which may run together with others."""

    settlement: Settle
    run_batch: ClassVar[_RunSettles] = staticmethod(_run_settles)

    def __call__(self, moment: Moment) -> SqlProgram[_Settled]:
        """Apply this settle by itself."""
        return calls.settle(moment, self.settlement)
