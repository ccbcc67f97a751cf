"""The transport over a broker: one message per call, answered into the client's reply queue.

When the task of a call is cancelled, a message sent in the background cancels the call in the fleet.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
import re
from collections.abc import Sequence
from functools import partial

from quintain import errors
from quintain.client.sessions import Sessions
from quintain.client.transport import (
    ACCEPTED,
    OPERATION_TIMEOUT_SECONDS,
    REPLY_GRACE_SECONDS,
    BatchItem,
    InvokeCall,
    dispatch_partial,
    expired_fault,
    may_be_uncharged,
)
from quintain.contracts.api_request import ApiRequest
from quintain.contracts.credentials import digest, make_proof, public_id
from quintain.contracts.headers import (
    ACCEPT_HEADER,
    DEADLINE_HEADER,
    PROOF_HEADER,
    PROTOCOL_HEADER,
    PROTOCOL_VERSION,
    PUBLISHED_AT_HEADER,
    REQUEST_ID_HEADER,
    TOKEN_HEADER,
    WAIT_UNTIL_HEADER,
)
from quintain.contracts.invoke import InvokeRequest, Result
from quintain.contracts.message import MAX_BODY_BYTES
from quintain.contracts.session import CancelCalls, GetInfo, Info, ReleaseCalls, ReserveCalls
from quintain.contracts.values import is_target_name
from quintain.observe import logs, semconv
from quintain.observe.spans import Span, in_span
from quintain.routes import CANCEL, INFO, INVOKE, RELEASE, RESERVE, ReplyT, RequestT, Route
from quintain.rpc.requests import RpcClient, RpcRequest, parse_reply
from quintain.rpc.server import log_defect
from quintain.runtime.concurrency import BatchSender, cancel_and_wait
from quintain.topology import CONVERSATION, target_of_key

log = logging.getLogger(__name__)


#: The first and the longest pause before a request whose charge is unknown is sent again, in seconds. Pauses double and
#: are jittered.
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.5, 5.0

#: The pause before a full queue is sent the same request again, in milliseconds; it is added to the pause above.
FULL_QUEUE_PAUSE_MS = 1_000

#: How long sending one batch of cancellations may take, and how long `AmqpTransport.close` waits, in seconds.
CANCEL_TIMEOUT_SECONDS = 5.0

#: Maximum number of calls that one message cancels.
MAX_CANCELLED = 1000


class AmqpTransport:
    """Implements `Transport` with one session token over an `RpcClient` that several transports may share.

    ``sessions`` is what is known of its sessions, which transports over one `RpcClient` may share too.
    """

    def __init__(self, rpc_client: RpcClient, token: str, sessions: Sessions | None = None) -> None:
        sessions = sessions or Sessions(rpc_client)
        self.clock, self._answered = sessions.clock, sessions.answered
        self._default_targets, self._groups = sessions.default_targets, sessions.groups
        self._rpc_client, self._token, self._token_sha256 = rpc_client, token, digest(token)
        #: The public id of the session; empty for what is no session's token, such as the administrator's.
        self._session_id = public_id(token) or ""
        self._cancellations = BatchSender[None, str](self._cancel)
        self._info_task: asyncio.Task[None] | None = None

    async def close(self) -> None:
        """Wait a few seconds for cancellations that are being sent."""
        await cancel_and_wait(self._info_task)
        await self._cancellations.close(CANCEL_TIMEOUT_SECONDS)

    def cancel_later(self, request_ids: Sequence[str]) -> None:
        """Cancel these calls in the background; after `close` they end with their deadlines."""
        for request_id in request_ids:
            self._cancellations.add(None, request_id, max_batch=MAX_CANCELLED)

    async def invoke(self, call: InvokeCall) -> Result:
        """Implements `Transport.invoke`. Raises `Expired` at the deadline, `Overloaded` if the queue is full till then.

        A call that names no target goes to its session's default, without passing the metadata service. Where that
        fails for a reason that only the metadata service can judge, the call goes there: the session may have another
        default by now, or the request id was used for another target before.
        """
        request_id = call.request_id or self._rpc_client.random_ids.next()
        with logs.log_context(request_id=request_id, session_id=self._session_id):
            log.debug("A call is sent; its deadline is in %.1f s", call.deadline_seconds)
            try:
                result = await self._invoke(call, request_id)
            except (errors.QuintainError, asyncio.CancelledError) as error:
                log.debug("A call ended: %s", getattr(error, "code", type(error).__name__))
                raise
            log.debug("A call is answered")
            return result

    async def _invoke(self, call: InvokeCall, request_id: str) -> Result:
        ends_at = asyncio.get_running_loop().time() + call.deadline_seconds
        try:
            if call.request.requested_target is not None or (default := await self._default_target(ends_at)) is None:
                return await self._send_until_decided(call, request_id, ends_at)
            try:
                return await self._send_until_decided(_with_target(call, default), request_id, ends_at)
            except errors.UnknownTarget:
                self._default_targets.forget(self._session_id)
                if await self._default_target(ends_at) == default:
                    raise
            except errors.RequestConflict:
                pass
            return await self._send_until_decided(call, request_id, ends_at)
        except asyncio.CancelledError:
            if call.cancel_with_task:
                self.cancel_later([request_id])
            raise

    async def invoke_batch(
        self, items: Sequence[InvokeRequest | errors.Fault], *, deadline_seconds: float
    ) -> list[BatchItem]:
        """Implements `Transport.invoke_batch`: reserves all calls, sends each one, and releases those not charged."""
        ids = [self._rpc_client.random_ids.next() for _ in items]
        deadline = self.clock.now_ms() + int(deadline_seconds * 1000)
        reservation = ReserveCalls(request_ids=ids, deadline=deadline)
        try:
            await self._call_operation(RESERVE, reservation)
            calls = zip(items, ids, strict=True)
            results = await asyncio.gather(
                *(self._invoke_item(item, request_id, deadline_seconds) for item, request_id in calls)
            )
            await self._release_quietly(
                [name for name, item in zip(ids, results, strict=True) if may_be_uncharged(item)]
            )
        except asyncio.CancelledError:
            self.cancel_later(ids)
            raise
        return list(results)

    async def call_route(self, route: Route[RequestT, ReplyT], request: RequestT, *, timeout_seconds: float) -> ReplyT:
        """Implements `Transport.call_route`. Raises `NoAnswer` if no reply arrives in time."""
        if isinstance(request, GetInfo) and (answered := self._answered.take(self._session_id)):
            request = request.model_copy(update={"answered": answered})
        headers = {TOKEN_HEADER: self._token}  # only metadata services read them
        reply = await self._rpc_client.call_route(route, request, headers, timeout_seconds=timeout_seconds)
        if isinstance(reply, Info):
            self._default_targets.note(reply)
            self._groups.learn(reply)
        return reply

    async def _call_operation(self, route: Route[RequestT, ReplyT], request: RequestT) -> ReplyT:
        try:
            return await self.call_route(route, request, timeout_seconds=OPERATION_TIMEOUT_SECONDS)
        except errors.NoAnswer as error:
            raise errors.BudgetUnavailable(error.message) from None

    async def _cancel(self, _: None, request_ids: list[str]) -> None:
        try:
            async with asyncio.timeout(CANCEL_TIMEOUT_SECONDS):
                await self._call_operation(CANCEL, CancelCalls(request_ids=request_ids))
        except (errors.QuintainError, TimeoutError) as error:
            log.info("%d calls were not cancelled; they end with their deadlines: %s", len(request_ids), error)

    async def _release_quietly(self, request_ids: Sequence[str]) -> None:
        if not request_ids:
            return
        try:
            await self._call_operation(RELEASE, ReleaseCalls(request_ids=list(request_ids)))
        except (errors.Fault, errors.BusError) as error:
            # The results are complete; a reservation that is not released now ends with its deadline.
            log.warning("%d reservations could not be released: %s", len(request_ids), error.message)

    async def _invoke_item(
        self, item: InvokeRequest | errors.Fault, request_id: str, deadline_seconds: float
    ) -> BatchItem:
        if isinstance(item, errors.Fault):
            return BatchItem(None, item)
        # A batch that is cancelled cancels all of its calls together.
        call = InvokeCall(item, request_id, deadline_seconds, cancel_with_task=False)
        try:
            return BatchItem(await self.invoke(call), None)
        except errors.Fault as fault:
            return BatchItem(None, fault)
        except errors.BusError as error:
            # An error of one item must lose neither the other items nor their reservations.
            return BatchItem(None, errors.BudgetUnavailable(f"The fleet cannot be reached: {error.message}"))
        except Exception as error:
            return BatchItem(None, log_defect(error, "calling the target of a batch item"))

    async def _default_target(self, ends_at: float) -> str | None:
        seconds = min(OPERATION_TIMEOUT_SECONDS, max(ends_at - asyncio.get_running_loop().time(), 0))
        return await self._default_targets.resolve(self._session_id, partial(self._read_info, seconds))

    async def _send_until_decided(self, call: InvokeCall, request_id: str, ends_at: float) -> Result:
        """Send a request, again with the same request id while no ledger has decided whether its call is charged."""
        loop, pause_seconds = asyncio.get_running_loop(), FIRST_PAUSE_SECONDS
        deadline_ms = self.clock.now_ms() + int((ends_at - loop.time()) * 1000)
        request = self._rpc_request(call, request_id, deadline_ms)
        target = target_of_key(request.key)
        if target and (self._info_task is None or self._info_task.done()):
            self._info_task = self._groups.learn_soon(target, self._read_info)
        while True:
            remaining_seconds = ends_at - loop.time()
            sent = request._replace(
                headers={**request.headers, PUBLISHED_AT_HEADER: self.clock.now_ms()},
                # The message expires at the deadline; the client waits a little longer for the fleet's own `Expired`.
                deadline_seconds=remaining_seconds + REPLY_GRACE_SECONDS,
                expires_seconds=remaining_seconds,
            )
            try:
                result = await in_span(
                    partial(semconv.publish_span, request.exchange.name, request.key, request_id=request_id),
                    partial(self._send, call, sent, request_id),
                )
            except errors.Fault as fault:
                if fault.charged is not None or not fault.retryable:
                    raise
                delay_seconds = (fault.retry_after_ms or 0) / 1000
                delay_seconds += random.uniform(pause_seconds / 2, pause_seconds)  # noqa: S311 -- no secret
                if loop.time() + delay_seconds >= ends_at:
                    raise
            else:
                if not result.replayed:
                    self._groups.note_duration(result.target, result.duration_ms)
                return result
            await asyncio.sleep(delay_seconds)
            pause_seconds = min(2 * pause_seconds, LONGEST_PAUSE_SECONDS)

    async def _send(self, call: InvokeCall, request: RpcRequest, request_id: str, _: Span | None) -> Result:
        max_calls = self._groups.max_calls(request.key)
        publish = partial(self._groups.add, max_calls=max_calls) if max_calls > 1 else None
        on_partial = None if call.on_chunk is None and call.on_progress is None else partial(dispatch_partial, call)
        try:
            reply = await self._rpc_client.call(request, on_partial, publish)
        except errors.NoAnswer:
            raise expired_fault(call.deadline_seconds) from None
        except errors.QueueFull:
            # Another copy of the request may have been admitted before.
            message = "The broker nacked the request: the target's queue is full, or cannot be reached now"
            raise errors.Overloaded(message, retry_after_ms=FULL_QUEUE_PAUSE_MS, charge_unknown=True) from None
        self._answered.add(self._session_id, request_id)
        return parse_reply(reply, Result)

    async def _read_info(self, timeout_seconds: float = OPERATION_TIMEOUT_SECONDS) -> Info:
        """Ask for what calls need. It names no answered calls: the user's own request for information does."""
        headers = {TOKEN_HEADER: self._token}
        info = await self._rpc_client.call_route(INFO, GetInfo(), headers, timeout_seconds=timeout_seconds)
        self._groups.learn(info)
        return info

    def _rpc_request(self, call: InvokeCall, request_id: str, deadline_ms: int) -> RpcRequest:
        """Return the message of a call; `_send` says when it is published and for how long its reply is awaited."""
        key = invoke_routing_key(call.request)
        # Without the target that the key names already: a question has the same bytes, and is the same call, whether it
        # names its target or that is the session's default.
        body = call.request.to_wire(_TARGET_FIELDS if key and call.request.target is not None else None)
        if len(body) > MAX_BODY_BYTES:
            raise errors.PayloadTooLarge(
                f"The request has {len(body)} bytes; no session may send more than {MAX_BODY_BYTES}"
            )
        route = conversation_route(call.request, key)
        # With a proof in place of the token: nobody who reads it can make another call.
        proof = make_proof(
            self._token_sha256,
            session_id=self._session_id,
            request_id=request_id,
            target=key,
            body_sha256=hashlib.sha256(body).hexdigest(),
            deadline=deadline_ms,
        )
        return RpcRequest(
            exchange=INVOKE.exchange if route is None else CONVERSATION,
            key=route or key,
            type=INVOKE.name,
            body=body,
            headers={
                TOKEN_HEADER: self._session_id,
                PROOF_HEADER: proof,
                REQUEST_ID_HEADER: request_id,
                DEADLINE_HEADER: deadline_ms,
                **({} if call.wait_until is None else {WAIT_UNTIL_HEADER: call.wait_until}),
                PROTOCOL_HEADER: PROTOCOL_VERSION,
                ACCEPT_HEADER: ACCEPTED[call.on_chunk is not None, call.on_progress is not None],
            },
            deadline_seconds=call.deadline_seconds,
        )


#: The fields that name the target.
_TARGET_FIELDS = {"target", "provider"}


def invoke_routing_key(request: InvokeRequest | ApiRequest) -> str:
    """Return the routing key of a request: its target's name, or an empty key, which the metadata service resolves.

    An invalid target name must not become a routing key; the empty key leads to `UnknownTarget` as well.
    """
    name = request.requested_target
    return name if name is not None and is_target_name(name) else ""


def conversation_route(request: InvokeRequest | ApiRequest, target: str) -> str | None:
    """Return the routing key of the worker that holds the conversation of a request for this target; None where any
    worker may answer. Raises `BadRequest` for what is no such key: a continuation may name no other queue."""
    turn = None if isinstance(request, ApiRequest) else request.turn
    route = None if turn is None or turn.continuation is None else turn.continuation.route
    if route is not None and (not target or not re.fullmatch(rf"{re.escape(target)}/[0-9a-f]{{32}}", route)):
        raise errors.BadRequest("turn.continuation.route: it must be as an answer of this target gave it")
    return route


def _with_target(call: InvokeCall, target: str) -> InvokeCall:
    request = call.request
    named = request._replace(target=target) if isinstance(request, ApiRequest) else request.with_fields(target=target)
    return call._replace(request=named)
