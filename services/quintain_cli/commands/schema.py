"""``quintain schema``: prints the JSON schemas of evaluation and configuration files, and the AsyncAPI 3 document.

The document describes what the services do (receive a request, send a reply); a client does the opposite. AsyncAPI has
no place for AMQP properties, and its expressions for a reply address and a correlation id refer to headers: properties
are among the headers, under their own names.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
import sys
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, NamedTuple

import typer
from pydantic import JsonValue
from pydantic.json_schema import models_json_schema

from quintain import topology
from quintain.config.loader import config_schema
from quintain.contracts import headers
from quintain.contracts.api_request import API_NAMES
from quintain.contracts.fleet import FleetChanged, SessionChanged, TargetChanged, WorkerChanged
from quintain.contracts.group import GROUP_CONTENT_TYPE, INVOKE_GROUP_TYPE, REPLY_GROUP_TYPE
from quintain.contracts.hosting import LEASE_TYPE, DriverMessage, HostMessage
from quintain.contracts.invoke import Chunk, FaultReply, Progress
from quintain.contracts.ledger import CancelBroadcast
from quintain.contracts.message import Message
from quintain.routes import DESCRIBE_HOST, INVOKE, ROUTES, Route
from quintain_runner.spec.evaluation import evaluation_schema

Node = dict[str, Any]

_DESCRIPTION = """\
Call any model or agent by name, through RabbitMQ, under one budget that cannot be overspent.

Operations are described from the services' side. A client publishes with `mandatory` and publisher confirms, and \
receives replies on the exchange `quintain.reply`, under the routing key that it named in `reply_to`. `null` equals \
absent, unknown keys are ignored."""

_BINDING = {"bindingVersion": "0.3.0"}

_TEXT, _INTEGER = {"type": "string"}, {"type": "integer"}
#: A whole number, which may be sent as a string of digits.
_NUMBER: Node = {"oneOf": [_INTEGER, {"type": "string", "pattern": "^[0-9]{1,18}$"}]}

_HEADERS: Node = {
    "reply_to": {**_TEXT, "description": "AMQP property: the routing key of the client's reply queue"},
    "correlation_id": {**_TEXT, "description": "AMQP property: the same in request and reply"},
    headers.TOKEN_HEADER: {**_TEXT, "description": "The session's token, or the admin token; with a proof the session"},
    headers.PROOF_HEADER: {**_TEXT, "pattern": "^[0-9a-f]{64}$", "description": "Proves this call; needs a deadline"},
    headers.REQUEST_ID_HEADER: {**_TEXT, "maxLength": 128, "description": "The idempotency key, or correlation_id"},
    headers.DEADLINE_HEADER: {**_NUMBER, "description": "Milliseconds since the epoch, at most 12 hours ahead"},
    headers.WAIT_UNTIL_HEADER: {**_NUMBER, "description": "Until when the call may wait, beside its deadline"},
    headers.PROTOCOL_HEADER: {**_NUMBER, "description": "The protocol version"},
    headers.ACCEPT_HEADER: {**_TEXT, "description": "Replies it reads besides single ones: chunk, progress, group"},
    headers.PUBLISHED_AT_HEADER: {**_INTEGER, "description": "Publish time, in milliseconds since the epoch"},
    headers.ROUTED_HEADER: {**_INTEGER, "description": "Present if the metadata service has routed the request"},
    headers.TRACEPARENT_HEADER: {**_TEXT, "description": "W3C trace context; a malformed one is ignored"},
}


def _headers(*required: str, optional: Iterable[str] = ()) -> Node:
    properties = {name: _HEADERS[name] for name in (*required, *optional)}
    return {"type": "object", "properties": properties, **({"required": list(required)} if required else {})}


_CALL = _headers("reply_to", "correlation_id", headers.TOKEN_HEADER, optional=_HEADERS)
_OPERATION = _headers("reply_to", "correlation_id", headers.TOKEN_HEADER, optional=[headers.TRACEPARENT_HEADER])
#: Requests between services are authorized by the broker's permissions alone.
_SERVICE_REQUEST = _headers("reply_to", "correlation_id", optional=[headers.TRACEPARENT_HEADER])
_REPLY = _headers("correlation_id", optional=[headers.REQUEST_ID_HEADER])
_ONE_WAY = _headers()


