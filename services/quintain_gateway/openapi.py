"""``GET /openapi.json``: the OpenAPI 3.1 document, put together from what each API says of its operations."""

from __future__ import annotations

import http
import importlib.metadata
import re
from collections.abc import Iterable
from typing import Any, Literal

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from quintain.errors import Cancelled
from quintain_gateway.door import Api
from quintain_gateway.methods import resource
from quintain_gateway.operation import ADMIN_TOKEN, SESSION_TOKEN, Operation, faults
from quintain_gateway.refusals import EVENT_STREAM, JSON, plain_refusal

PATH = "/openapi.json"

API = Api(refusal=plain_refusal)

#: Of every answer: what names it in the gateway's log.
_REQUEST_ID = {"x-request-id": {"schema": {"type": "string"}, "description": "This request in the gateway's log"}}

Node = dict[str, Any]
Mode = Literal["validation", "serialization"]


class OpenApi:
    """The document's endpoint."""

    def __init__(self, operations: Iterable[Operation]) -> None:
        self._document = document([*operations, *OPERATIONS])
        self.routes: list[Route] = [resource(PATH, {"GET": self.show}, API.endpoint)]

    async def show(self, _: Request) -> Response:
        """``GET /openapi.json``"""
        return JSONResponse(self._document)


OPERATIONS = (Operation("GET", PATH, "This document", answers={200: JSON, **faults(431)}),)


def document(operations: Iterable[Operation]) -> Node:
    """The document of these operations."""
    listed = list(operations)
    refs, schemas = _schemas(listed)
    paths: Node = {}
    for one in listed:
        node = _operation(one, refs)
        at = paths.setdefault(one.path, {})
        names = re.findall(r"{(\w+)}", one.path)
        if names:
            schema = {"type": "string"}
            at["parameters"] = [{"name": name, "in": "path", "required": True, "schema": schema} for name in names]
        at[one.method.lower()] = node
    bearer = {"type": "http", "scheme": "bearer"}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Quintain's gateway",
            "version": importlib.metadata.version("quintain"),
            "description": "Call any model or agent by name, under one budget that cannot be overspent.",
        },
        # Relative to wherever this was read: a gateway never trusts `Host` to say where it is.
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                SESSION_TOKEN: {**bearer, "description": "A session's token"},
                ADMIN_TOKEN: {**bearer, "description": "The administrator's; a session's opens its children alone"},
            },
        },
    }


def _schemas(operations: list[Operation]) -> tuple[Node, Node]:
    wanted: dict[tuple[type[BaseModel], Mode], None] = {}
    for one in operations:
        if one.asks is not None:
            wanted[one.asks, "validation"] = None
        wanted |= {(body, "serialization"): None for body in one.answers.values() if not isinstance(body, str)}
    refs, definitions = models_json_schema(list(wanted), ref_template="#/components/schemas/{model}")
    return {f"{model.__name__}-{mode}": ref for (model, mode), ref in refs.items()}, definitions.get("$defs", {})


def _operation(one: Operation, refs: Node) -> Node:
    node: Node = {
        "operationId": re.sub(r"\W+", "_", f"{one.method.lower()}{one.path}").strip("_"),
        "summary": one.summary,
        "responses": {str(status): _answer(one, status, refs) for status in one.answers},
        "security": [] if one.token is None else [{one.token: []}],
    }
    if one.query:
        node["parameters"] = [{"name": name, "in": "query", "schema": schema} for name, schema in one.query.items()]
    if one.asks is not None:
        content = {JSON: {"schema": refs[f"{one.asks.__name__}-validation"]}}
        node["requestBody"] = {"required": True, "content": content}
    return node


def _answer(one: Operation, status: int, refs: Node) -> Node:
    body = one.answers[status]
    content: Node = {body: {}} if isinstance(body, str) else {JSON: {"schema": refs[f"{body.__name__}-serialization"]}}
    if one.streams and status == http.HTTPStatus.OK:
        content[EVENT_STREAM] = {}
    return {"description": _phrase(status), "headers": _REQUEST_ID, "content": content}


def _phrase(status: int) -> str:
    return "Client Closed Request" if status == Cancelled.status else http.HTTPStatus(status).phrase
