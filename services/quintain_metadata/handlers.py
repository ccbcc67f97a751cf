"""Handles the operations of ``docs/protocol/operations.md``: a table from each to its required role and function."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum, auto
from functools import partial
from typing import TypeVar

from quintain.bus.base import Bus, Delivery
from quintain.contracts.credentials import SessionToken, same_secret
from quintain.contracts.fleet import GetFleet, ListQuotas, QuotaList
from quintain.contracts.headers import TOKEN_HEADER
from quintain.contracts.ledger import CallKey, ConversationKey
from quintain.contracts.message import MAX_OPERATION_BYTES, Message
from quintain.contracts.session import (
    AmendSession,
    CallsCancelled,
    CallsReleased,
    CallsReserved,
    CloseChildren,
    CloseSession,
    GetInfo,
    Info,
    OpenSession,
    ReleaseCalls,
    ReserveCalls,
    SessionOpened,
    SessionState,
    ShowSession,
)
from quintain.errors import BadRequest, Fault, PayloadTooLarge, Unauthorized
from quintain.observe import logs
from quintain.observe.semconv import process_span
from quintain.routes import (
    AMEND,
    CANCEL,
    CLOSE,
    CLOSE_CHILDREN,
    DRAIN,
    FLEET,
    INFO,
    LIST,
    OPEN,
    PAUSE,
    QUOTAS,
    RELEASE,
    RESERVE,
    RESUME,
    SET_QUOTA,
    SET_USER,
    SHOW,
    TARGETS,
    WORKERS,
    ReplyT,
    RequestT,
    Route,
)
from quintain.rpc.server import delivery_context, result_or_fault, send_reply
from quintain.timings import DEFAULT_TIMINGS, Timings
from quintain.topology import METADATA, METADATA_QUEUE
from quintain_metadata.admission import AdmissionQueue
from quintain_metadata.cancellations import CancellationSender
from quintain_metadata.fleet import FleetStatus
from quintain_metadata.ledger import call_rows, calls, children, held, leases, sessions, targets, usage
from quintain_metadata.ledger.session_rows import SessionRow
from quintain_metadata.quotas import quota_rows
from quintain_metadata.store.base import Ledger, Moment, SqlProgram

log = logging.getLogger(__name__)

Returned = TypeVar("Returned")

#: How many calls one transaction of a cancellation changes at most: others wait for it.
MAX_CALLS_PER_TRANSACTION = 200

#: The operations that only read, so that they keep no other one from writing.
READING = frozenset(route.key for route in (INFO, LIST, SHOW, TARGETS, WORKERS, FLEET, QUOTAS))

#: How often `info` looks whether the calls that its asker was answered have ended, in seconds.
SETTLE_CHECK_SECONDS = 0.05

#: The function of an operation. Its arguments are the moment, the request, and the caller's session, or None for the
#: administrator.
OperationFunction = Callable[[Moment, RequestT, SessionRow | None], SqlProgram[Returned]]


class Role(Enum):
    """Whose token an operation requires."""

    ADMINISTRATOR = auto()
    SESSION = auto()
    EITHER = auto()

    def require(self, session: SessionRow | None) -> None:
        """Raise `Unauthorized` or `BadRequest` where this caller may not use the operation.

        None is the administrator.
        """
        if session is not None and self is Role.ADMINISTRATOR:
            raise Unauthorized
        if session is None and self is Role.SESSION:
            raise BadRequest("The admin token belongs to no session: use a session's token, or `show`")


class MetadataRequestHandler:
    """Consumes the metadata queue and answers each request."""

    def __init__(
        self,
        bus: Bus,
        ledger: Ledger,
        admission_queue: AdmissionQueue,
        fleet: FleetStatus,
        admin_sha256: bytes | None,
        timings: Timings = DEFAULT_TIMINGS,
    ) -> None:
        self._bus, self._ledger, self._admin_sha256 = bus, ledger, admin_sha256
        self.cancellation_sender = CancellationSender(bus, timings)
        self.admission_queue, self.fleet, self.timings = admission_queue, fleet, timings

    async def __call__(self, delivery: Delivery) -> None:
        """Answer one request and acknowledge it."""
        # The queue is bound only to the operations' routing keys, so the key is safe as a span name.
        with delivery_context(delivery, process_span(METADATA.name, delivery.routing_key, METADATA_QUEUE.name)):
            answer = await result_or_fault(self._answer(delivery), f"answering {delivery.routing_key}")
            log.debug("%s: %s", delivery.routing_key, answer.code if isinstance(answer, Fault) else "done")
            await send_reply(self._bus, delivery, answer)
            await delivery.ack()

    async def _answer(self, delivery: Delivery) -> Message:
        if (size := len(delivery.body)) > MAX_OPERATION_BYTES:
            # Before anything else: parsing a large body takes several times its size.
            raise PayloadTooLarge(f"The body has {size} bytes; an operation may have {MAX_OPERATION_BYTES}")
        header_value = delivery.headers.get(TOKEN_HEADER)
        raw_token = header_value if isinstance(header_value, str) else ""
        is_admin = self._is_admin(raw_token)
        # Check the token first: its format here, and its secret in the operation's transaction.
        token = None if is_admin else SessionToken.parse(raw_token)
        operation = OPERATIONS_BY_KEY.get(delivery.routing_key)
        if operation is None:
            if token is not None:
                await self._ledger.transact(lambda moment: sessions.authenticate(moment.now, token))
            known_keys = ", ".join(OPERATIONS_BY_KEY)
            raise BadRequest(f"type: there is no operation {delivery.routing_key!r}; there are {known_keys}")
        return await operation(self, delivery, token)

    def _is_admin(self, raw_token: str) -> bool:
        return self._admin_sha256 is not None and same_secret(raw_token, self._admin_sha256)

    async def run_operation(
        self,
        route: Route[RequestT, ReplyT],
        role: Role,
        function: OperationFunction[RequestT, Returned],
        delivery: Delivery,
        token: SessionToken | None,
    ) -> Returned:
        """Authenticate the token, parse the request and run the function, in one transaction."""
        requests = list[RequestT]()

        def operation(moment: Moment) -> SqlProgram[Returned]:
            session = None if token is None else (yield from sessions.authenticate(moment.now, token))
            role.require(session)
            requests[:] = [route.request_type.from_wire(delivery.body or b"{}")]
            return (yield from function(moment, requests[0], session))

        returned = await (self._ledger.read if route.key in READING else self._ledger.transact)(operation)
        for request_id in getattr(requests[0], "request_ids", ()) if log.isEnabledFor(logging.DEBUG) else ():
            with logs.log_context(request_id=request_id):
                log.debug("%s of this call: done", route.key)
        return returned

    async def cancel(
        self, session: SessionRow, request_ids: Sequence[str], conversation_ids: Sequence[str] = ()
    ) -> CallsCancelled:
        """Cancel these calls, including request ids that the ledger does not know yet, and end these conversations.

        The cancellation is in the ledger even where a worker could not be notified.
        """
        unique_ids, cancelled_count, to_abort = sorted(set(request_ids)), 0, dict[str, list[CallKey]]()
        for start in range(0, len(unique_ids), MAX_CALLS_PER_TRANSACTION):
            page = unique_ids[start : start + MAX_CALLS_PER_TRANSACTION]
            result = await self._ledger.transact(partial(calls.cancel, session=session, request_ids=page))
            cancelled_count += result.cancelled_count
            for request_id, incarnation in result.to_abort.items():
                to_abort.setdefault(incarnation, []).append(CallKey(session_id=session.id, request_id=request_id))
        ended = [ConversationKey(session_id=session.id, conversation_id=name) for name in conversation_ids]
        await self.cancellation_sender.send(to_abort, ended)
        self.admission_queue.wake_calls((session.id, request_id) for request_id in unique_ids)
        return CallsCancelled(cancelled=cancelled_count)


def _read_info(moment: Moment, request: GetInfo, session: SessionRow | None, *, waits: bool) -> SqlProgram[Info | None]:
    """Return the session's information; None if it ``waits`` for a call that the asker was answered, and that runs."""
    session = _require_session(session)
    if waits and request.answered and (yield from call_rows.is_any_running(session.id, request.answered)):
        return None
    info = yield from sessions.session_info(moment.now, session)
    if waits and request.settled and info.running:
        return None
    return (yield from _with_usage(info)) if request.usage else info


