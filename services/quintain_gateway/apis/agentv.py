"""AgentV's proxy API in all its versions: ``GET /info``, ``POST /invoke``, ``POST /invokeBatch``.

Requests are checked in AgentV's order: CORS, token, path; then body and budget. Paths, methods and queries match
exactly, with any prefix. Everything else is 404, after the token was checked, or 405 for the methods that no path has.
``docs/protocol/http.md`` lists the intentional differences from AgentV; the error messages are AgentV's.
"""

from __future__ import annotations

import json
import secrets
from typing import Any

from pydantic import Field, ValidationError, computed_field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from quintain.client.client import Client
from quintain.client.transport import BatchItem
from quintain.contracts.api_request import parse_json
from quintain.contracts.invoke import FaultReply, InvokeRequest, OutputMessage, Result
from quintain.contracts.message import Message, describe_validation_error
from quintain.contracts.session import Info
from quintain.errors import BadRequest, Fault, PayloadTooLarge
from quintain_gateway.auth import FleetGateway, verify_token_on_body_error
from quintain_gateway.calls import read_client_timeout, read_deadline_seconds, read_request_id, send_in_time
from quintain_gateway.endpoint import UNMATCHED_ROUTE, Api, cancel_on_disconnect, context_of
from quintain_gateway.errors import JSON_MEDIA_TYPE, MethodNotAllowed, NotFound
from quintain_gateway.openapi import SESSION_TOKEN, Operation, fault_responses
from quintain_gateway.response_writer import ignored_header

#: Codes of provider failures, which AgentV's API answers with status 500; the body has the code.
PROVIDER_FAILURES = frozenset(
    {
        "rejected",
        "target_unavailable",
        "provider_error",
        "reply_too_large",
        "worker_lost",
        "timeout",
        "throttled",
    }
)

#: The maximum number of requests in a batch: that of one reservation.
MAX_BATCH_ITEMS = 10_000

_KNOWN_KEYS = frozenset(name for field, info in InvokeRequest.model_fields.items() for name in (field, info.alias))

JsonDict = dict[str, Any]


class AgentVBatchRequest(Message):
    """Several requests to make concurrently. An invalid request fails by itself; the others are made."""

    requests: list[Any] = Field(max_length=MAX_BATCH_ITEMS)


class AgentVInfo(Info):
    """A session and its counters, with the field names of all versions of AgentV."""

    provider_label: str
    available_provider_labels: list[str]


class AgentVResult(Result):
    """The result of a call. ``outputMessages`` are the messages of ``output`` again."""

    output_messages: list[OutputMessage]

    @computed_field  # type: ignore[prop-decorator]  # mypy knows no decorator of a property
    @property
    def raw_text(self) -> str:
        """The answer's text."""
        return super().raw_text


class AgentVBatchFault(FaultReply):
    """The response to a request of a batch that failed: ``output`` is empty, and ``rawText`` begins with ``Error:``."""

    output: list[OutputMessage] = Field(default_factory=list)
    output_messages: list[OutputMessage] = Field(default_factory=list)
    raw_text: str


class AgentVBatchResponse(Message):
    """The responses of a batch, in the order of its requests."""

    responses: list[AgentVResult | AgentVBatchFault]


def read_invoke(value: object) -> InvokeRequest:
    """Parse one request: AgentV's, with a question, or Quintain's, with messages in place of the question.

    Raises `BadRequest`, with AgentV's message if the request has neither.
    """
    question = value.get("question") if isinstance(value, dict) else None
    if not isinstance(value, dict) or not (value.get("messages") if question is None else isinstance(question, str)):
        raise BadRequest("Missing required field: question")
    named = {name: _as_text(value[name]) for name in ("target", "provider") if name in value}
    try:
        return InvokeRequest.model_validate({**value, **named})
    except ValidationError as error:
        raise BadRequest(describe_validation_error(error)) from None


def _as_text(target: object) -> object:
    """Return a number or a boolean as AgentV writes it: `true` is a target that is not known, and no wrong type."""
    return json.dumps(target) if isinstance(target, bool | int | float) else target


def ignored_keys(value: object) -> set[str]:
    """Return the keys of a request that have no meaning here, and are ignored as AgentV ignores them."""
    if not isinstance(value, dict):
        return set()
    return {str(key) for key, item in value.items() if item is not None and key not in _KNOWN_KEYS}


def read_batch(value: object) -> list[InvokeRequest | Fault]:
    """Parse a batch. An invalid request becomes a `Fault` in its place, so that the others can be made.

    Raises `BadRequest` if there is no list of requests, and `PayloadTooLarge` if it has more than `MAX_BATCH_ITEMS`.
    """
    requests = value.get("requests") if isinstance(value, dict) else None
    if not isinstance(requests, list):
        raise BadRequest("Missing required field: requests (array)")
    if len(requests) > MAX_BATCH_ITEMS:
        raise PayloadTooLarge(f"requests: {len(requests)} are too many; a batch has at most {MAX_BATCH_ITEMS}")
    return [_read_item(item) for item in requests]


def _read_item(value: object) -> InvokeRequest | Fault:
    try:
        return read_invoke(value)
    except Fault as fault:
        return fault


