"""AgentV's proxy API, all its dialects: ``GET /info``, ``POST /invoke``, ``POST /invokeBatch``.

The order of checks is AgentV's: CORS, the token, the path; then ours: the body, the budget. Paths, methods and queries
match exactly behind any prefix, and everything else is 404 behind the token.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from quintain.client.client import Client
from quintain.client.transport import BatchItem, unspent
from quintain.contracts.invoke import FaultReply, InvokeRequest
from quintain.errors import BusError, Fault
from quintain.service import defect
from quintain_gateway.agentv_wire import (
    AgentVBatch,
    AgentVInfo,
    AgentVItems,
    AgentVResult,
    read_batch,
    read_invoke,
    status_of,
    write_info,
    write_item_fault,
    write_result,
)
from quintain_gateway.door import Api, Door, attended, proven, read_json, unreachable
from quintain_gateway.methods import METHODS
from quintain_gateway.operation import SESSION_TOKEN, Operation, faults
from quintain_gateway.refusals import JSON, NotFound
from quintain_gateway.terms import deadline_seconds_of, request_id_of
from quintain_gateway.visit import ELSEWHERE, visit_of

log = logging.getLogger(__name__)

CORS = {
    "Access-Control-Allow-Origin": "*",
    "Access-Control-Allow-Methods": "GET, POST, OPTIONS",
    "Access-Control-Allow-Headers": "Content-Type, Authorization",
}

#: The one query there is: beyond AgentV, what went to which target.
PER_TARGET = b"perTarget=true"

_ASKED = (400, 401, 403, 404, 408, 409, 410, 413, 429, 431, 500, 503, 504)

OPERATIONS = (
    Operation(
        "GET", "/info", "The session and its counters", token=SESSION_TOKEN,
        answers={200: AgentVInfo, **faults(401, 404, 431, 500, 503)}, query={"perTarget": {"enum": ["true"]}},
    ),
    Operation(
        "POST", "/invoke", "Ask a target", token=SESSION_TOKEN, asks=InvokeRequest,
        answers={200: AgentVResult, **faults(*_ASKED)},
    ),
    Operation(
        "POST", "/invokeBatch", "Ask many at once; the budget is reserved all or nothing", token=SESSION_TOKEN,
        asks=AgentVBatch, answers={200: AgentVItems, **faults(*_ASKED)},
    ),
)  # fmt: skip


def refusal(fault: Fault) -> Response:
    """A fault as AgentV's clients read it."""
    return Response(FaultReply.of(fault).to_wire(), status_code=status_of(fault), media_type=JSON)


API = Api(refusal=refusal, headers=CORS)


class AgentV:
    """The endpoints of AgentV's proxy."""

    def __init__(self, door: Door) -> None:
        self._door = door
        # Every method is heard, so that a wrong one is a 404 behind the token, as in AgentV, and never a 405 before it.
        self.routes = [Route("/{path:path}", API.endpoint(self.answer), methods=list(METHODS))]
        self._answers = {
            ("GET", b"info", b""): self.info,
            ("GET", b"info", PER_TARGET): self.info,
            ("POST", b"invoke", b""): self.invoke,
            ("POST", b"invokeBatch", b""): self.batch,
        }

    async def answer(self, request: Request) -> Response:
        """Whatever is asked of AgentV's proxy, in AgentV's order of checks."""
        name = request.scope["raw_path"].rpartition(b"/")[2]
        answer = self._answers.get((request.method, name, request.scope["query_string"]))
        visit_of(request).route = f"/{name.decode()}" if answer is not None else ELSEWHERE
        if request.method == "OPTIONS":
            return Response(status_code=204)
        client = await self._door.client(request)
        if answer is None:
            await client.get_info()
            raise NotFound
        return await answer(request, client)

    async def info(self, request: Request, client: Client) -> Response:
        """``GET /info``"""
        info = await client.get_info(per_target=request.scope["query_string"] == PER_TARGET)
        return Response(write_info(info).to_wire(), media_type=JSON)

    async def invoke(self, request: Request, client: Client) -> Response:
        """``POST /invoke``"""
        async with proven(client):
            request_id, seconds = request_id_of(request), deadline_seconds_of(request, self._door.clock)
            ask = read_invoke(read_json(await self._door.read_body(request)))
        asking = client.send(ask, request_id=request_id, deadline_seconds=seconds)
        return JSONResponse(write_result(await attended(request, asking)))

    async def batch(self, request: Request, client: Client) -> Response:
        """``POST /invokeBatch``: all at once, answered in order; the budget all or nothing."""
        async with proven(client):
            seconds = deadline_seconds_of(request, self._door.clock)
            items = read_batch(read_json(await self._door.read_body(request)))
        if not items:
            await client.get_info()
            return JSONResponse({"responses": []})
        answers = await attended(request, _all(client, items, seconds))
        return JSONResponse({"responses": [_written(item) for item in answers]})


async def _all(client: Client, items: Sequence[InvokeRequest | Fault], deadline_seconds: float) -> list[BatchItem]:
    """Reserve all, ask all, give back what was not used; also where the client leaves in the middle."""
    ids = await client.reserve(len(items), deadline_seconds=deadline_seconds)
    ended: dict[str, BatchItem] = {}

    async def one(item: InvokeRequest | Fault, request_id: str) -> BatchItem:
        ended[request_id] = await _one(client, item, request_id, deadline_seconds)
        return ended[request_id]

    try:
        return await asyncio.gather(*(one(item, name) for item, name in zip(items, ids, strict=True)))
    finally:
        try:
            await client.release([name for name, item in ended.items() if unspent(item)])
        except (Fault, BusError) as lost:
            log.warning("What a batch did not use is given back at its deadline: %s", lost.message)


async def _one(client: Client, item: InvokeRequest | Fault, request_id: str, deadline_seconds: float) -> BatchItem:
    """One item's result, or the fault that took its place, whatever went wrong."""
    if isinstance(item, Fault):
        return BatchItem(None, item)
    try:
        asking = client.send(item, request_id=request_id, deadline_seconds=deadline_seconds, taken_back=True)
        return BatchItem(await asking, None)
    except Fault as fault:
        return BatchItem(None, fault)
    except BusError as lost:
        return BatchItem(None, unreachable(lost))
    except Exception as error:
        return BatchItem(None, defect(error, "asking one item of a batch"))


def _written(item: BatchItem) -> dict[str, object]:
    if item.result is not None:
        return write_result(item.result)
    assert item.fault is not None, "an item has a result or a fault"
    return write_item_fault(item.fault)