def _with_usage(info: Info) -> SqlProgram[Info]:
    is_held = info.cost is not None and info.cost.held_usd > 0
    told = (yield from held.held_tries(info.session_id)) if is_held else None
    return info.model_copy(update={"usage": (yield from usage.usage_lines(info.session_id)), "held": told})


def _show(moment: Moment, request: ShowSession, _: SessionRow | None) -> SqlProgram[Info]:
    info = yield from sessions.info_by_id(moment.now, request.session_id)
    return (yield from _with_usage(info))


def _amend(moment: Moment, request: AmendSession, _: SessionRow | None) -> SqlProgram[Info]:
    if request.state is SessionState.CLOSED:
        session = yield from sessions.require_session(request.session_id)
        yield from calls.end_family(moment, [session.id])
    return (yield from sessions.amend_session(moment.now, request))


def _close(moment: Moment, _: CloseSession, session: SessionRow | None) -> SqlProgram[Info]:
    amendment = AmendSession(session_id=_require_session(session).id, state=SessionState.CLOSED)
    return (yield from _amend(moment, amendment, session))


def _close_children(moment: Moment, _: CloseChildren, session: SessionRow | None) -> SqlProgram[Info]:
    parent = _require_session(session)
    yield from children.close_all(moment, (yield from sessions.open_children(moment.now, parent.id)))
    return (yield from sessions.info_by_id(moment.now, parent.id))


