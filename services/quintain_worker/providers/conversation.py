"""A request's conversation, each message with its field name, and as plain text for providers that take only text."""

from __future__ import annotations

from dataclasses import dataclass

from quintain.contracts.invoke import ChatMessage, InvokeRequest
from quintain.errors import BadRequest
from quintain_worker.providers.provider import Billing, ProviderFailure


@dataclass(frozen=True, slots=True)
class TextMessage:
    """One message as text: the request's field name, the role, and the text of its parts."""

    field: str
    role: str
    texts: tuple[str, ...]

    @property
    def text(self) -> str:
        """The text of all parts, joined."""
        return "".join(self.texts)


def messages_with_fields(request: InvokeRequest) -> list[tuple[str, ChatMessage]]:
    """Return each message of the conversation with the name of its request field; the system prompt comes first."""
    fields = ["systemPrompt"] if request.system_prompt else []
    fields += [f"messages[{index}]" for index in range(len(request.messages or []))] or ["question"]
    return list(zip(fields, request.conversation(), strict=True))


def text_messages(request: InvokeRequest) -> list[TextMessage]:
    """Return the conversation as text. Raises `ProviderFailure` for content that is not text."""
    return [_text_message(field, message) for field, message in messages_with_fields(request)]


def refusal(field: str, reason: str) -> ProviderFailure:
    """Return the failure for a request that this provider does not support: bad request, unbilled."""
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
