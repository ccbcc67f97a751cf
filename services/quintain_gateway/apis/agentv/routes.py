"""AgentV's proxy API in all its versions: ``GET /info``, ``POST /invoke``, ``POST /invokeBatch``.

Requests are checked in AgentV's order: CORS, token, path; then body and budget. Paths, methods and queries match
exactly, with any prefix. Everything else is 404, after the token was checked.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence
from functools import partial

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from quintain.client.client import Client
from quintain.client.transport import BatchItem, may_be_uncharged
from quintain.contracts.invoke import FaultReply, InvokeRequest
from quintain.contracts.json_text import parse_json
from quintain.errors import BusError, Fault
from quintain.rpc.server import log_defect
from quintain_gateway.apis.agentv.wire import (
    AgentVBatchRequest,
    AgentVBatchResponse,
    AgentVInfo,
    AgentVResult,
    agentv_status,
    ignored_keys,
    read_batch,
    read_invoke,
    write_info,
    write_item_fault,
    write_result,
)
from quintain_gateway.http.context import UNMATCHED_ROUTE, context_of
from quintain_gateway.http.endpoint import (
    HTTP_METHODS,
    Api,
    FleetGateway,
    cancel_on_disconnect,
    unreachable_fault,
    verify_token_on_body_error,
)
from quintain_gateway.http.errors import JSON_MEDIA_TYPE, NotFound
from quintain_gateway.http.headers import read_deadline_seconds, read_request_id
from quintain_gateway.http.openapi import SESSION_TOKEN, Operation, fault_responses
from quintain_gateway.http.schemas import IGNORED_HEADER, format_field_names

log = logging.getLogger(__name__)

CORS_HEADERS = {
    "Access-Control-Allow-Origin": "*",
    "Access-Control-Allow-Methods": "GET, POST, OPTIONS",
    "Access-Control-Allow-Headers": "Content-Type, Authorization",
}

#: The only query string that is accepted; it adds usage per target, which AgentV's own API does not have.
PER_TARGET_QUERY = b"perTarget=true"

_CALL_FAULT_STATUSES = (400, 401, 403, 404, 408, 409, 410, 413, 429, 431, 500, 503, 504)

OPERATIONS = (
    Operation(
        "GET",
        "/info",
        "Show the session and its counters",
        token=SESSION_TOKEN,
        responses={200: AgentVInfo, **fault_responses(401, 404, 431, 500, 503)},
        query={"perTarget": {"enum": ["true"]}},
    ),
    Operation(
        "POST",
        "/invoke",
        "Call a target",
        token=SESSION_TOKEN,
        request_model=InvokeRequest,
        responses={200: AgentVResult, **fault_responses(*_CALL_FAULT_STATUSES)},
    ),
    Operation(
        "POST",
        "/invokeBatch",
        "Make several calls concurrently; the budget is reserved for all of them or for none",
        token=SESSION_TOKEN,
        request_model=AgentVBatchRequest,
        responses={200: AgentVBatchResponse, **fault_responses(*_CALL_FAULT_STATUSES)},
    ),
)


def error_response(fault: Fault) -> Response:
    """Return a fault as an error response with the status that AgentV's clients expect."""
    return Response(
        FaultReply.from_fault(fault).to_wire(), status_code=agentv_status(fault), media_type=JSON_MEDIA_TYPE
    )


API = Api(error_response=error_response, headers=CORS_HEADERS)


