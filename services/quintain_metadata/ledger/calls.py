"""Runs what happens to calls: reads their rows, decides by them without I/O, and writes. One is a batch too.

What is read stays true until the transaction ends, as no other one writes meanwhile. The rules are in `decisions` and
`changes`.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias

from quintain.contracts.ledger import AttemptOutcome, Settle
from quintain.contracts.session import SessionState
from quintain.errors import BudgetExhausted, BudgetUnavailable, Fault, TimedOut
from quintain.runtime.concurrency import BatchSender
from quintain_metadata.ledger import decisions, leases, replies, settles
from quintain_metadata.ledger.call_rows import (
    CallKey,
    CallRow,
    Rows,
    load_calls,
    read_attempts,
    read_calls,
    read_workers,
    read_wrong_bounds,
)
from quintain_metadata.ledger.changes import Changes
from quintain_metadata.ledger.decisions import AdmitOperation, Replay
from quintain_metadata.ledger.lifecycle import CallState, Transition, TransitionEffect
from quintain_metadata.ledger.money import read_lost_costs, read_unpayable
from quintain_metadata.ledger.session_rows import Funds, SessionRow
from quintain_metadata.ledger.usage import IS_NOT_COMMITTED
from quintain_metadata.store.base import Ledger, Lookup, Moment, SqlProgram, execute

log = logging.getLogger(__name__)

CallOperation: TypeAlias = AdmitOperation | Settle


class Settled(NamedTuple):
    """The outcome of a settle: the call as it was, the transition, and what the limits in money have that paid it."""

    call: CallRow | None
    change: Transition
    funds: list[Funds]


#: The outcome of an admit is a grant, the stored answer, `Deferred`, or the `Fault` that refuses it.
Outcome: TypeAlias = Any

#: How many batches of workers share a transaction at most: each waits for all of them.
MAX_BATCHES = 8


class CallOperations:
    """Runs admits and settles on a ledger; what waits at the same time shares a transaction."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._sender = BatchSender[None, tuple[Sequence[CallOperation], asyncio.Future[list[Outcome]]]](self._run)

    async def run(self, operations: Sequence[CallOperation]) -> list[Outcome]:
        """Run operations; returns the outcome of each: `BudgetUnavailable` where the ledger is out of reach.

        A defect in one of them is its own outcome.
        """
        outcomes: asyncio.Future[list[Outcome]] = asyncio.get_running_loop().create_future()
        self._sender.add(None, (operations, outcomes), max_batch=MAX_BATCHES)
        return await outcomes

    async def _run(self, _: None, batches: list[tuple[Sequence[CallOperation], asyncio.Future[list[Outcome]]]]) -> None:
        operations = list(itertools.chain.from_iterable(map(itemgetter(0), batches)))
        try:
            found = await self._ledger.transact(partial(run_batch, operations=operations))
        except BudgetUnavailable as unavailable:
            found = [unavailable] * len(operations)
        except Exception as defect:
            log.error("A defect while running operations together; each is run by itself", exc_info=defect)
            found = [await self._run_alone(operation) for operation in operations]
        remaining = iter(found)
        for batch, outcomes in batches:
            of_batch = list(itertools.islice(remaining, len(batch)))
            if not outcomes.done():  # of a caller that was cancelled: what was committed stays committed
                outcomes.set_result(of_batch)

    async def _run_alone(self, operation: CallOperation) -> Outcome:
        try:
            return (await self._ledger.transact(partial(run_batch, operations=[operation])))[0]
        except Exception as error:
            return error


def run_batch(moment: Moment, operations: Sequence[CallOperation]) -> SqlProgram[list[Outcome]]:
    """Run operations as if one after another; returns the result or the fault of each."""
    outcomes = list[Outcome]()
    for one_of_each_call in _rounds(operations):
        changes = Changes(moment, (yield from _read(moment, one_of_each_call)))
        for operation in one_of_each_call.values():
            try:
                if isinstance(operation, Settle):
                    call, change = settles.settle(changes, operation)
                    funds = list[Funds]()
                    if call is not None and call.cost:
                        funds = changes.counters.funds(changes.rows.sessions[call.session_id])
                    outcomes.append(Settled(call, change, funds))
                else:
                    outcomes.append(decisions.admit(changes, operation))
            except Fault as refusal:
                outcomes.append(refusal)
        yield from changes.write()
    for number, outcome in enumerate(outcomes):
        if isinstance(outcome, Replay):
            try:
                outcomes[number] = yield from replies.replay(outcome.session, outcome.call, outcome.attempt_id)
            except Fault as expired:
                outcomes[number] = expired
    return outcomes


