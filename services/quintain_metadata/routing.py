"""Requests that named no target, or one that nothing serves: resolved here, or answered with the list."""

from __future__ import annotations

import asyncio
import dataclasses
import logging

from quintain.bus.base import Bus, Delivery, Envelope, HeaderValue
from quintain.contracts.invoke import InvokeRequest
from quintain.contracts.names import shown
from quintain.contracts.token import SessionToken
from quintain.errors import BadRequest, BrokerUnavailable, Fault, Overloaded, QueueFull, UnknownTarget
from quintain.routes import REQUEST_ID_HEADER, ROUTED_HEADER, TOKEN_HEADER
from quintain.service import answer_to, at_work, carried_headers, reply, request_id_of
from quintain.telemetry.conventions import processed
from quintain.timings import Timings
from quintain.topology import INVOKE, UNROUTED, UNROUTED_QUEUE, target_topology
from quintain_metadata import reservations, sessions, upkeep
from quintain_metadata.ledger import Ledger
from quintain_metadata.records import Moment
from quintain_metadata.sessions import Session
from quintain_metadata.steps import Steps

log = logging.getLogger(__name__)

_ROUTING = processed(UNROUTED.name, "", UNROUTED_QUEUE.name)


@dataclasses.dataclass(frozen=True, slots=True)
class Wanted:
    """The target a request is for, the spelling it was named by, and what is known."""

    target: str
    spelling: str
    registered: bool
    available: list[str]


class Router:
    """Answers the unrouted queue."""

    def __init__(self, bus: Bus, ledger: Ledger, timings: Timings) -> None:
        self._bus, self._ledger, self._timings = bus, ledger, timings

    async def __call__(self, delivery: Delivery) -> None:
        """Send one request on to its target, or answer it."""
        with at_work(delivery, _ROUTING):
            refusal = await answer_to(self._route(delivery), "routing a request")
            if refusal is not None:
                await reply(self._bus, delivery, refusal, {REQUEST_ID_HEADER: request_id_of(delivery)})
            await delivery.ack()

    async def _route(self, delivery: Delivery) -> Fault | None:
        """Send it on, or say why not."""
        resolved = await self._resolve(delivery)
        if isinstance(resolved, Fault):
            return resolved
        await self._send_on(delivery, resolved)
        return None

    async def _resolve(self, delivery: Delivery) -> str | Fault:
        """The target to send it on to, or what the caller is told; a refusal ends a reservation."""
        offered = delivery.headers.get(TOKEN_HEADER)
        token = SessionToken.parse(offered if isinstance(offered, str) else "")

        def steps(moment: Moment) -> Steps[str | Fault]:
            session = yield from sessions.prove(moment.now, token)
            refusal: Fault
            try:
                wanted = yield from wanted_by(session, delivery)
            except BadRequest as mistake:
                refusal = mistake
            else:
                if wanted.registered and not delivery.headers.get(ROUTED_HEADER):
                    return wanted.target
                refusal = unknown(wanted)
            yield from reservations.release(moment, session, [request_id_of(delivery)])
            return refusal

        return await self._ledger.do(steps)

    async def _send_on(self, delivery: Delivery, target: str) -> None:
        """Publish it to its target, byte for byte, marked so that it cannot go round in a circle.

        While the broker is away it waits: the request comes again with the connection, and a fault told now would be
        an answer beside that one's.
        """
        envelope = Envelope(
            body=delivery.body,
            type=delivery.type,
            correlation_id=delivery.correlation_id,
            reply_to=delivery.reply_to,
            headers={**headers_of(delivery), ROUTED_HEADER: 1},
            expiration_ms=delivery.expiration_ms,
        )
        while True:
            try:
                await self._bus.declare(target_topology(target))
                await self._bus.publish(INVOKE, target, envelope)
            except QueueFull:
                raise Overloaded(f"The queue of target {target!r} is full", retry_after_ms=1000) from None
            except BrokerUnavailable as error:
                log.warning("A request could not be sent on to its target and will be: %s", error.message)
                await asyncio.sleep(self._timings.route_pause_seconds)
            else:
                return


def wanted_by(session: Session, delivery: Delivery) -> Steps[Wanted]:
    """Which target a request is for. Raises `BadRequest`."""
    request = InvokeRequest.from_wire(delivery.body)
    named = request.names
    if delivery.routing_key and named is not None and named != delivery.routing_key:
        raise BadRequest(f"target: the body names {shown(named)!r}, the routing key {delivery.routing_key!r}")
    spelling = "provider" if request.target is None and request.provider is not None else "target"
    settled = yield from upkeep.target_of(session.id, request_id_of(delivery))
    # An empty name is a name, and an unknown one: it is not the default.
    target = delivery.routing_key or (settled or session.default_target if named is None else named)
    registered = yield from upkeep.target_names()
    available = [name for name in registered if session.allows(name)]
    return Wanted(target, spelling, target in registered, available)


def unknown(wanted: Wanted) -> UnknownTarget:
    """The fault that names what there is, worded as the caller spelled it (AgentV's sentence)."""
    return UnknownTarget(
        f"Unknown {wanted.spelling} '{shown(wanted.target)}'. Available: {', '.join(wanted.available)}",
        available_targets=wanted.available,
    )


def headers_of(delivery: Delivery) -> dict[str, HeaderValue]:
    """The headers that may be sent on; what a broker adds of its own is left behind."""
    carried = carried_headers(delivery.headers)
    return {key: value for key, value in carried.items() if not key.startswith(("x-first-", "x-last-", "x-death"))}
