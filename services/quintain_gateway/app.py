"""The HTTP routes: AgentV's proxy API, under the same sessions, budgets and faults as over AMQP.

Every route authenticates itself. The order is AgentV's: CORS, the token, the path; then ours: the body, the budget.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from quintain.caller import Caller
from quintain.client.client import BatchItem, Client, unspent
from quintain.clock import Clock
from quintain.contracts.invoke import InvokeRequest
from quintain.contracts.token import SessionToken
from quintain.errors import BadRequest, BudgetUnavailable, BusError, Fault, PayloadTooLarge, QuintainError, Unauthorized
from quintain.service import defect
from quintain_gateway.translate import (
    read_batch,
    read_invoke,
    read_json,
    write_fault,
    write_info,
    write_item_fault,
    write_result,
)

#: ``protocol.md`` §2.
MOST_BODY_BYTES = 1024 * 1024

CORS = {
    "Access-Control-Allow-Origin": "*",
    "Access-Control-Allow-Methods": "GET, POST, OPTIONS",
    "Access-Control-Allow-Headers": "Content-Type, Authorization",
}

#: Every method is heard, so that a wrong one is a 404 behind the token, as in AgentV, and never a 405 before it.
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")

Answer = Callable[["Gateway", Request, Client], Awaitable[Response]]


class Gateway:
    """Answers HTTP with what the fleet says; stateless but for its connection to the bus."""

    def __init__(self, caller: Caller, clock: Clock) -> None:
        self._caller, self._clock = caller, clock

    def app(self) -> Starlette:
        """The ASGI application."""
        anywhere = Route(
            "/{path:path}", self._endpoint, methods=["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
        )
        return Starlette(routes=[anywhere])

    async def _endpoint(self, request: Request) -> Response:
        if request.method == "OPTIONS":
            return Response(status_code=204, headers=CORS)
        try:
            response = await self._answer(request)
        except Fault as fault:
            response = _refusal(fault)
        except BusError as error:
            response = _refusal(BudgetUnavailable(f"The fleet cannot be reached: {error.message}"))
        except QuintainError as error:
            response = _refusal(defect(error, f"answering {request.method} {request.scope['path']}"))
        response.headers.update(CORS)
        return response

    async def _answer(self, request: Request) -> Response:
        client = self._authenticated(request)
        answer = ROUTES.get((request.method, request.scope["path"])) if not request.scope["query_string"] else None
        if answer is None:
            return JSONResponse({"error": "Not found"}, status_code=404)
        return await answer(self, request, client)

    def _authenticated(self, request: Request) -> Client:
        scheme, _, text = request.headers.get("authorization", "").partition(" ")
        if scheme != "Bearer":
            raise Unauthorized
        # Shape and checksum, with no I/O; whether it opens anything the ledger says with the call.
        return Client(self._caller, self._clock, SessionToken.parse(text).text)

    async def info(self, _: Request, client: Client) -> Response:
        """``GET /info``"""
        return JSONResponse(write_info(await client.get_info()))

    async def invoke(self, request: Request, client: Client) -> Response:
        """``POST /invoke``"""
        try:
            ask = read_invoke(read_json(await body_of(request)))
        except BadRequest:
            # The token is looked at before the body: one that opens nothing hears nothing about its body.
            await client.get_info()
            raise
        return JSONResponse(write_result(await client.send(ask)))

    async def invoke_batch(self, request: Request, client: Client) -> Response:
        """``POST /invokeBatch``: all at once, answered in order; the budget all or nothing."""
        try:
            items = read_batch(read_json(await body_of(request)))
        except BadRequest:
            await client.get_info()
            raise
        if not items:
            await client.get_info()
            return JSONResponse({"responses": []})
        ids = await client.reserve(len(items))
        answers = await asyncio.gather(*(_one(client, item, name) for item, name in zip(items, ids, strict=True)))
        await client.release([name for name, item in zip(ids, answers, strict=True) if unspent(item)])
        return JSONResponse({"responses": [_written(item) for item in answers]})


#: Exact paths and methods, as AgentV's proxy matches them: everything else is 404.
ROUTES: dict[tuple[str, str], Answer] = {
    ("GET", "/info"): Gateway.info,
    ("POST", "/invoke"): Gateway.invoke,
    ("POST", "/invokeBatch"): Gateway.invoke_batch,
}


async def body_of(request: Request) -> bytes:
    """The body, up to the limit. Raises `PayloadTooLarge`."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MOST_BODY_BYTES:
            raise PayloadTooLarge(f"The body is larger than {MOST_BODY_BYTES} bytes")
    return bytes(body)


async def _one(client: Client, item: InvokeRequest | Fault, request_id: str) -> BatchItem:
    if isinstance(item, Fault):
        return BatchItem(None, item)
    try:
        return BatchItem(await client.send(item, request_id=request_id), None)
    except Fault as fault:
        return BatchItem(None, fault)


def _written(item: BatchItem) -> dict[str, object]:
    if item.result is not None:
        return write_result(item.result)
    assert item.fault is not None, "an item has a result or a fault"
    return write_item_fault(item.fault)


def _refusal(fault: Fault) -> Response:
    status, body = write_fault(fault)
    return JSONResponse(body, status_code=status)