def _rounds(operations: Sequence[CallOperation]) -> Iterator[dict[CallKey, CallOperation]]:
    """Divide operations, in their order, into those with one operation of each call, by call."""
    current = dict[CallKey, CallOperation]()
    for operation in operations:
        if isinstance(operation, Settle):
            key = (operation.session_id, operation.request_id)
        else:
            key = (operation.credential.id, operation.request.request_id)
        if key in current:
            yield current
            current = {}
        current[key] = operation
    yield current


def _read(moment: Moment, operations: dict[CallKey, CallOperation]) -> SqlProgram[Rows]:
    """Read the rows that these operations are decided by."""
    admits = [each for each in operations.values() if not isinstance(each, Settle)]
    incarnations: set[str | None] = {each.incarnation for each in admits}
    rows = yield from load_calls(operations)
    several = list[CallKey]()
    for key, operation in operations.items():
        call = rows.calls.get(key)
        if not isinstance(operation, Settle):
            incarnations.add(None if call is None else call.incarnation)
        elif (
            operation.outcome is AttemptOutcome.RESULT
            and call is not None
            and (call.state, call.attempt_id) == (CallState.RUNNING, operation.attempt_id)
        ):
            continue  # the result of the attempt that holds its running call, which has no row of its own
        several.append(key)
    if several:
        yield from read_attempts(rows, several)
    if admits:
        yield from read_workers(moment, rows, incarnations)
        if any(session.has_cost_limit for session in rows.sessions.values()):
            rows.wrong_bounds = yield from read_wrong_bounds()
        lost = _sessions_of_lost(rows) if rows.calls else []
        rows.lost_costs = (yield from read_lost_costs(moment, lost)) if lost else {}
    return rows


def _sessions_of_lost(rows: Rows) -> list[SessionRow]:
    """Return the sessions of calls with a reservation that another attempt may take over."""
    lost = {
        call.session_id
        for call in rows.calls.values()
        if call.cost and call.state is CallState.RUNNING and not rows.holder(call).is_alive
    }
    return [rows.sessions[each] for each in lost]


def reserve(moment: Moment, session: SessionRow, request_ids: Collection[str], deadline: int) -> SqlProgram[int]:
    """Reserve all of these calls or none; returns how many are new.

    A call that is reserved already keeps its reservation until the later deadline; one whose reservation was released
    is reserved again; any other one with a row costs nothing. ``deadline`` is in milliseconds since the epoch. Raises
    `BudgetExhausted`.
    """
    session.require_not_paused()
    decisions.require_near_deadline(moment.now, deadline)
    keys = [(session.id, request_id) for request_id in sorted(set(request_ids))]
    rows = yield from load_calls(keys, sessions=[session.id])
    session, changes = rows.sessions[session.id], Changes(moment, rows)
    created = sum(changes.reserve(key, max(0, deadline)) for key in keys)
    try:
        changes.counters.charge(session, created)
    except BudgetExhausted:
        narrowest = min((session, *session.ancestors), key=lambda payer: payer.max_calls - payer.used)
        raise BudgetExhausted(
            f"Batch would exceed max calls (current: {narrowest.used}, batch: {len(request_ids)}, "
            f"limit: {narrowest.max_calls})"
        ) from None
    yield from changes.write()
    return created


def release(moment: Moment, session: SessionRow, request_ids: Collection[str]) -> SqlProgram[int]:
    """Release those of these calls that are still only reserved; returns how many."""
    keys = [(session.id, request_id) for request_id in sorted(set(request_ids))]
    rows = yield from load_calls(keys, sessions=[session.id])
    changes = Changes(moment, rows)
    released = [changes.release(call).used for call in rows.calls.values()]
    yield from changes.write()
    return -sum(released)