class _Message(NamedTuple):
    """A kind of message: its AMQP type, and the model of its body or, where none has it, a schema."""

    name: str
    amqp_type: str
    body: type[Message] | Node
    headers: Node

    def node(self) -> Node:
        payload, summary = self.body, ""
        if isinstance(payload, type):
            summary = " ".join((payload.__doc__ or "").split("\n\n")[0].split())
            payload = {"$ref": f"#/components/schemas/{payload.__name__}"}
        correlation = {"correlationId": {"location": "$message.header#/correlation_id"}}
        return {
            "name": self.name,
            "contentType": GROUP_CONTENT_TYPE if payload is _GROUP else "application/json",
            "summary": summary,
            **(correlation if "correlation_id" in self.headers["properties"] else {}),
            "headers": self.headers,
            "payload": payload,
            "bindings": {"amqp": {"messageType": self.amqp_type, **_BINDING}},
        }


#: A group's body is no JSON: `quintain.contracts.group` has its layout.
_GROUP: Node = {"type": "string", "format": "binary"}

#: A request in the words of a vendor's API: what is in its body is the vendor's.
_API_REQUEST: Node = {
    "type": "object",
    "required": ["api", "body"],
    "properties": {"api": {"enum": sorted(API_NAMES)}, "body": {"type": "object"}},
}

#: The other forms of an invoke request, and the other replies to it.
_INVOKE_FORMS = (
    _Message("invoke.api", INVOKE.name, _API_REQUEST, _CALL),
    _Message(INVOKE_GROUP_TYPE, INVOKE_GROUP_TYPE, _GROUP, _CALL),
)
_INVOKE_REPLIES = (
    _Message("chunk", headers.CHUNK_TYPE, Chunk, _REPLY),
    _Message("progress", headers.PROGRESS_TYPE, Progress, _REPLY),
    _Message(REPLY_GROUP_TYPE, REPLY_GROUP_TYPE, _GROUP, _ONE_WAY),
)

#: What is sent besides the requests of routes and their replies: action, exchange, routing key, and the message.
_ONE_WAY_MESSAGES = (
    ("receive", topology.HOST, "{target}", _Message("lease.request", LEASE_TYPE, DriverMessage, _SERVICE_REQUEST)),
    ("receive", topology.HOST, "lease/{lease}", _Message("lease.driver", LEASE_TYPE, DriverMessage, _SERVICE_REQUEST)),
    ("send", topology.REPLY, None, _Message("lease.host", LEASE_TYPE, HostMessage, _SERVICE_REQUEST)),
    ("send", topology.CANCEL, None, _Message("calls_taken_back", "cancel", CancelBroadcast, _ONE_WAY)),
    ("send", topology.EVENTS, topology.FLEET_KEY, _Message("fleet.changed", "fleet", FleetChanged, _ONE_WAY)),
    ("send", topology.EVENTS, "target.{target}.{event}", _Message("target.changed", "target", TargetChanged, _ONE_WAY)),
    ("send", topology.EVENTS, "worker.{id}.{event}", _Message("worker.changed", "worker", WorkerChanged, _ONE_WAY)),
    ("send", topology.EVENTS, "session.{id}.{event}", _Message("session.changed", "session", SessionChanged, _ONE_WAY)),
)


