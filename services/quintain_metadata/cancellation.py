"""Cancels calls: marks them in the ledger, and notifies the workers that run them and the admission queue."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

from quintain.bus.base import Bus, Envelope
from quintain.contracts.ledger import CallKey, CancelBroadcast
from quintain.contracts.session import CallsCancelled
from quintain.errors import BusError, Unroutable
from quintain.routes import CANCEL
from quintain.timings import DEFAULT_TIMINGS, Timings
from quintain.topology import CANCEL as CANCEL_EXCHANGE
from quintain_metadata import call_counter
from quintain_metadata.admission import AdmissionQueue
from quintain_metadata.call_rows import CallRow, load_calls, lock_reservations
from quintain_metadata.lifecycle import (
    CallState,
    LifecycleEvent,
    Transition,
    TransitionEffect,
    cancel_event,
    transition,
)
from quintain_metadata.session_rows import SessionRow
from quintain_metadata.store import Ledger, Moment, SqlProgram, SqlValue, acquire_locks, execute, for_each, values_table

log = logging.getLogger(__name__)

#: How many calls one transaction locks at most: a store's number of locks is limited.
MAX_CALLS_PER_TRANSACTION = 200


@dataclass(slots=True)
class CancelResult:
    """The number of cancelled calls, and the request ids of those that run and must be aborted."""

    cancelled_count: int = 0
    to_abort: list[str] = field(default_factory=list)


def cancel_calls(moment: Moment, session: SessionRow, request_ids: Iterable[str]) -> SqlProgram[CancelResult]:
    """Mark the calls of these request ids as cancelled, at most `MAX_CALLS_PER_TRANSACTION`, including unknown ids.

    A call that does not run is refused when it is admitted, and its reservation is released. Calls that another
    delivery waits for, that have ended or that are marked already are left alone.
    """
    unique_ids = sorted(set(request_ids))
    # Lock all calls before the reservations: an operation that holds a call may wait for the reservations.
    yield from acquire_locks("call", session.id, unique_ids)
    yield from lock_reservations(session.id)
    result = CancelResult()
    known_calls = (yield from load_calls(session.id, unique_ids)) if unique_ids else {}
    refunded = yield from _mark_known(moment, session, known_calls.values(), result)
    unknown_ids = [request_id for request_id in unique_ids if request_id not in known_calls]
    yield from _mark_unknown(moment, session, unknown_ids, result)
    if refunded:
        # The calls first, the session's counter last: all calls of a session wait for that row.
        yield from call_counter.refund(session, refunded)
    return result


def _mark_known(moment: Moment, session: SessionRow, calls: Iterable[CallRow], result: CancelResult) -> SqlProgram[int]:
    """Mark calls that have a row; returns how many of them are no longer charged."""
    marked_by_state: dict[CallState, list[str]] = {}
    refunded = 0
    for call in calls:
        change = _cancel_transition(moment, call)
        if change.effect is not TransitionEffect.NOTED:
            marked_by_state.setdefault(change.to, []).append(call.request_id)
            refunded -= change.used
    for state, request_ids in marked_by_state.items():
        parameters: list[SqlValue] = [state, moment.now, moment.now, *request_ids, session.id]
        yield from execute(
            f"UPDATE call SET state = ?, cancelled_at = ?, updated_at = ? FROM {values_table(request_ids)} AS wanted"
            " WHERE call.session_id = ? AND call.request_id = wanted.column1",
            *parameters,
        )
        result.cancelled_count += len(request_ids)
    result.to_abort += sorted(marked_by_state.get(CallState.RUNNING, ()))
    return refunded


def _cancel_transition(moment: Moment, call: CallRow) -> Transition:
    is_joined = call.state is CallState.RUNNING and call.joined_until > moment.now
    return transition(call.state, cancel_event(cancelled=call.is_cancelled, joined=is_joined))


def _mark_unknown(
    moment: Moment, session: SessionRow, request_ids: list[str], result: CancelResult
) -> SqlProgram[None]:
    """Insert cancelled calls for ids without a row."""
    state = transition(CallState.NONE, LifecycleEvent.CANCELLED).to
    yield from for_each(
        "INSERT INTO call (session_id, request_id, body_sha256, target, state, attempts, deadline, call_count,"
        " cancelled_at, created_at, updated_at) VALUES (?, ?, '', '', ?, 0, 0, 0, ?, ?, ?)",
        [(session.id, request_id, state, *[moment.now] * 3) for request_id in request_ids],
    )
    result.cancelled_count += len(request_ids)


class CallCanceller:
    """Cancels calls of a session, in transactions of at most `MAX_CALLS_PER_TRANSACTION` calls."""

    def __init__(
        self, bus: Bus, ledger: Ledger, admission_queue: AdmissionQueue, timings: Timings = DEFAULT_TIMINGS
    ) -> None:
        self._bus, self._ledger, self._admission_queue, self._timings = bus, ledger, admission_queue, timings

    async def cancel(self, session: SessionRow, request_ids: Sequence[str]) -> CallsCancelled:
        """Cancel these calls, including request ids that the ledger does not know yet.

        The cancellation is in the ledger even where a worker could not be notified.
        """
        unique_ids = sorted(set(request_ids))
        cancelled_count = 0
        to_abort: list[CallKey] = []
        for start in range(0, len(unique_ids), MAX_CALLS_PER_TRANSACTION):
            page = unique_ids[start : start + MAX_CALLS_PER_TRANSACTION]
            result = await self._ledger.transact(partial(cancel_calls, session=session, request_ids=page))
            cancelled_count += result.cancelled_count
            to_abort += [CallKey(session_id=session.id, request_id=request_id) for request_id in result.to_abort]
        if to_abort:
            await self._broadcast(CancelBroadcast(calls=to_abort))
        await self._admission_queue.retry_calls({(session.id, request_id) for request_id in unique_ids})
        return CallsCancelled(cancelled=cancelled_count)

    async def _broadcast(self, message: CancelBroadcast) -> None:
        """Notify all workers at once.

        A worker that misses the message gets the cancellation with its next heartbeat.
        """
        envelope = Envelope(body=message.to_wire(), type=CANCEL.key, persistent=False)
        try:
            await self._bus.publish(CANCEL_EXCHANGE, "", envelope, timeout_seconds=self._timings.heartbeat_seconds)
        except Unroutable:
            log.info("No worker consumes cancellations; each gets them with its next heartbeat")
        except BusError as error:
            log.warning(
                "A cancellation was not published; workers get it with their next heartbeats: %s", error.message
            )