@dataclass(slots=True)
class CancelResult:
    """The number of cancelled calls, and the request ids of those that run, each with the worker that must abort it."""

    cancelled_count: int = 0
    to_abort: dict[str, str] = field(default_factory=dict)


def cancel(moment: Moment, session: SessionRow, request_ids: Collection[str]) -> SqlProgram[CancelResult]:
    """Mark the calls of these request ids as cancelled, including unknown ids (`Changes.cancel`)."""
    keys = [(session.id, request_id) for request_id in sorted(set(request_ids))]
    rows = yield from load_calls(keys, sessions=[session.id])
    changes = Changes(moment, rows)
    marked = {key: change for key in keys if (change := changes.cancel(key)).effect is not TransitionEffect.NOTED}
    yield from changes.write()
    running = [rows.calls[key] for key, change in marked.items() if change.to is CallState.RUNNING]
    return CancelResult(len(marked), {call.request_id: call.incarnation or "" for call in running})


#: How many calls one operation ends at most, so that it does not block the store for long.
MAX_ENDED_CALLS = 500

#: How long after its deadline a running call ends whose holder lives, in milliseconds: its attempt has ended, and its
#: settle was lost with its queue.
LOST_SETTLE_MS = 60_000


def sweep(moment: Moment) -> SqlProgram[int]:
    """End the overdue calls, and delete expired replies and forgotten workers; returns how many calls were found.

    A reservation past its deadline is released: it provably reached no provider. One with a try that may
    have is in doubt. A running call past its deadline becomes in doubt once its holder's lease has lapsed, or after
    `LOST_SETTLE_MS`: a call that may have reached a provider is never refunded by a timeout. So does one whose holder's
    lease lapsed after its session was closed or had expired, or leaves no money for it: nobody may take it over. What
    an expired child session reserved is given back to its parent.
    """
    expired = yield from execute(
        "SELECT id FROM session WHERE reserved > 0 AND expires_at <= ? ORDER BY id LIMIT ?",
        *(moment.now, MAX_ENDED_CALLS),
    )
    overdue = yield from execute(
        "SELECT call.session_id, call.request_id FROM call LEFT JOIN worker USING (incarnation)"
        " WHERE call.state IN ('reserved', 'running') AND call.deadline <= ?"
        " AND (call.state = 'reserved' OR call.deadline <= ? OR worker.lease_until IS NULL OR worker.lease_until <= ?)"
        " ORDER BY call.state LIMIT ?",
        *(moment.now, moment.now - LOST_SETTLE_MS, moment.lease_cutoff, MAX_ENDED_CALLS),
    )
    gone = yield from execute(
        "SELECT DISTINCT incarnation FROM running_calls JOIN worker USING (incarnation)"
        " WHERE running > 0 AND lease_until <= ?",
        moment.lease_cutoff,
    )
    stranded = yield Lookup(_STRANDED_SQL, [(row[0],) for row in gone], (moment.now, MAX_ENDED_CALLS))
    unpayable = (yield from read_unpayable(moment, [row[0] for row in gone], MAX_ENDED_CALLS)) if gone else {}
    if expired or overdue or stranded or unpayable:
        keys = {*((row[0], row[1]) for row in (*overdue, *stranded)), *unpayable}
        yield from _end_overdue(moment, [row[0] for row in expired], sorted(keys), unpayable)
    yield from replies.delete_expired(moment.now)
    yield from leases.delete_forgotten(moment.now)
    return len(overdue)


#: The calls of workers that are gone whose session, or an ancestor of it, is not open any more.
_STRANDED_SQL = (
    ", lost (session_id, request_id) AS (SELECT session_id, request_id FROM wanted JOIN call"
    " ON call.incarnation = wanted.key1 WHERE call.state IN ('reserved', 'running') AND call.state = 'running'),"
    " lineage (id, member) AS (SELECT session_id, session_id FROM lost UNION SELECT lineage.id, session.parent_id"
    " FROM lineage JOIN session ON session.id = lineage.member WHERE session.parent_id IS NOT NULL)"
    " SELECT session_id, request_id FROM lost WHERE session_id IN (SELECT lineage.id FROM lineage JOIN session"
    f" ON session.id = lineage.member WHERE session.state = '{SessionState.CLOSED}' OR session.expires_at <= ?)"
    " LIMIT ?"
)