def _reserve(moment: Moment, request: ReserveCalls, session: SessionRow | None) -> SqlProgram[CallsReserved]:
    granted = yield from calls.reserve(moment, _require_session(session), request.request_ids, request.deadline)
    return CallsReserved(granted=granted)


def _release(moment: Moment, request: ReleaseCalls, session: SessionRow | None) -> SqlProgram[CallsReleased]:
    return CallsReleased(released=(yield from calls.release(moment, _require_session(session), request.request_ids)))


def _read_time(moment: Moment, _: ListQuotas | GetFleet, __: SessionRow | None) -> SqlProgram[int]:
    yield from ()
    return moment.now


def _return_request(
    _: Moment, request: RequestT, session: SessionRow | None
) -> SqlProgram[tuple[RequestT, SessionRow]]:
    """Return the authenticated request; for an operation that needs several transactions after this one."""
    yield from ()
    return request, _require_session(session)


def _require_session(session: SessionRow | None) -> SessionRow:
    assert session is not None, "the operation's role requires a session's token"
    return session


_BoundOperation = Callable[[MetadataRequestHandler, Delivery, SessionToken | None], Awaitable[Message]]


def _bind(route: Route[RequestT, ReplyT], role: Role, function: OperationFunction[RequestT, ReplyT]) -> _BoundOperation:
    async def bound(request_handler: MetadataRequestHandler, delivery: Delivery, token: SessionToken | None) -> Message:
        return await request_handler.run_operation(route, role, function, delivery, token)

    return bound


def _bind_line(route: Route[RequestT, ReplyT], function: OperationFunction[RequestT, ReplyT]) -> _BoundOperation:
    """Bind an operation of the administrator that may let waiting calls start."""
    bound = _bind(route, Role.ADMINISTRATOR, function)

    async def refreshing(handler: MetadataRequestHandler, delivery: Delivery, token: SessionToken | None) -> Message:
        answer = await bound(handler, delivery, token)
        await handler.admission_queue.refresh()
        # What was given a place before is decided before the answer.
        await handler.admission_queue.operations.run(())
        return answer

    return refreshing


