"""AsyncAPI channels: exchanges with their routing keys, and the queues bound to them, from the topology."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from quintain.asyncapi.headers import TARGET_NAME, Node
from quintain.asyncapi.messages import (
    CANCEL_BROADCAST,
    CHUNK,
    FAULT,
    FLEET_CHANGED,
    INVOKE_CONTENT,
    INVOKE_GROUP,
    PROGRESS,
    REPLY_GROUP,
    RUN_INPUT,
    RUN_OUTPUT,
    SESSION_CHANGED,
    TARGET_CHANGED,
    WORKER_CHANGED,
    MessageDefinition,
    has_reply,
    request_message,
    result_message,
)
from quintain.routes import DESCRIBE_HOST, INVOKE, LEASE, ROUTES, Route
from quintain.topology import (
    CANCEL,
    EVENTS,
    FLEET_KEY,
    HOST,
    METADATA_TOPOLOGY,
    REPLY,
    RUN,
    Exchange,
    Queue,
    Topology,
    admit_topology,
    cancel_topology,
    discovery_topology,
    events_topology,
    host_topology,
    lease_topology,
    reply_topology,
    run_topology,
    target_topology,
)

_VERSION = {"bindingVersion": "0.3.0"}

#: The parameters of channel addresses, each with its description.
PARAMETERS = {
    "target": "The name of a target",
    "lease": "The id of a lease, as given in the reply to the lease request",
    "run": "A random id",
    "reply": "A key chosen by the client, which ends in at least 128 random bits",
    "user": "The broker user of the client",
    "worker": "A random id",
    "service": "A random id",
    "listener": "A random id",
    "id": "The id of a worker or a session, cut to 50 characters",
    "event": "What happened, as in the body",
}

#: The channels of events: the routing key and the message of each.
EVENT_CHANNELS = {
    "events.fleet": (FLEET_KEY, FLEET_CHANGED),
    "events.target": ("target.{target}.{event}", TARGET_CHANGED),
    "events.worker": ("worker.{id}.{event}", WORKER_CHANGED),
    "events.session": ("session.{id}.{event}", SESSION_CHANGED),
}


#: The routes whose routing key is a target's name.
_BY_TARGET: tuple[Route[Any, Any], ...] = (INVOKE, LEASE, DESCRIBE_HOST)


def channel_of(route: Route[Any, Any]) -> str:
    """Return the name of the channel on which requests of a route are published."""
    exchange_name = route.exchange.name.removeprefix("quintain.")
    if route in _BY_TARGET:
        return exchange_name
    return "lease" if route.exchange is HOST else f"{exchange_name}.{route.key}"


def address_of(route: Route[Any, Any]) -> str:
    """Return the routing key of a route, with variable parts in braces."""
    if route in _BY_TARGET:
        return "{target}"
    return "lease/{lease}" if route.exchange is HOST else route.key


def channels() -> Node:
    """Return every channel by its name."""
    channels_by_name: Node = {}
    for route in ROUTES:
        node = channels_by_name.setdefault(channel_of(route), _exchange(route.exchange, address_of(route)))
        node["messages"] |= _refs(
            [request_message(route), *([INVOKE_GROUP, INVOKE_CONTENT] if route is INVOKE else [])]
        )
    channels_by_name["lease"]["messages"] |= _refs([RUN_INPUT])
    reply_messages = (
        *(result_message(route) for route in ROUTES if has_reply(route)),
        FAULT,
        CHUNK,
        PROGRESS,
        REPLY_GROUP,
    )
    channels_by_name["reply"] = _exchange(REPLY, None, reply_messages)
    channels_by_name["cancel"] = _exchange(CANCEL, None, [CANCEL_BROADCAST])
    channels_by_name["run"] = _exchange(RUN, "{run}", [RUN_OUTPUT])
    for name, (key, message) in EVENT_CHANNELS.items():
        channels_by_name[name] = _exchange(EVENTS, key, [message])
    return channels_by_name | queues()


def queues() -> Node:
    """Return every queue by ``queue.`` and its name, with its declaration and its bindings."""
    topology = METADATA_TOPOLOGY
    for part in (
        target_topology("{target}"),
        reply_topology("quintain.reply.{user}.{reply}", "{reply}"),
        cancel_topology("{worker}"),
        discovery_topology("{service}"),
        events_topology("{listener}"),
        host_topology("{target}"),
        lease_topology("{lease}"),
        admit_topology("{service}"),
        run_topology("{run}"),
    ):
        topology += part
    return {f"queue.{queue.name.translate(_NO_BRACES)}": _queue(queue, topology) for queue in topology.queues}


_NO_BRACES = str.maketrans("", "", "{}")


def _exchange(exchange: Exchange, address: str | None, messages: Iterable[MessageDefinition] = ()) -> Node:
    binding = {"name": exchange.name, "type": exchange.kind, "durable": True, "autoDelete": False}
    return {
        "address": address,
        "messages": _refs(messages),
        **_parameters(address or ""),
        "bindings": {"amqp": {"is": "routingKey", "exchange": binding, **_VERSION}},
        **({"x-arguments": exchange.arguments} if exchange.arguments else {}),
    }


def _queue(queue: Queue, topology: Topology) -> Node:
    binding = {"name": queue.name, "durable": True, "exclusive": False, "autoDelete": False}
    bindings = [
        {"exchange": item.exchange.name, "routingKey": item.key}
        for item in topology.bindings
        if item.queue.name == queue.name
    ]
    return {
        "address": queue.name,
        **_parameters(queue.name),
        "bindings": {"amqp": {"is": "queue", "queue": binding, **_VERSION}},
        "x-arguments": queue.arguments,
        "x-bound-to": bindings,
    }


def _parameters(address: str) -> Node:
    parameters = {
        name: {"description": description} for name, description in PARAMETERS.items() if f"{{{name}}}" in address
    }
    if "target" in parameters:
        parameters["target"] = {"description": f"{PARAMETERS['target']}: {TARGET_NAME['pattern']}"}
    return {"parameters": parameters} if parameters else {}


def _refs(messages: Iterable[MessageDefinition]) -> Node:
    return {message.name: {"$ref": f"#/components/messages/{message.name}"} for message in messages}