def _end_overdue(
    moment: Moment, children: list[str], keys: list[CallKey], unpayable: Mapping[CallKey, Fault]
) -> SqlProgram[None]:
    rows = yield from load_calls(keys, sessions=children)
    yield from read_workers(moment, rows, (call.incarnation for call in rows.calls.values()))
    changes = Changes(moment, rows)
    for call in rows.calls.values():
        refusal, is_held = unpayable.get((call.session_id, call.request_id)), changes.rows.holder(call).is_alive
        # The call may have changed since the query.
        if call.deadline > moment.now and rows.sessions[call.session_id].is_usable(moment.now):
            if refusal is not None and call.state is CallState.RUNNING and not is_held:
                changes.end_lost(call, refusal)
            continue
        if call.state is CallState.RESERVED:
            changes.release(call)
        elif call.state is CallState.RUNNING and (not is_held or call.deadline <= moment.now - LOST_SETTLE_MS):
            changes.end_lost(call)
    for session_id in children:
        changes.counters.release_reserved(rows.sessions[session_id])
    yield from changes.write()


_FAMILY_SQL = (
    ", family (id) AS (SELECT key1 FROM wanted UNION SELECT child.id FROM session AS child"
    " JOIN family ON child.parent_id = family.id)"
)


def end_family(moment: Moment, session_ids: Sequence[str]) -> SqlProgram[int]:
    """Release every reservation of sessions that are closed and of their descendants; returns how many calls.

    Their running calls are in doubt whose workers are gone: no attempt can take them over. At most `MAX_ENDED_CALLS`:
    the sweep ends the others at their deadlines. What the sessions themselves reserved is given back to their parents.
    """
    roots = [(session_id,) for session_id in session_ids]
    found = yield Lookup(f"{_FAMILY_SQL} SELECT id FROM family", roots)
    family = {row[0] for row in found}
    found = yield Lookup(
        "SELECT session_id, request_id FROM wanted JOIN call ON call.session_id = wanted.key1"
        f" LEFT JOIN worker USING (incarnation) WHERE call.state = 'running' AND {IS_NOT_COMMITTED}"
        " AND (worker.lease_until IS NULL OR worker.lease_until <= ?)",
        [(session_id,) for session_id in sorted(family)],
        (moment.lease_cutoff,),
    )
    lost = sorted({(row[0], row[1]) for row in found})[:MAX_ENDED_CALLS]
    rows = yield from load_calls(lost, sessions=family)
    found = yield Lookup(
        "SELECT session_id, request_id FROM wanted JOIN call ON call.session_id = wanted.key1"
        f" WHERE call.state = 'reserved' AND {IS_NOT_COMMITTED}",
        [(session_id,) for session_id in sorted(family)],
    )
    reserved = yield from read_calls(rows, sorted({(row[0], row[1]) for row in found}))
    yield from read_workers(moment, rows, (call.incarnation for call in rows.calls.values()))
    changes = Changes(moment, rows)
    for call in rows.calls.values():
        if call.state is CallState.RUNNING and not changes.rows.holder(call).is_alive:
            changes.end_lost(call)
    for call in reserved.values():
        changes.release(call)
    for session_id in sorted(family):
        changes.counters.release_reserved(rows.sessions[session_id])
    yield from changes.write()
    return len(reserved)


def end_dead_letter(
    moment: Moment, session: SessionRow, request_id: str
) -> SqlProgram[tuple[CallRow | None, Fault | None]]:
    """End a call whose message was dead-lettered, where no attempt can finish it; returns the call as it was.

    The fault is that of a call that is in doubt from then on.
    """
    key = (session.id, request_id)
    rows = yield from load_calls([key])
    call = rows.calls.get(key)
    if call is None:
        return None, None
    yield from read_workers(moment, rows, [call.incarnation])
    changes, fault = Changes(moment, rows), None
    if call.state is CallState.RUNNING and not changes.rows.holder(call).is_alive:
        fault = changes.end_lost(call)
    if changes.release(call).to is CallState.IN_DOUBT and call.state is CallState.RESERVED:
        fault = TimedOut()
    yield from changes.write()
    return call, fault
