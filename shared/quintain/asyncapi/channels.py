"""Where messages go: exchanges with their keys, and the queues behind them, as the topology declares them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from quintain.asyncapi.headers import TARGET_NAME, Node
from quintain.asyncapi.messages import (
    CHUNK,
    FAULT,
    HEARS,
    PROGRESS,
    SAYS,
    TAKEN_BACK,
    Spoken,
    answers,
    ask_of,
    result_of,
)
from quintain.routes import INVOKE, LEASE, ROUTES, Route
from quintain.topology import (
    CANCEL,
    HOST,
    METADATA_TOPOLOGY,
    REPLY,
    RUN,
    Exchange,
    Queue,
    Topology,
    cancel_topology,
    discovery_topology,
    host_topology,
    lease_topology,
    reply_topology,
    run_topology,
    target_topology,
)

_VERSION = {"bindingVersion": "0.3.0"}

#: What stands in an address for a part that differs, and what it is.
PARAMETERS = {
    "target": "A target's name",
    "lease": "A lease's id, as its answer said it",
    "run": "A random id",
    "reply": "A key of the asker's own, which ends in at least 128 random bits",
    "user": "Who asks",
    "worker": "A random id",
    "service": "A random id",
}


def channel_of(route: Route[Any, Any]) -> str:
    """The name of the channel on which a route is asked."""
    exchange = route.exchange.name.removeprefix("quintain.")
    if route is INVOKE or route is LEASE:
        return exchange
    return "lease" if route.exchange is HOST else f"{exchange}.{route.key}"


def address_of(route: Route[Any, Any]) -> str:
    """The routing key, with what differs in braces."""
    if route is INVOKE or route is LEASE:
        return "{target}"
    return "lease/{lease}" if route.exchange is HOST else route.key


def channels() -> Node:
    """Every channel, by name."""
    found: Node = {}
    for route in ROUTES:
        node = found.setdefault(channel_of(route), _exchange(route.exchange, address_of(route)))
        node["messages"] |= _refs([ask_of(route)])
    found["lease"]["messages"] |= _refs([HEARS])
    spoken_back = (*(result_of(route) for route in ROUTES if answers(route)), FAULT, CHUNK, PROGRESS)
    found["reply"] = _exchange(REPLY, None, spoken_back)
    found["cancel"] = _exchange(CANCEL, None, [TAKEN_BACK])
    found["run"] = _exchange(RUN, "{run}", [SAYS])
    return found | queues()


def queues() -> Node:
    """Every queue, by ``queue.`` and its name: what it is declared with, and what is bound to it."""
    everything = METADATA_TOPOLOGY
    for more in (
        target_topology("{target}"),
        reply_topology("quintain.reply.{user}.{reply}", "{reply}"),
        cancel_topology("{worker}"),
        discovery_topology("{service}"),
        host_topology("{target}"),
        lease_topology("{lease}"),
        run_topology("{run}"),
    ):
        everything += more
    return {f"queue.{queue.name.translate(_NO_BRACES)}": _queue(queue, everything) for queue in everything.queues}


_NO_BRACES = str.maketrans("", "", "{}")


def _exchange(exchange: Exchange, address: str | None, spoken: Iterable[Spoken] = ()) -> Node:
    binding = {"name": exchange.name, "type": exchange.kind, "durable": True, "autoDelete": False}
    return {
        "address": address,
        "messages": _refs(spoken),
        **_parameters(address or ""),
        "bindings": {"amqp": {"is": "routingKey", "exchange": binding, **_VERSION}},
        **({"x-arguments": exchange.arguments} if exchange.arguments else {}),
    }


def _queue(queue: Queue, topology: Topology) -> Node:
    binding = {"name": queue.name, "durable": True, "exclusive": False, "autoDelete": False}
    bound = [
        {"exchange": one.exchange.name, "routingKey": one.key}
        for one in topology.bindings
        if one.queue.name == queue.name
    ]
    return {
        "address": queue.name,
        **_parameters(queue.name),
        "bindings": {"amqp": {"is": "queue", "queue": binding, **_VERSION}},
        "x-arguments": queue.arguments,
        "x-bound-to": bound,
    }


def _parameters(address: str) -> Node:
    named = {name: {"description": words} for name, words in PARAMETERS.items() if f"{{{name}}}" in address}
    if "target" in named:
        named["target"] = {"description": f"{PARAMETERS['target']}: {TARGET_NAME['pattern']}"}
    return {"parameters": named} if named else {}


def _refs(spoken: Iterable[Spoken]) -> Node:
    return {one.name: {"$ref": f"#/components/messages/{one.name}"} for one in spoken}