def write_info(info: Info) -> Message:
    """Return a session with the field names of all versions of AgentV."""
    return AgentVInfo(
        **info.model_dump(), provider_label=info.target_name, available_provider_labels=info.available_targets
    )


def write_result(result: Result) -> AgentVResult:
    """Return a result with the field names of all versions of AgentV."""
    return AgentVResult.unchecked(**vars(result), output_messages=result.output)


CORS_HEADERS = {
    "Access-Control-Allow-Origin": "*",
    "Access-Control-Allow-Methods": "GET, POST, OPTIONS",
    "Access-Control-Allow-Headers": "Content-Type, Authorization",
}

#: The only query string that is accepted; it adds what calls took, which AgentV's own API does not have.
USAGE_QUERY = b"usage=true"

_CALL_FAULT_STATUSES = (400, 401, 403, 404, 405, 408, 409, 410, 413, 415, 429, 431, 500, 503, 504)

OPERATIONS = (
    Operation(
        "GET",
        "/info",
        "Show the session and its counters",
        token=SESSION_TOKEN,
        responses={200: AgentVInfo, **fault_responses(401, 404, 405, 431, 500, 503)},
        query={"usage": {"enum": ["true"]}},
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
    status = 500 if fault.code in PROVIDER_FAILURES else fault.status
    return Response(FaultReply.from_fault(fault).to_wire(), status_code=status, media_type=JSON_MEDIA_TYPE)


API = Api(error_response=error_response, headers=CORS_HEADERS)


_METHODS = {b"info": "GET", b"invoke": "POST", b"invokeBatch": "POST"}


class AgentVEndpoints:
    """The endpoints of AgentV's proxy API, behind a route that matches every path."""

    def __init__(self, gateway: FleetGateway) -> None:
        self._gateway = gateway
        # All methods are routed here: as in AgentV, they are answered after the token check.
        paths = ("/{path:path}", "/invoke", "/invokeBatch", "/info")
        everything, *own = [Route(path, API.to_endpoint(self.handle)) for path in paths]
        for route in (everything, *own):
            route.methods = None
        self.routes = [everything]
        #: The same without a prefix: no other API has these paths, and they are found at once where they come first.
        self.routes_without_prefix = own
        self._handlers = {
            ("GET", b"info", b""): self.info,
            ("GET", b"info", USAGE_QUERY): self.info,
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
            if last_segment in _METHODS and request.method not in {"GET", "POST"}:
                raise MethodNotAllowed.at(f"/{last_segment.decode()}", request.method, _METHODS[last_segment])
            raise NotFound
        return await handler(request, client)

    async def info(self, request: Request, client: Client) -> Response:
        """``GET /info``: return the session and its counters."""
        info = await client.get_info(usage=request.scope["query_string"] == USAGE_QUERY)
        return Response(write_info(info).to_wire(), media_type=JSON_MEDIA_TYPE)

    async def invoke(self, request: Request, client: Client) -> Response:
        """``POST /invoke``: call a target and return its result."""
        async with verify_token_on_body_error(client, budget_first=True):
            request_id, deadline_seconds = read_request_id(request), read_deadline_seconds(request, self._gateway.clock)
            body = parse_json(await self._gateway.bodies.read(request, client))
            invoke_request = read_invoke(body)
        call_id = context_of(request).request_id = request_id or secrets.token_urlsafe(16)
        # A call that its client did not name cannot be asked for again.
        options = {"request_id": call_id, "cancel_with_task": not request_id}
        call = send_in_time(client, invoke_request, read_client_timeout(request), deadline_seconds, **options)
        result = await cancel_on_disconnect(request, call)
        headers = ignored_header({*ignored_keys(body), *(result.ignored or ())})
        return Response(write_result(result).to_wire(), headers=headers, media_type=JSON_MEDIA_TYPE)

    async def batch(self, request: Request, client: Client) -> Response:
        """``POST /invokeBatch``: make several calls concurrently and return their results in the order of the request.

        The budget is reserved for all calls or for none.
        """
        async with verify_token_on_body_error(client):
            deadline_seconds = read_deadline_seconds(request, self._gateway.clock)
            body = parse_json(await self._gateway.bodies.read(request, client))
            items = read_batch(body)
        if not items:
            await client.get_info()
            return JSONResponse({"responses": []})
        results = await cancel_on_disconnect(request, client.invoke_batch(items, deadline_seconds=deadline_seconds))
        ignored = set().union(*map(ignored_keys, body["requests"])) if isinstance(body, dict) else set()
        ignored.update(name for item in results if item.result is not None for name in item.result.ignored or ())
        responses = b'{"responses":[%b]}' % b",".join(map(_write_item, results))
        return Response(responses, headers=ignored_header(ignored), media_type=JSON_MEDIA_TYPE)


def _write_item(item: BatchItem) -> bytes:
    if item.result is not None:
        return write_result(item.result).to_wire()
    assert item.fault is not None, "an item has a result or a fault"
    reply, text = FaultReply.from_fault(item.fault), f"Error: {item.fault.message}"
    return AgentVBatchFault(**dict(reply), raw_text=text).to_wire()
