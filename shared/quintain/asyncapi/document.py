"""Assembles the AsyncAPI document from channels, operations with their replies, messages and schemas."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterable
from typing import Any, Literal

from quintain.asyncapi.channels import EVENT_CHANNELS, channel_of, channels
from quintain.asyncapi.headers import Node
from quintain.asyncapi.messages import (
    CANCEL_BROADCAST,
    CHUNK,
    FAULT,
    INVOKE_CONTENT,
    INVOKE_GROUP,
    MESSAGES,
    PROGRESS,
    REPLY_GROUP,
    RUN_INPUT,
    RUN_OUTPUT,
    MessageDefinition,
    body_schemas,
    has_reply,
    request_message,
    result_message,
)
from quintain.routes import INVOKE, ROUTES, Route

_DESCRIPTION = """\
Call any model or agent by name, through RabbitMQ, under one budget that cannot be overspent.

Operations are described from the services' side. A client publishes with `mandatory` and publisher confirms, and \
receives replies on the exchange `quintain.reply`, under the routing key that it named in `reply_to`. `null` equals \
absent, unknown keys are ignored."""


def asyncapi_document() -> Node:
    """Return the AsyncAPI 3 document of this release."""
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Quintain",
            "version": importlib.metadata.version("quintain"),
            "description": _DESCRIPTION,
            "license": {"name": "MIT"},
        },
        "defaultContentType": "application/json",
        "servers": {
            "broker": {
                "host": "{broker}",
                "protocol": "amqp",
                "protocolVersion": "0.9.1",
                "description": "RabbitMQ 3.10 or later",
                "variables": {"broker": {"default": "127.0.0.1:5672", "description": "As QUINTAIN_BROKER_URL has it"}},
            }
        },
        "channels": channels(),
        "operations": _operations(),
        "components": {
            "messages": {message.name: message.to_message_object() for message in MESSAGES},
            "schemas": body_schemas(MESSAGES),
        },
    }


def _operations() -> Node:
    return {
        **{route.name: _route_operation(route) for route in ROUTES},
        "run_hears": _operation("receive", "lease", [RUN_INPUT]),
        "run_says": _operation("send", "run", [RUN_OUTPUT]),
        "take_back": _operation("send", "cancel", [CANCEL_BROADCAST]),
        **{message.name: _operation("send", name, [message]) for name, (_, message) in EVENT_CHANNELS.items()},
    }


def _route_operation(route: Route[Any, Any]) -> Node:
    requests = [request_message(route), *([INVOKE_GROUP, INVOKE_CONTENT] if route is INVOKE else [])]
    node = _operation("receive", channel_of(route), requests)
    persistent = {"deliveryMode": 2} if route is INVOKE else {}
    node["bindings"] = {"amqp": {**persistent, "mandatory": True, "ack": True, "bindingVersion": "0.3.0"}}
    if has_reply(route):
        reply_messages = (result_message(route), FAULT, *((CHUNK, PROGRESS, REPLY_GROUP) if route is INVOKE else ()))
        node["reply"] = {
            "address": {"location": "$message.header#/reply_to"},
            "channel": {"$ref": "#/channels/reply"},
            "messages": _refs("reply", reply_messages),
        }
    return node


def _operation(action: Literal["send", "receive"], channel: str, messages: Iterable[MessageDefinition]) -> Node:
    return {
        "action": action,
        "channel": {"$ref": f"#/channels/{channel}"},
        "messages": _refs(channel, messages),
    }


def _refs(channel: str, messages: Iterable[MessageDefinition]) -> list[Node]:
    return [{"$ref": f"#/channels/{channel}/messages/{message.name}"} for message in messages]
