"""Span attributes of a provider call, after OpenTelemetry's GenAI conventions (in development, as of version 1.41)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from quintain.contracts.invoke import ChatMessage, InvokeRequest, OutputMessage, TokenUsage, content_text
from quintain.telemetry.semconv import MAX_VALUE_LENGTH, TARGET, AttributeValue, SpanKind, SpanStart

#: Kinds of providers that are models; all others are agents, whatever they do inside.
MODELS = frozenset({"openai", "anthropic", "mock"})

#: What is told of a request's settings, by their names in `InvokeSettings`.
_SETTINGS = {
    "temperature": "gen_ai.request.temperature",
    "max_tokens": "gen_ai.request.max_tokens",
    "seed": "gen_ai.request.seed",
}


def provider_span(target: str, provider: str, model: str | None, request: InvokeRequest) -> SpanStart:
    """A provider is asked: a model by ``chat``, anything else as an agent by ``invoke_agent``."""
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
    """What an answer tells beside its words."""
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
    """The question itself: only where somebody asked for content."""
    return {"gen_ai.input.messages": _messages(request.conversation())}


def output_content(
    text: str, output: Sequence[OutputMessage] | None, finish_reason: str | None
) -> dict[str, AttributeValue]:
    """The answer itself: only where somebody asked for content."""
    messages = output or [OutputMessage(content=text)]
    return {"gen_ai.output.messages": _messages(messages, {"finish_reason": finish_reason or "stop"})}


def _messages(turns: Sequence[ChatMessage | OutputMessage], extra: Mapping[str, str] | None = None) -> str:
    # In ASCII: half of a surrogate pair would end the export of everything that travels with it.
    return json.dumps(
        [
            {"role": turn.role, "parts": [{"type": "text", "content": content_text(turn.content)}], **(extra or {})}
            for turn in turns
        ]
    )
