"""What every HTTP API of the gateway shares: the way to the fleet, the token, the body, and how a refusal is told.

An API is a list of routes whose endpoints authenticate themselves; `Api.endpoint` turns whatever they raise into that
API's own words.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from quintain.caller import Caller
from quintain.client.admin import Admin
from quintain.client.amqp_transport import AmqpTransport
from quintain.client.client import Client
from quintain.clock import Clock
from quintain.contracts.metadata import Info
from quintain.contracts.token import SessionToken
from quintain.errors import (
    BadRequest,
    BudgetUnavailable,
    BusError,
    Cancelled,
    Fault,
    NoAnswer,
    PayloadTooLarge,
    Unauthorized,
)
from quintain.service import defect
from quintain_gateway.instrumentation import InstrumentedTransport
from quintain_gateway.limits import Limits
from quintain_gateway.methods import Answer
from quintain_gateway.metrics import GatewayMetrics
from quintain_gateway.refusals import RequestTimeout
from quintain_gateway.visit import visit_of

Returned = TypeVar("Returned")

#: The metadata service's time is asked for again when it was heard this long ago.
CLOCK_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """One HTTP dialect: how its refusals are written, what headers every answer carries, and under which name its
    clients look for the request's id, where that is not ``x-request-id``."""

    refusal: Callable[[Fault], Response]
    headers: Mapping[str, str] = field(default_factory=dict)
    id_header: str | None = None

    def endpoint(self, answer: Answer) -> Answer:
        """An endpoint that always answers: what goes wrong becomes a refusal in this dialect."""

        async def respond(request: Request) -> Response:
            visit = visit_of(request)
            visit.route = getattr(request.scope.get("route"), "path", visit.route)
            try:
                response = await answer(request)
            except Fault as fault:
                response = self._refuse(request, fault)
            except (BusError, NoAnswer) as lost:
                response = self._refuse(request, unreachable(lost))
            except Exception as error:
                # Whatever went wrong, the client gets its one answer.
                response = self._refuse(request, defect(error, f"answering {visit.route}, x-request-id {visit.id}"))
            response.headers.update(self.headers)
            if self.id_header is not None:
                response.headers[self.id_header] = visit.id
            return response

        return respond

    def _refuse(self, request: Request, fault: Fault) -> Response:
        visit_of(request).code = fault.code
        response = self.refusal(fault)
        if response.status_code == Unauthorized.status:
            response.headers["WWW-Authenticate"] = "Bearer"
        if fault.retry_after_ms is not None:
            response.headers["Retry-After"] = str(math.ceil(fault.retry_after_ms / 1000))
        return response


def bearer(request: Request) -> str:
    """The token of ``Authorization: Bearer <token>``. Raises `Unauthorized`."""
    scheme, _, text = request.headers.get("authorization", "").partition(" ")
    if scheme != "Bearer" or not text:
        raise Unauthorized
    return text


class Door:
    """The gateway's way to the fleet: stateless but for one connection to the bus, and the time it heard there."""

    def __init__(self, caller: Caller, clock: Clock, limits: Limits, metrics: GatewayMetrics) -> None:
        self.caller, self.clock, self.limits, self.metrics = caller, clock, limits, metrics
        metrics.hears(caller)
        self._heard_at = -math.inf
        # One for each request, gone with it; one that still cancels calls lives as long as that.
        self._transports: weakref.WeakSet[AmqpTransport] = weakref.WeakSet()

    async def close(self) -> None:
        """Finish taking back the calls of clients that left: a few seconds at most. Nothing is asked after it."""
        await asyncio.gather(*(transport.close() for transport in list(self._transports)))

    async def client(self, request: Request, token_of: Callable[[Request], str] = bearer) -> Client:
        """The session's client by the request's bearer token, or by what else ``token_of`` finds. Raises
        `Unauthorized`.

        Its shape and checksum are looked at without any I/O; whether it opens anything the ledger says with the
        call. The client knows the metadata service's time, by which deadlines are set: where that was not heard
        lately, it asks first.
        """
        token = SessionToken.parse(token_of(request))
        visit_of(request).session_id = token.id
        transport = AmqpTransport(self.caller, token.text, self.clock)
        self._transports.add(transport)
        client = Client(InstrumentedTransport(transport, self.metrics, self._heard))
        if asyncio.get_running_loop().time() - self._heard_at > CLOCK_SECONDS:
            await client.get_info()
        return client

    def admin(self, request: Request) -> Admin:
        """The administrator's client by the request's bearer token; the metadata service says whether it is one."""
        return Admin(AmqpTransport(self.caller, bearer(request), self.clock))

    async def read_body(self, request: Request) -> bytes:
        """The body, up to the limit and within its time. Raises `PayloadTooLarge`, `RequestTimeout`, `Cancelled`."""
        most, seconds = self.limits.most_body_bytes, self.limits.body_seconds
        too_large = PayloadTooLarge(f"The body is larger than {most} bytes")
        if int(request.headers.get("content-length", 0)) > most:
            raise too_large
        body = bytearray()
        try:
            async with asyncio.timeout(seconds):
                async for chunk in request.stream():
                    body += chunk
                    if len(body) > most:
                        raise too_large
        except TimeoutError:
            raise RequestTimeout(f"The body did not arrive within {seconds:g} s") from None
        except ClientDisconnect:
            raise Cancelled("The client left before its body had arrived") from None
        return bytes(body)

    def _heard(self, info: Info) -> None:
        self.clock.learn(info.now)
        self.metrics.knows(info.available_targets)
        self._heard_at = asyncio.get_running_loop().time()


@contextlib.asynccontextmanager
async def proven(client: Client) -> AsyncIterator[None]:
    """Read a body inside: what is wrong with it hears a token that opens something; any other is `Unauthorized`."""
    try:
        yield
    except (BadRequest, PayloadTooLarge):
        await client.get_info()
        raise


async def attended(request: Request, work: Coroutine[Any, Any, Returned]) -> Returned:
    """Work for as long as the client is there: one that leaves has it cancelled, and this raises `Cancelled`.

    The request's body must have been read: what comes after it is the client's leaving, and nothing else.
    """
    loop = asyncio.get_running_loop()
    working, leaving = loop.create_task(work), loop.create_task(_left(request))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise Cancelled("The client left before its answer")
        return working.result()
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def read_json(body: bytes) -> object:
    """The value of a JSON body. Raises `BadRequest`, also for a number that JSON, or no computer, has."""
    try:
        return json.loads(body, parse_constant=_no_number, parse_float=_finite)
    except RecursionError:
        raise BadRequest("The body is not JSON that anybody nests so deep") from None
    except ValueError as error:
        raise BadRequest(f"The body is not JSON: {error}") from None


def _no_number(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number")


def _finite(digits: str) -> float:
    number = float(digits)
    return number if math.isfinite(number) else _no_number(digits)


def unreachable(lost: BusError | NoAnswer) -> Fault:
    """What a caller is told where the bus, or whoever answers on it, is out of reach."""
    return BudgetUnavailable(f"The fleet cannot be reached: {lost.message}")
