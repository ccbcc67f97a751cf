"""What a try at a provider tells, by OpenTelemetry's conventions for GenAI (in development, as of version 1.41)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from quintain.contracts.invoke import ChatMessage, InvokeRequest, OutputMessage, TokenUsage, text_of
from quintain.telemetry.conventions import MOST_TOLD, TARGET, Kind, Opening, Value

#: Kinds of providers that are models; all others are agents, whatever they do inside.
MODELS = frozenset({"openai", "anthropic", "mock"})

#: What is told of a request's settings, by their names in `InvokeSettings`.
_SETTINGS = {
    "temperature": "gen_ai.request.temperature",
    "max_tokens": "gen_ai.request.max_tokens",
    "seed": "gen_ai.request.seed",
}


def tried(target: str, provider: str, model: str | None, request: InvokeRequest) -> Opening:
    """A provider is asked: a model by ``chat``, anything else as an agent by ``invoke_agent``."""
    operation = "chat" if provider in MODELS else "invoke_agent"
    name = (model or target) if operation == "chat" else target
    attributes: dict[str, Value] = {
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
    return Opening(f"{operation} {name}", Kind.CLIENT, attributes)


def answer_told(model: str | None, finish_reason: str | None, usage: TokenUsage | None) -> dict[str, Value]:
    """What an answer tells beside its words."""
    told: dict[str, Value] = {}
    if model is not None:
        told["gen_ai.response.model"] = model[:MOST_TOLD]
    if finish_reason is not None:
        told["gen_ai.response.finish_reasons"] = [finish_reason[:MOST_TOLD]]
    if usage is not None:
        told["gen_ai.usage.input_tokens"] = usage.input
        told["gen_ai.usage.output_tokens"] = usage.output
        if usage.cached is not None:
            told["gen_ai.usage.cache_read.input_tokens"] = usage.cached
    return told


def question_content(request: InvokeRequest) -> dict[str, Value]:
    """The question itself: only where somebody asked for content."""
    return {"gen_ai.input.messages": _messages(request.conversation())}


def answer_content(text: str, output: Sequence[OutputMessage] | None, finish_reason: str | None) -> dict[str, Value]:
    """The answer itself: only where somebody asked for content."""
    said = output or [OutputMessage(content=text)]
    return {"gen_ai.output.messages": _messages(said, {"finish_reason": finish_reason or "stop"})}


def _messages(turns: Sequence[ChatMessage | OutputMessage], extra: Mapping[str, str] | None = None) -> str:
    # In ASCII: half of a surrogate pair would end the export of everything that travels with it.
    return json.dumps(
        [
            {"role": turn.role, "parts": [{"type": "text", "content": text_of(turn.content)}], **(extra or {})}
            for turn in turns
        ]
    )
