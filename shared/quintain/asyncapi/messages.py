"""AsyncAPI messages: the AMQP type, headers and body schema of every message."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pydantic.json_schema import models_json_schema

from quintain.asyncapi.headers import (
    Node,
    invoke_headers,
    one_way_headers,
    operation_headers,
    reply_headers,
    service_request_headers,
)
from quintain.contracts.chunk import Chunk, Progress
from quintain.contracts.contents import INVOKE_CONTENT_TYPE, ContentReference
from quintain.contracts.fleet import FleetChanged, SessionChanged, TargetChanged, WorkerChanged
from quintain.contracts.group import GROUP_CONTENT_TYPE, INVOKE_GROUP_TYPE, REPLY_GROUP_TYPE
from quintain.contracts.invoke import FaultReply
from quintain.contracts.ledger import CancelBroadcast
from quintain.contracts.message import Message
from quintain.contracts.remote_target import RUN_INPUT_TYPE, RUN_OUTPUT_TYPE, RunInput, RunOutput
from quintain.routes import CHUNK_TYPE, INVOKE, PROGRESS_TYPE, ROUTES, Route
from quintain.topology import METADATA

#: The path of a schema inside the document.
_REF = "#/components/schemas/{model}"

#: The payload of a group: `quintain.contracts.group` has its layout, which no JSON schema can express.
_BINARY: Node = {"type": "string", "format": "binary"}


@dataclass(frozen=True, slots=True)
class MessageDefinition:
    """One kind of message; ``amqp_type`` is the AMQP property ``type``, which identifies the format of the body.

    ``body`` is None for a group, whose body is no JSON: ``summary`` describes it then.
    """

    name: str
    amqp_type: str
    body: type[Message] | None
    headers: Node
    summary: str = ""

    def to_message_object(self) -> Node:
        """Return the AsyncAPI message object."""
        documentation = self.summary if self.body is None else self.body.__doc__ or ""
        summary_words = documentation.split("\n\n")[0].split()
        has_correlation_id = "correlation_id" in self.headers["properties"]
        return {
            "name": self.name,
            "contentType": GROUP_CONTENT_TYPE if self.body is None else "application/json",
            "summary": " ".join(summary_words),
            **({"correlationId": {"location": "$message.header#/correlation_id"}} if has_correlation_id else {}),
            "headers": self.headers,
            "payload": _BINARY if self.body is None else {"$ref": _REF.format(model=self.body.__name__)},
            "bindings": {"amqp": {"messageType": self.amqp_type, "bindingVersion": "0.3.0"}},
        }


def request_message(route: Route[Any, Any]) -> MessageDefinition:
    """Return the request message of a route; its AMQP type is the routing key, or the route's name if that varies."""
    if route is INVOKE:
        headers = invoke_headers()
    elif not has_reply(route):
        headers = one_way_headers()
    else:
        headers = operation_headers() if route.exchange is METADATA else service_request_headers()
    return MessageDefinition(f"{route.name}.ask", route.key or route.name, route.request_type, headers)


def result_message(route: Route[Any, Any]) -> MessageDefinition:
    """Return the result message of a route that has a reply."""
    return MessageDefinition(f"{route.name}.result", "result", route.reply_type, reply_headers())


def has_reply(route: Route[Any, Any]) -> bool:
    """Return whether requests of this route get a reply."""
    return route.reply_type is not Message


FAULT = MessageDefinition("fault", "fault", FaultReply, reply_headers())
CHUNK = MessageDefinition("chunk", CHUNK_TYPE, Chunk, reply_headers())
PROGRESS = MessageDefinition("progress", PROGRESS_TYPE, Progress, reply_headers())
CANCEL_BROADCAST = MessageDefinition("calls_taken_back", "cancel", CancelBroadcast, one_way_headers())
RUN_OUTPUT = MessageDefinition(RUN_OUTPUT_TYPE, RUN_OUTPUT_TYPE, RunOutput, one_way_headers())
RUN_INPUT = MessageDefinition(RUN_INPUT_TYPE, RUN_INPUT_TYPE, RunInput, one_way_headers())
FLEET_CHANGED = MessageDefinition("fleet.changed", "fleet", FleetChanged, one_way_headers())
TARGET_CHANGED = MessageDefinition("target.changed", "target", TargetChanged, one_way_headers())
WORKER_CHANGED = MessageDefinition("worker.changed", "worker", WorkerChanged, one_way_headers())
SESSION_CHANGED = MessageDefinition("session.changed", "session", SessionChanged, one_way_headers())
INVOKE_GROUP = MessageDefinition(
    INVOKE_GROUP_TYPE, INVOKE_GROUP_TYPE, None, invoke_headers(), "Several requests of one session for one target."
)
INVOKE_CONTENT = MessageDefinition(INVOKE_CONTENT_TYPE, INVOKE_CONTENT_TYPE, ContentReference, invoke_headers())
REPLY_GROUP = MessageDefinition(
    REPLY_GROUP_TYPE, REPLY_GROUP_TYPE, None, one_way_headers(), "Several replies to one client that reads groups."
)

#: Every message of the protocol.
MESSAGES: tuple[MessageDefinition, ...] = (
    *(request_message(route) for route in ROUTES),
    *(result_message(route) for route in ROUTES if has_reply(route)),
    *(FAULT, CHUNK, PROGRESS, CANCEL_BROADCAST, RUN_OUTPUT, RUN_INPUT, INVOKE_GROUP, INVOKE_CONTENT, REPLY_GROUP),
    *(FLEET_CHANGED, TARGET_CHANGED, WORKER_CHANGED, SESSION_CHANGED),
)


def body_schemas(messages: Iterable[MessageDefinition]) -> Node:
    """Return the JSON schemas of the messages' bodies and of all nested models."""
    models = dict.fromkeys(message.body for message in messages if message.body is not None)
    _, definitions = models_json_schema([(model, "validation") for model in models], ref_template=_REF)
    definitions_by_name: Node = definitions["$defs"]
    return definitions_by_name