async def _info(request_handler: MetadataRequestHandler, delivery: Delivery, token: SessionToken | None) -> Message:
    """Answer once the calls that the asker names as answered are settled, which may be after their replies."""
    loop = asyncio.get_running_loop()
    give_up_at = loop.time() + request_handler.timings.answered_settle_seconds
    info: Info | None = None
    while info is None:
        read_info = partial(_read_info, waits=loop.time() < give_up_at)
        info = await request_handler.run_operation(INFO, Role.SESSION, read_info, delivery, token)
        if info is None:
            await asyncio.sleep(SETTLE_CHECK_SECONDS)
    return info


async def _open(request_handler: MetadataRequestHandler, delivery: Delivery, token: SessionToken | None) -> Message:
    def open_session(moment: Moment, request: OpenSession, parent: SessionRow | None) -> SqlProgram[SessionOpened]:
        if not delivery.correlation_id:
            raise BadRequest("correlation_id: `open` needs one: it tells this request from others")
        # Only who opens knows the first: nobody else can make the token.
        seed = (str(delivery.headers[TOKEN_HEADER]), delivery.correlation_id, request.to_wire().decode())
        return sessions.open_session(moment.now, request, SessionToken.of_request(*seed), parent)

    return await request_handler.run_operation(OPEN, Role.EITHER, open_session, delivery, token)


async def _cancel(request_handler: MetadataRequestHandler, delivery: Delivery, token: SessionToken | None) -> Message:
    request, session = await request_handler.run_operation(CANCEL, Role.SESSION, _return_request, delivery, token)
    return await request_handler.cancel(session, request.request_ids, request.conversation_ids or ())


async def _quotas(request_handler: MetadataRequestHandler, delivery: Delivery, token: SessionToken | None) -> Message:
    now = await request_handler.run_operation(QUOTAS, Role.EITHER, _read_time, delivery, token)
    return QuotaList(quotas=request_handler.admission_queue.quotas.states(), now=now)


async def _fleet(request_handler: MetadataRequestHandler, delivery: Delivery, token: SessionToken | None) -> Message:
    await request_handler.run_operation(FLEET, Role.ADMINISTRATOR, _read_time, delivery, token)
    return await request_handler.fleet.figures()


OPERATIONS_BY_KEY: dict[str, _BoundOperation] = {
    INFO.key: _info,
    OPEN.key: _open,
    AMEND.key: _bind_line(AMEND, _amend),
    CLOSE.key: _bind(CLOSE, Role.SESSION, _close),
    CLOSE_CHILDREN.key: _bind(CLOSE_CHILDREN, Role.SESSION, _close_children),
    RESERVE.key: _bind(RESERVE, Role.SESSION, _reserve),
    RELEASE.key: _bind(RELEASE, Role.SESSION, _release),
    CANCEL.key: _cancel,
    LIST.key: _bind(LIST, Role.ADMINISTRATOR, lambda moment, request, _: sessions.list_page(moment.now, request)),
    SHOW.key: _bind(SHOW, Role.ADMINISTRATOR, _show),
    TARGETS.key: _bind(TARGETS, Role.ADMINISTRATOR, lambda moment, *_: targets.list_targets(moment.now)),
    PAUSE.key: _bind_line(PAUSE, lambda moment, request, _: targets.pause_target(moment.now, request)),
    RESUME.key: _bind_line(RESUME, lambda moment, request, _: targets.resume_target(moment.now, request)),
    WORKERS.key: _bind(WORKERS, Role.ADMINISTRATOR, lambda moment, *_: leases.list_workers(moment.now)),
    DRAIN.key: _bind(
        DRAIN, Role.ADMINISTRATOR, lambda moment, request, _: leases.request_drain(moment.now, request.worker_id)
    ),
    FLEET.key: _fleet,
    QUOTAS.key: _quotas,
    SET_QUOTA.key: _bind_line(SET_QUOTA, lambda moment, request, _: quota_rows.set_quota(moment, request)),
    SET_USER.key: _bind(SET_USER, Role.ADMINISTRATOR, lambda moment, request, _: leases.set_user(moment.now, request)),
}
