"""A request's conversation, each message with its field name, and as plain text for providers that take only text."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from quintain.contracts.invoke import ChatMessage, InvokeRequest, InvokeSettings
from quintain.errors import BadRequest
from quintain_worker.providers.provider import Billing, ProviderFailure


@dataclass(frozen=True, slots=True)
class TextMessage:
    """One message: the request's field, who speaks, and the text in its parts."""

    field: str
    role: str
    texts: tuple[str, ...]

    @property
    def text(self) -> str:
        """The whole text."""
        return "".join(self.texts)


def messages_with_fields(request: InvokeRequest) -> list[tuple[str, ChatMessage]]:
    """The conversation, the system prompt first, each message with the request's field."""
    fields = ["systemPrompt"] if request.system_prompt else []
    fields += [f"messages[{index}]" for index in range(len(request.messages or []))] or ["question"]
    return list(zip(fields, request.conversation(), strict=True))


def text_messages(request: InvokeRequest) -> list[TextMessage]:
    """The conversation as text. Raises `ProviderFailure` for what is not text."""
    return [_text_message(field, message) for field, message in messages_with_fields(request)]


def refuse_settings(settings: InvokeSettings | None, *, supported: Iterable[str], provider: str) -> None:
    """Raise `ProviderFailure`, naming the field, where a setting is asked for that is not among the honoured."""
    if settings is None:
        return
    known = frozenset(supported)
    for name, field in InvokeSettings.model_fields.items():
        if name not in known and getattr(settings, name) is not None:
            raise refusal(f"settings.{field.alias or name}", f"{provider} does not take it; leave it out")


def refusal(field: str, reason: str) -> ProviderFailure:
    """The request asks for what this provider cannot do; nothing was sent."""
    return ProviderFailure(BadRequest(f"{field}: {reason}"), Billing.UNBILLED)


def _text_message(field: str, message: ChatMessage) -> TextMessage:
    if message.tool_calls:
        raise refusal(f"{field}.toolCalls", "this target takes text only")
    if isinstance(message.content, str):
        return TextMessage(field, message.role, (message.content,))
    texts: list[str] = []
    for index, part in enumerate(message.content):
        text = part.get("text")
        if part.get("type", "text") != "text" or not isinstance(text, str):
            raise refusal(f"{field}.content[{index}]", "this target takes text parts only")
        texts.append(text)
    return TextMessage(field, message.role, tuple(texts))
