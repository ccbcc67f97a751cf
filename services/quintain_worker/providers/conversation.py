"""A request's conversation, each message with the field it came from; as plain text for providers that take text."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from quintain.contracts.invoke import ChatMessage, InvokeRequest, InvokeSettings
from quintain.errors import BadRequest
from quintain_worker.port import Billing, ProviderFailure


@dataclass(frozen=True, slots=True)
class Turn:
    """One message: the request's field, who speaks, and the text in its parts."""

    field: str
    role: str
    texts: tuple[str, ...]

    @property
    def text(self) -> str:
        """The whole text."""
        return "".join(self.texts)


def placed(request: InvokeRequest) -> list[tuple[str, ChatMessage]]:
    """The conversation, the system prompt first, each message with the request's field."""
    fields = ["systemPrompt"] if request.system_prompt else []
    fields += [f"messages[{index}]" for index in range(len(request.messages or []))] or ["question"]
    return list(zip(fields, request.conversation(), strict=True))


def turns_of(request: InvokeRequest) -> list[Turn]:
    """The conversation as text. Raises `ProviderFailure` for what is not text."""
    return [_turn(field, message) for field, message in placed(request)]


def refuse_settings(settings: InvokeSettings | None, *, honoured: Iterable[str], who: str) -> None:
    """Raise `ProviderFailure`, naming the field, where a setting is asked for that is not among the honoured."""
    if settings is None:
        return
    known = frozenset(honoured)
    for name, field in InvokeSettings.model_fields.items():
        if name not in known and getattr(settings, name) is not None:
            raise refusal(f"settings.{field.alias or name}", f"{who} does not take it; leave it out")


def refusal(field: str, what: str) -> ProviderFailure:
    """The request asks for what this provider cannot do; nothing was sent."""
    return ProviderFailure(BadRequest(f"{field}: {what}"), Billing.UNBILLED)


def _turn(field: str, message: ChatMessage) -> Turn:
    if message.tool_calls:
        raise refusal(f"{field}.toolCalls", "this target takes text only")
    if isinstance(message.content, str):
        return Turn(field, message.role, (message.content,))
    texts: list[str] = []
    for index, part in enumerate(message.content):
        text = part.get("text")
        if part.get("type", "text") != "text" or not isinstance(text, str):
            raise refusal(f"{field}.content[{index}]", "this target takes text parts only")
        texts.append(text)
    return Turn(field, message.role, tuple(texts))