def asyncapi_document() -> Node:
    """Return the AsyncAPI 3 document of this release."""
    channels: Node = {}
    messages: dict[str, _Message] = {}

    def sent(exchange: topology.Exchange, address: str | None, *parts: _Message) -> Node:
        """Add messages to the channel of an exchange and a routing key; returns what an operation says of them."""
        name = _name(exchange.name.removeprefix("quintain."), address or "")
        channel = channels.setdefault(name, _exchange(exchange, address))
        channel["messages"] |= {part.name: {"$ref": f"#/components/messages/{part.name}"} for part in parts}
        messages.update((part.name, part) for part in parts)
        refs = [{"$ref": f"#/channels/{name}/messages/{part.name}"} for part in parts]
        return {"channel": {"$ref": f"#/channels/{name}"}, "messages": refs}

    operations: Node = {}
    for route in ROUTES:
        forms, replies = (_INVOKE_FORMS, _INVOKE_REPLIES) if route is INVOKE else ((), ())
        has_reply = route.reply_type is not Message
        persistent = {"deliveryMode": 2} if route is INVOKE else {}
        node = {
            "action": "receive",
            **sent(route.exchange, _address(route), _request(route, has_reply=has_reply), *forms),
            "bindings": {"amqp": {**persistent, "mandatory": True, "ack": True, **_BINDING}},
        }
        if has_reply:
            result = _Message(f"{route.name}.result", "result", route.reply_type, _REPLY)
            fault = _Message("fault", "fault", FaultReply, _REPLY)
            address = {"address": {"location": "$message.header#/reply_to"}}
            node["reply"] = address | sent(topology.REPLY, None, result, fault, *replies)
        operations[route.name] = node
    for action, exchange, key, message in _ONE_WAY_MESSAGES:
        operations[message.name] = {"action": action, **sent(exchange, key, message)}
    models = dict.fromkeys(message.body for message in messages.values() if isinstance(message.body, type))
    _, schemas = models_json_schema(
        [(model, "validation") for model in models], ref_template="#/components/schemas/{model}"
    )
    info = {"title": "Quintain", "version": importlib.metadata.version("quintain"), "description": _DESCRIPTION}
    server = {"host": "127.0.0.1:5672", "protocol": "amqp", "protocolVersion": "0.9.1", "title": "RabbitMQ"}
    return {
        "asyncapi": "3.0.0",
        "info": {**info, "license": {"name": "MIT"}},
        "defaultContentType": "application/json",
        "servers": {"broker": server},
        "channels": channels,
        "operations": operations,
        "components": {
            "messages": {name: one.node() for name, one in messages.items()},
            "schemas": _without_discriminators(schemas["$defs"]),
        },
    }


def _without_discriminators(node: Any) -> Any:
    """Leave out what OpenAPI says beside a ``oneOf``: AsyncAPI has another form of it."""
    if isinstance(node, list):
        return [_without_discriminators(each) for each in node]
    if isinstance(node, dict):
        return {name: _without_discriminators(each) for name, each in node.items() if name != "discriminator"}
    return node


def _request(route: Route[Any, Any], *, has_reply: bool) -> _Message:
    """The request of a route; its AMQP type is the routing key, or the route's name if that varies."""
    request_headers = _ONE_WAY
    if has_reply:
        request_headers = _OPERATION if route.exchange is topology.METADATA else _SERVICE_REQUEST
    return _Message(
        f"{route.name}.ask", route.key or route.name, route.request_type, _CALL if route is INVOKE else request_headers
    )


def _address(route: Route[Any, Any]) -> str:
    """The routing key of a route, with variable parts in braces."""
    if route in {INVOKE, DESCRIBE_HOST}:
        return "{target}"
    return route.key


def _exchange(exchange: topology.Exchange, address: str | None) -> Node:
    binding = {"name": exchange.name, "type": exchange.kind, "durable": True, "autoDelete": False}
    return {
        "address": address,
        "messages": {},
        **_parameters(address or ""),
        "bindings": {"amqp": {"is": "routingKey", "exchange": binding, **_BINDING}},
        **({"x-arguments": exchange.arguments} if exchange.arguments else {}),
    }


def _parameters(address: str) -> Node:
    names = re.findall(r"{(\w+)}", address)
    return {"parameters": {name: {} for name in names}} if names else {}


def _name(*parts: str) -> str:
    """The name of a channel, which stands in JSON pointers."""
    return re.sub(r"[{}]", "", ".".join(filter(None, parts))).replace("/", ".")


AsJson = Annotated[bool, typer.Option("--json", help="No effect: the output is always JSON.")]


def evaluation(as_json: AsJson = False) -> None:
    """Print the JSON schema of an evaluation file, eval.yaml."""
    _print_schema(evaluation_schema())


def config(as_json: AsJson = False) -> None:
    """Print the JSON schema of a configuration, quintain.yaml."""
    _print_schema(config_schema())


def asyncapi(as_json: AsJson = False) -> None:
    """Print the AsyncAPI 3 document of the protocol. It has the channels, operations, replies and messages."""
    _print_schema(asyncapi_document())


def _print_schema(schema: Mapping[str, JsonValue]) -> None:
    sys.stdout.write(json.dumps(schema, indent=2) + "\n")
