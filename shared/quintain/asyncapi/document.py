"""The document put together: channels, operations with their replies, messages, schemas."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterable
from typing import Any, Literal

from quintain.asyncapi.channels import channel_of, channels
from quintain.asyncapi.headers import Node
from quintain.asyncapi.messages import (
    CHUNK,
    FAULT,
    HEARS,
    PROGRESS,
    SAYS,
    SPOKEN,
    TAKEN_BACK,
    Spoken,
    answers,
    ask_of,
    result_of,
    schemas,
)
from quintain.routes import INVOKE, ROUTES, Route

_DESCRIPTION = """\
Call any model or agent by name, through RabbitMQ, under one budget that cannot be overspent.

Operations say what the services do. A client publishes with `mandatory` and confirms, and hears answers under the key \
that it named in `reply_to`, on the exchange `quintain.reply`. `null` is as good as absent, unknown keys are ignored."""


def asyncapi_document() -> Node:
    """The AsyncAPI 3 document of this release."""
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
        "components": {"messages": {one.name: one.node() for one in SPOKEN}, "schemas": schemas(SPOKEN)},
    }


def _operations() -> Node:
    return {
        **{route.name: _answered(route) for route in ROUTES},
        "run_hears": _operation("receive", "lease", [HEARS]),
        "run_says": _operation("send", "run", [SAYS]),
        "take_back": _operation("send", "cancel", [TAKEN_BACK]),
    }


def _answered(route: Route[Any, Any]) -> Node:
    node = _operation("receive", channel_of(route), [ask_of(route)])
    lasts = {"deliveryMode": 2} if route is INVOKE else {}
    node["bindings"] = {"amqp": {**lasts, "mandatory": True, "ack": True, "bindingVersion": "0.3.0"}}
    if answers(route):
        spoken = (result_of(route), FAULT, *((CHUNK, PROGRESS) if route is INVOKE else ()))
        node["reply"] = {
            "address": {"location": "$message.header#/reply_to"},
            "channel": {"$ref": "#/channels/reply"},
            "messages": _refs("reply", spoken),
        }
    return node


def _operation(action: Literal["send", "receive"], channel: str, spoken: Iterable[Spoken]) -> Node:
    return {
        "action": action,
        "channel": {"$ref": f"#/channels/{channel}"},
        "messages": _refs(channel, spoken),
    }


def _refs(channel: str, spoken: Iterable[Spoken]) -> list[Node]:
    return [{"$ref": f"#/channels/{channel}/messages/{one.name}"} for one in spoken]
