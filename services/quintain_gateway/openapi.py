"""``GET /openapi.json``: builds the OpenAPI 3.1 document from the `Operation` objects of each API."""

from __future__ import annotations

import functools
import http
import importlib.metadata
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from quintain.contracts.invoke import FaultReply
from quintain.errors import Cancelled
from quintain_gateway.endpoint import PLAIN, method_route
from quintain_gateway.errors import EVENT_STREAM_MEDIA_TYPE, JSON_MEDIA_TYPE

TokenScheme = Literal["sessionToken", "adminToken"]

SESSION_TOKEN: TokenScheme = "sessionToken"  # noqa: S105 -- the name of a scheme, not a token
ADMIN_TOKEN: TokenScheme = "adminToken"  # noqa: S105 -- the name of a scheme, not a token

#: The body of a response: the model of a JSON body, or another media type.
ResponseBody = type[BaseModel] | str


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path in the OpenAPI document.

    ``responses`` maps statuses to bodies. ``query`` maps the names of query parameters, all optional, to JSON schemas.
    ``streams`` means that a 200 response may also be server-sent events.
    """

    method: str
    path: str
    summary: str
    responses: Mapping[int, ResponseBody]
    token: TokenScheme | None = None
    request_model: type[BaseModel] | None = None
    query: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    streams: bool = False


def fault_responses(*statuses: int, body: type[BaseModel] = FaultReply) -> dict[int, ResponseBody]:
    """Return the error responses of an operation: each of these statuses with the model of its body."""
    return dict.fromkeys(statuses, body)


OPENAPI_PATH = "/openapi.json"

#: A header of every response.
_REQUEST_ID_HEADER = {
    "x-request-id": {"schema": {"type": "string"}, "description": "The id of this request in the gateway's log"}
}

JsonDict = dict[str, Any]
SchemaMode = Literal["validation", "serialization"]


class OpenApiEndpoints:
    """The endpoint that serves the OpenAPI document, which is built for the first request that asks for it."""

    def __init__(self, operations: Iterable[Operation]) -> None:
        self._operations = [*operations, *OPERATIONS]
        self.routes: list[Route] = [method_route(OPENAPI_PATH, {"GET": self.get_document}, PLAIN.to_endpoint)]

    @functools.cached_property
    def _document(self) -> bytes:
        return json.dumps(build_document(self._operations)).encode()

    async def get_document(self, _: Request) -> Response:
        """``GET /openapi.json``: return the document."""
        return Response(self._document, media_type=JSON_MEDIA_TYPE)


OPERATIONS = (
    Operation("GET", OPENAPI_PATH, "This document", responses={200: JSON_MEDIA_TYPE, **fault_responses(431)}),
)


def build_document(operations: Iterable[Operation]) -> JsonDict:
    """Build the OpenAPI document of these operations."""
    operation_list = list(operations)
    refs, schemas = _component_schemas(operation_list)
    paths: JsonDict = {}
    for operation in operation_list:
        operation_object = _operation_object(operation, refs)
        path_item = paths.setdefault(operation.path, {})
        path_parameters = re.findall(r"{(\w+)}", operation.path)
        if path_parameters:
            schema = {"type": "string"}
            path_item["parameters"] = [
                {"name": name, "in": "path", "required": True, "schema": schema} for name in path_parameters
            ]
        path_item[operation.method.lower()] = operation_object
    bearer_scheme = {"type": "http", "scheme": "bearer"}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Quintain's gateway",
            "version": importlib.metadata.version("quintain"),
            "description": "Call any model or agent by name, under one budget that cannot be overspent.",
        },
        # Relative to the document's URL: the `Host` header is not trusted.
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                SESSION_TOKEN: {**bearer_scheme, "description": "The token of a session"},
                ADMIN_TOKEN: {
                    **bearer_scheme,
                    "description": "The admin token. A session token may only open child sessions of its session.",
                },
            },
        },
    }


def _component_schemas(operations: list[Operation]) -> tuple[JsonDict, JsonDict]:
    models: dict[tuple[type[BaseModel], SchemaMode], None] = {}
    for operation in operations:
        if operation.request_model is not None:
            models[operation.request_model, "validation"] = None
        models |= {(body, "serialization"): None for body in operation.responses.values() if not isinstance(body, str)}
    refs, definitions = models_json_schema(list(models), ref_template="#/components/schemas/{model}")
    return {f"{model.__name__}-{mode}": ref for (model, mode), ref in refs.items()}, definitions.get("$defs", {})


def _operation_object(operation: Operation, refs: JsonDict) -> JsonDict:
    operation_object: JsonDict = {
        "operationId": re.sub(r"\W+", "_", f"{operation.method.lower()}{operation.path}").strip("_"),
        "summary": operation.summary,
        "responses": {str(status): _response_object(operation, status, refs) for status in operation.responses},
        "security": [] if operation.token is None else [{operation.token: []}],
    }
    if operation.query:
        operation_object["parameters"] = [
            {"name": name, "in": "query", "schema": schema} for name, schema in operation.query.items()
        ]
    if operation.request_model is not None:
        content = {JSON_MEDIA_TYPE: {"schema": refs[f"{operation.request_model.__name__}-validation"]}}
        operation_object["requestBody"] = {"required": True, "content": content}
    return operation_object


def _response_object(operation: Operation, status: int, refs: JsonDict) -> JsonDict:
    body = operation.responses[status]
    content: JsonDict = (
        {body: {}} if isinstance(body, str) else {JSON_MEDIA_TYPE: {"schema": refs[f"{body.__name__}-serialization"]}}
    )
    if operation.streams and status == http.HTTPStatus.OK:
        content[EVENT_STREAM_MEDIA_TYPE] = {}
    return {"description": _status_phrase(status), "headers": _REQUEST_ID_HEADER, "content": content}


def _status_phrase(status: int) -> str:
    return "Client Closed Request" if status == Cancelled.status else http.HTTPStatus(status).phrase
