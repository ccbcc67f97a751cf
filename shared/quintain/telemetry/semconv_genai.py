"""Span attributes of a provider call, after OpenTelemetry's GenAI conventions (in development, as of version 1.41)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from quintain.contracts.invoke import ChatMessage, InvokeRequest, OutputMessage, TokenUsage, content_text
from quintain.telemetry.semconv import MAX_VALUE_LENGTH, TARGET, AttributeValue, SpanKind, SpanStart

#: Provider kinds that are models; all others count as agents.
MODELS = frozenset({"openai", "anthropic", "mock"})

#: The recorded request settings: from the field of `InvokeSettings` to the attribute.
_SETTINGS = {
    "temperature": "gen_ai.request.temperature",
    "max_tokens": "gen_ai.request.max_tokens",
    "seed": "gen_ai.request.seed",
}


def provider_span(target: str, provider: str, model: str | None, request: InvokeRequest) -> SpanStart:
    """Return the span of a provider call: ``chat`` for a model, ``invoke_agent`` for anything else."""
    operation = "chat" if provider in MODELS else "invoke_agent"
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
    for field, attribute in _SETTINGS.items() if request.settings is not None else ():
        value = getattr(request.settings, field)
        if value is not None:
            attributes[attribute] = value
    return SpanStart(f"{operation} {name}", SpanKind.CLIENT, attributes)


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


def input_content(request: InvokeRequest) -> dict[str, AttributeValue]:
    """Return the question as an attribute; recorded only if content is enabled."""
    return {"gen_ai.input.messages": _messages(request.conversation())}


def output_content(
    text: str, output: Sequence[OutputMessage] | None, finish_reason: str | None
) -> dict[str, AttributeValue]:
    """Return the answer as an attribute; recorded only if content is enabled."""
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
