"""Span names and attributes: OpenTelemetry's conventions for messaging, HTTP and GenAI, and our own attributes.

The conventions are in development (GenAI: as of version 1.41); their changes are made here. Of caller-supplied text
only ids and names are recorded, truncated, unless model input and output are recorded on request.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from quintain.contracts.api_request import ApiRequest
from quintain.contracts.invoke import ChatMessage, InvokeRequest, OutputMessage, TokenUsage, content_text
from quintain.contracts.values import replace_surrogates

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


def settle_span(outcome: str) -> SpanStart:
    """Return the span of a worker's settle, until it is confirmed."""
    return SpanStart("settle", SpanKind.PRODUCER, {OUTCOME: outcome})


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


#: Provider kinds that are agents; all others are models.
AGENTS = frozenset({"agent", "command", "http", "python", "target"})

#: The recorded request settings: from the field of `InvokeSettings` to the attribute.
_SETTINGS = {
    "temperature": "gen_ai.request.temperature",
    "max_tokens": "gen_ai.request.max_tokens",
    "seed": "gen_ai.request.seed",
}


def provider_span(target: str, provider: str, model: str | None, request: InvokeRequest | ApiRequest) -> SpanStart:
    """Return the span of a provider call: ``chat`` for a model, ``invoke_agent`` for anything else."""
    operation = "invoke_agent" if provider in AGENTS else "chat"
    name = (model or target) if operation == "chat" else target
    attributes: dict[str, AttributeValue] = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": provider,
        TARGET: target,
    }
    if operation == "invoke_agent":
        attributes["gen_ai.agent.name"] = target
    if model is not None:
        attributes["gen_ai.request.model"] = model
    settings = request.body.values if isinstance(request, ApiRequest) else dict(request.settings or ())
    for setting, attribute in _SETTINGS.items():
        value = settings.get(setting)
        if isinstance(value, int | float):
            attributes[attribute] = value
    return SpanStart(f"{operation} {name}", SpanKind.CLIENT, attributes)


def tool_span(tool: str, call_id: str | None) -> SpanStart:
    """Return the span of a tool that an agent ran, without its arguments and its result."""
    attributes: dict[str, AttributeValue] = {"gen_ai.operation.name": "execute_tool"}
    named = {"gen_ai.tool.name": tool, "gen_ai.tool.call.id": call_id}
    attributes |= {name: shown_value(value) for name, value in named.items() if value}
    return SpanStart(f"execute_tool {shown_value(tool)}", attributes=attributes)


def shown_value(text: str) -> str:
    """Return an agent's text as an attribute: a lone surrogate would fail the export of its whole batch."""
    return replace_surrogates(text[:MAX_VALUE_LENGTH])


def response_attributes(
    model: str | None, finish_reason: str | None, usage: TokenUsage | None
) -> dict[str, AttributeValue]:
    """Return the attributes of an answer except its content."""
    attributes: dict[str, AttributeValue] = {}
    if model is not None:
        attributes["gen_ai.response.model"] = model[:MAX_VALUE_LENGTH]
    if finish_reason is not None:
        attributes["gen_ai.response.finish_reasons"] = [finish_reason[:MAX_VALUE_LENGTH]]
    if usage is not None:
        attributes["gen_ai.usage.input_tokens"] = usage.input
        attributes["gen_ai.usage.output_tokens"] = usage.output
        if usage.cached is not None:
            attributes["gen_ai.usage.cache_read.input_tokens"] = usage.cached
    return attributes


def input_content(request: InvokeRequest | ApiRequest) -> dict[str, AttributeValue]:
    """Return the question as an attribute; recorded only if content is enabled."""
    if isinstance(request, ApiRequest):
        fields = ("messages", "input", "prompt")
        return {
            "gen_ai.input.messages": json.dumps(
                next((request.body.values[n] for n in fields if n in request.body.values), [])
            )
        }
    return {"gen_ai.input.messages": _messages(request.conversation())}


def output_content(
    text: str,
    output: Sequence[OutputMessage] | None,
    finish_reason: str | None,
    body: Mapping[str, object] | None = None,
) -> dict[str, AttributeValue]:
    """Return the answer as an attribute, ``body`` as it is; recorded only if content is enabled."""
    if body is not None:
        return {"gen_ai.output.messages": json.dumps(body)}
    messages = output or [OutputMessage(content=text)]
    return {"gen_ai.output.messages": _messages(messages, {"finish_reason": finish_reason or "stop"})}


def _messages(turns: Sequence[ChatMessage | OutputMessage], extra: Mapping[str, str] | None = None) -> str:
    # ASCII: a lone surrogate would fail the export of its whole batch.
    return json.dumps(
        [
            {"role": turn.role, "parts": [{"type": "text", "content": content_text(turn.content)}], **(extra or {})}
            for turn in turns
        ]
    )
