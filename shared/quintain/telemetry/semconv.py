"""Span names and attributes: OpenTelemetry's semantic conventions for messaging and HTTP, and our own attributes.

The conventions are in development; their changes are made here. Of caller-supplied text only ids and names are
recorded, truncated. Model input and output are in `semconv_genai`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

AttributeValue = str | int | float | bool | Sequence[str]

ERROR_TYPE = "error.type"

SESSION_ID = "quintain.session.id"
REQUEST_ID = "quintain.request.id"
TARGET = "quintain.target"
RUN_ID = "quintain.run.id"
OUTCOME = "quintain.outcome"
ATTEMPT = "quintain.attempt"
CALL_COUNT = "quintain.call_count"

#: Maximum length of ids and names in attributes.
MAX_VALUE_LENGTH = 128


class SpanKind(Enum):
    """OpenTelemetry's span kinds."""

    INTERNAL = auto()
    CLIENT = auto()
    SERVER = auto()
    PRODUCER = auto()
    CONSUMER = auto()


@dataclass(frozen=True, slots=True)
class SpanStart:
    """The name, kind and first attributes of a span."""

    name: str
    kind: SpanKind = SpanKind.INTERNAL
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)


QUEUE_WAIT = SpanStart("queue wait")
ADMIT = SpanStart("admit", SpanKind.CLIENT)
SETTLE = SpanStart("settle", SpanKind.PRODUCER)
GRADE = SpanStart("grade")


def publish_span(exchange: str, key: str, **ids: str | None) -> SpanStart:
    """Return the span of publishing a message; ``ids`` are ``session_id``, ``request_id``, ``target`` or ``run_id``."""
    destination = ":".join(filter(None, (exchange, key[:MAX_VALUE_LENGTH])))
    attributes = _messaging_attributes("send", destination) | {
        "messaging.rabbitmq.destination.routing_key": key[:MAX_VALUE_LENGTH]
    }
    return SpanStart(f"send {destination}", SpanKind.PRODUCER, attributes | _id_attributes(**ids))


def reply_span(exchange: str) -> SpanStart:
    """Return the span of publishing a reply; the random routing key is left out."""
    attributes = _messaging_attributes("send", exchange) | {"messaging.destination.temporary": True}
    return SpanStart(f"send {exchange}", SpanKind.PRODUCER, attributes)


def process_span(exchange: str, key: str, queue: str, **ids: str | None) -> SpanStart:
    """Return the span of processing a message; ``key`` and ``queue`` are names with low cardinality."""
    destination = ":".join(filter(None, (exchange, key, queue)))
    attributes = _messaging_attributes("process", destination) | {"messaging.rabbitmq.destination.routing_key": key}
    return SpanStart(f"process {destination}", SpanKind.CONSUMER, attributes | _id_attributes(**ids))


def ledger_admit_span(request_id: str, outcome: str) -> SpanStart:
    """Return the span of the ledger's decision on an admit."""
    return SpanStart("ledger admit", SpanKind.SERVER, _id_attributes(request_id=request_id) | {OUTCOME: outcome})


def ledger_settle_span(session_id: str, request_id: str, outcome: str) -> SpanStart:
    """Return the span of the ledger's processing of a settle."""
    return SpanStart(
        "ledger settle",
        SpanKind.CONSUMER,
        _id_attributes(session_id=session_id, request_id=request_id) | {OUTCOME: outcome},
    )


def http_server_span(method: str, path: str) -> SpanStart:
    """Return the span of an HTTP request to a server; it is renamed when the route is known."""
    return SpanStart(
        method,
        SpanKind.SERVER,
        {"http.request.method": method, "url.path": path[:MAX_VALUE_LENGTH], "url.scheme": "http"},
    )


def http_response_attributes(route: str, status: int) -> dict[str, AttributeValue]:
    """Return the attributes of an HTTP request that are known when it was answered."""
    return {"http.route": route, "http.response.status_code": status}


def http_client_span(method: str, path: str, **ids: str | None) -> SpanStart:
    """Return the span of an HTTP request to a gateway."""
    return SpanStart(
        f"{method} {path}", SpanKind.CLIENT, {"http.request.method": method, "url.path": path} | _id_attributes(**ids)
    )


def run_span(name: str, session_id: str) -> SpanStart:
    """Return the span of an evaluation run."""
    return SpanStart(
        f"run {name[:MAX_VALUE_LENGTH]}", attributes=_id_attributes(run_id=session_id, session_id=session_id)
    )


def trial_span(run_id: str | None, case_id: str, target: str, repeat: int) -> SpanStart:
    """Return the span of a trial: one case, answered by one target and graded."""
    attributes: dict[str, AttributeValue] = {"quintain.case.id": case_id[:MAX_VALUE_LENGTH], "quintain.repeat": repeat}
    return SpanStart(f"trial {target}", attributes=_id_attributes(run_id=run_id, target=target) | attributes)


def lease_request_span(name: str, run_id: str | None = None) -> SpanStart:
    """Return the span of a request to a leased instance, or of its run."""
    return SpanStart(name, SpanKind.CONSUMER, _id_attributes(run_id=run_id))


def send_event_span(kind: str) -> SpanStart:
    """Return the span in which a target under test sends an event and waits for its response."""
    return SpanStart("send_event", SpanKind.CLIENT, {"quintain.event.kind": kind[:MAX_VALUE_LENGTH]})


def _messaging_attributes(operation: str, destination: str) -> dict[str, AttributeValue]:
    return {
        "messaging.system": "rabbitmq",
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.name": destination,
    }


def _id_attributes(**ids: str | None) -> dict[str, AttributeValue]:
    attribute_names = {"session_id": SESSION_ID, "request_id": REQUEST_ID, "target": TARGET, "run_id": RUN_ID}
    return {attribute_names[name]: value[:MAX_VALUE_LENGTH] for name, value in ids.items() if value}