class AgentVEndpoints:
    """The endpoints of AgentV's proxy API, behind a route that matches every path."""

    def __init__(self, gateway: FleetGateway) -> None:
        self._gateway = gateway
        # All methods are routed here: as in AgentV, a wrong one gets 404 after the token check, and never 405.
        route = partial(Route, endpoint=API.to_endpoint(self.handle), methods=list(HTTP_METHODS))
        self.routes = [route("/{path:path}")]
        #: The same without a prefix: no other API has these paths, and they are found at once where they come first.
        self.routes_without_prefix = [route("/invoke"), route("/invokeBatch"), route("/info")]
        self._handlers = {
            ("GET", b"info", b""): self.info,
            ("GET", b"info", PER_TARGET_QUERY): self.info,
            ("POST", b"invoke", b""): self.invoke,
            ("POST", b"invokeBatch", b""): self.batch,
        }

    async def handle(self, request: Request) -> Response:
        """Answer any request that no other API matches, with the checks in AgentV's order."""
        last_segment = request.scope["raw_path"].rpartition(b"/")[2]
        handler = self._handlers.get((request.method, last_segment, request.scope["query_string"]))
        context_of(request).route = f"/{last_segment.decode()}" if handler is not None else UNMATCHED_ROUTE
        if request.method == "OPTIONS":
            return Response(status_code=204)
        client = await self._gateway.session_client(request)
        if handler is None:
            await client.get_info()
            raise NotFound
        return await handler(request, client)

    async def info(self, request: Request, client: Client) -> Response:
        """``GET /info``: return the session and its counters."""
        info = await client.get_info(per_target=request.scope["query_string"] == PER_TARGET_QUERY)
        return Response(write_info(info).to_wire(), media_type=JSON_MEDIA_TYPE)

    async def invoke(self, request: Request, client: Client) -> Response:
        """``POST /invoke``: call a target and return its result."""
        async with verify_token_on_body_error(client, budget_first=True):
            request_id, deadline_seconds = read_request_id(request), read_deadline_seconds(request, self._gateway.clock)
            body = parse_json(await self._gateway.read_body(request, client))
            invoke_request = read_invoke(body)
        call = client.send(invoke_request, request_id=request_id, deadline_seconds=deadline_seconds)
        result = await cancel_on_disconnect(request, call)
        headers = _ignored_header({*ignored_keys(body), *(result.ignored or ())})
        return Response(write_result(result).to_wire(), headers=headers, media_type=JSON_MEDIA_TYPE)

    async def batch(self, request: Request, client: Client) -> Response:
        """``POST /invokeBatch``: make several calls concurrently and return their results in the order of the request.

        The budget is reserved for all calls or for none.
        """
        async with verify_token_on_body_error(client):
            deadline_seconds = read_deadline_seconds(request, self._gateway.clock)
            body = parse_json(await self._gateway.read_body(request, client))
            items = read_batch(body)
        if not items:
            await client.get_info()
            return JSONResponse({"responses": []})
        results = await cancel_on_disconnect(request, _invoke_batch(client, items, deadline_seconds))
        ignored = set().union(*map(ignored_keys, body["requests"])) if isinstance(body, dict) else set()
        ignored.update(name for item in results if item.result is not None for name in item.result.ignored or ())
        responses = {"responses": [_write_item(item) for item in results]}
        return JSONResponse(responses, headers=_ignored_header(ignored))


def _ignored_header(names: set[str]) -> dict[str, str]:
    return {IGNORED_HEADER: format_field_names(names)} if names else {}


async def _invoke_batch(
    client: Client, items: Sequence[InvokeRequest | Fault], deadline_seconds: float
) -> list[BatchItem]:
    """Reserve the budget, make all calls, and release unused reservations, also if the request is cancelled."""
    request_ids = await client.reserve(len(items), deadline_seconds=deadline_seconds)
    results: dict[str, BatchItem] = {}

    async def invoke_one(item: InvokeRequest | Fault, request_id: str) -> BatchItem:
        results[request_id] = await _invoke_item(client, item, request_id, deadline_seconds)
        return results[request_id]

    try:
        return await asyncio.gather(*(invoke_one(item, name) for item, name in zip(items, request_ids, strict=True)))
    finally:
        try:
            await client.release([name for name, item in results.items() if may_be_uncharged(item)])
        except (Fault, BusError) as error:
            log.warning(
                "Unused reservations of a batch were not released and expire at their deadline: %s", error.message
            )


async def _invoke_item(
    client: Client, item: InvokeRequest | Fault, request_id: str, deadline_seconds: float
) -> BatchItem:
    """Make the call of one batch item; a fault, or any other exception, becomes the fault of that item."""
    if isinstance(item, Fault):
        return BatchItem(None, item)
    try:
        call = client.send(item, request_id=request_id, deadline_seconds=deadline_seconds, cancel_with_task=True)
        return BatchItem(await call, None)
    except Fault as fault:
        return BatchItem(None, fault)
    except BusError as bus_error:
        return BatchItem(None, unreachable_fault(bus_error))
    except Exception as error:
        return BatchItem(None, log_defect(error, "calling the target of a batch item"))


def _write_item(item: BatchItem) -> dict[str, object]:
    if item.result is not None:
        result: dict[str, object] = json.loads(write_result(item.result).to_wire())
        return result
    assert item.fault is not None, "an item has a result or a fault"
    return write_item_fault(item.fault)
