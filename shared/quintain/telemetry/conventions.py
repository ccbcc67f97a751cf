"""How a span is named and what it tells: OpenTelemetry's conventions for messaging, GenAI and HTTP, and our own words.

Both conventions are still called "in development": when they move, this page moves. Of text that somebody else chose
only ids and names are told, cut to a bounded length. What a model was asked and answered is `genai`'s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

Value = str | int | float | bool | Sequence[str]

ERROR_TYPE = "error.type"

SESSION_ID = "quintain.session.id"
REQUEST_ID = "quintain.request.id"
TARGET = "quintain.target"
RUN_ID = "quintain.run.id"
OUTCOME = "quintain.outcome"
ATTEMPT = "quintain.attempt"
CALL_COUNT = "quintain.call_count"

#: An id or a name is told this long at most.
MOST_TOLD = 128


class Kind(Enum):
    """Which side of what a span is, in OpenTelemetry's words."""

    INTERNAL = auto()
    CLIENT = auto()
    SERVER = auto()
    PRODUCER = auto()
    CONSUMER = auto()


@dataclass(frozen=True, slots=True)
class Opening:
    """What a span begins with."""

    name: str
    kind: Kind = Kind.INTERNAL
    attributes: Mapping[str, Value] = field(default_factory=dict)


QUEUE_WAIT = Opening("queue wait")
ADMIT = Opening("admit", Kind.CLIENT)
SETTLE = Opening("settle", Kind.PRODUCER)
GRADE = Opening("grade")


def sent(exchange: str, key: str, **told: str | None) -> Opening:
    """A message is published. ``told`` are ids by our own attributes' last words: ``session_id``, ``request_id``."""
    destination = ":".join(filter(None, (exchange, key[:MOST_TOLD])))
    attributes = _messaging("send", destination) | {"messaging.rabbitmq.destination.routing_key": key[:MOST_TOLD]}
    return Opening(f"send {destination}", Kind.PRODUCER, attributes | _ids(**told))


def answered(exchange: str) -> Opening:
    """An answer is published: to a queue whose random key is no name of anything."""
    attributes = _messaging("send", exchange) | {"messaging.destination.temporary": True}
    return Opening(f"send {exchange}", Kind.PRODUCER, attributes)


def processed(exchange: str, key: str, queue: str, **told: str | None) -> Opening:
    """A message is worked on. ``key`` and ``queue`` are names that the fleet knows."""
    destination = ":".join(filter(None, (exchange, key, queue)))
    attributes = _messaging("process", destination) | {"messaging.rabbitmq.destination.routing_key": key}
    return Opening(f"process {destination}", Kind.CONSUMER, attributes | _ids(**told))


def ledger_admit(request_id: str, outcome: str) -> Opening:
    """The ledger decided an admit."""
    return Opening("ledger admit", Kind.SERVER, _ids(request_id=request_id) | {OUTCOME: outcome})


def ledger_settle(session_id: str, request_id: str, outcome: str) -> Opening:
    """The ledger took a settle in."""
    return Opening(
        "ledger settle", Kind.CONSUMER, _ids(session_id=session_id, request_id=request_id) | {OUTCOME: outcome}
    )


def served(method: str, path: str) -> Opening:
    """An HTTP request is answered; its name gets the route once that is known."""
    return Opening(
        method, Kind.SERVER, {"http.request.method": method, "url.path": path[:MOST_TOLD], "url.scheme": "http"}
    )


def routed(route: str, status: int) -> dict[str, Value]:
    """What is known of an HTTP request when it was answered."""
    return {"http.route": route, "http.response.status_code": status}


def asked_over_http(method: str, path: str, **told: str | None) -> Opening:
    """An HTTP request is made to a gateway."""
    return Opening(f"{method} {path}", Kind.CLIENT, {"http.request.method": method, "url.path": path} | _ids(**told))


def run(name: str, session_id: str) -> Opening:
    """An evaluation runs."""
    return Opening(f"run {name[:MOST_TOLD]}", attributes=_ids(run_id=session_id, session_id=session_id))


def trial(run_id: str | None, case_id: str, target: str, repeat: int) -> Opening:
    """One case is put to one target, and graded."""
    told: dict[str, Value] = {"quintain.case.id": case_id[:MOST_TOLD], "quintain.repeat": repeat}
    return Opening(f"trial {target}", attributes=_ids(run_id=run_id, target=target) | told)


def hosted(what: str, run_id: str | None = None) -> Opening:
    """Something is asked of a leased instance, or it runs."""
    return Opening(what, Kind.CONSUMER, _ids(run_id=run_id))


def sent_event(kind: str) -> Opening:
    """A target under test sends an event and waits for its response."""
    return Opening("send_event", Kind.CLIENT, {"quintain.event.kind": kind[:MOST_TOLD]})


def _messaging(operation: str, destination: str) -> dict[str, Value]:
    return {
        "messaging.system": "rabbitmq",
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.name": destination,
    }


def _ids(**told: str | None) -> dict[str, Value]:
    names = {"session_id": SESSION_ID, "request_id": REQUEST_ID, "target": TARGET, "run_id": RUN_ID}
    return {names[name]: value[:MOST_TOLD] for name, value in told.items() if value}
