"""A conversation as providers read it: its messages, and its settings beside the target's own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from typing import NamedTuple

from pydantic import JsonValue

from quintain.apis.answer_json import parse_json
from quintain.apis.translation import Json, Translation
from quintain.contracts.api_request import ApiRequest
from quintain.contracts.invoke import ChatMessage, InvokeRequest, InvokeSettings
from quintain.contracts.values import shorten
from quintain.errors import BadRequest, UnsupportedParameter
from quintain_worker.providers.provider import Billing, ProviderFailure

#: The longest session of an endpoint, in characters of its JSON: it is a part of each later request.
MAX_SESSION_LENGTH = 64 * 1024


class TextMessage(NamedTuple):
    """One message as text: the request's field name, the role, and the text of its parts."""

    field: str
    role: str
    text: str


def named_messages(request: InvokeRequest) -> list[tuple[str, ChatMessage]]:
    """Return each message of the conversation with the name of its request field; the system prompt comes first."""
    fields = ["systemPrompt"] if request.system_prompt else []
    fields += [f"messages[{index}]" for index in range(len(request.messages or []))] or ["question"]
    return list(zip(fields, request.conversation(), strict=True))


def text_messages(request: InvokeRequest) -> list[TextMessage]:
    """Return the conversation as text. Raises `ProviderFailure` for content that is not text."""
    return [text_message(field, message) for field, message in named_messages(request)]


def refusal(field: str, reason: str) -> ProviderFailure:
    """Return the failure for a request that this provider does not support: bad request, unbilled."""
    return ProviderFailure(BadRequest(f"{field}: {reason}"), Billing.UNBILLED)


def text_message(field: str, message: ChatMessage) -> TextMessage:
    """Return a message as text; ``field`` is its name. Raises `ProviderFailure` for content that is not text."""
    if message.tool_calls:
        raise refusal(f"{field}.toolCalls", "this target takes text only")
    if isinstance(message.content, str):
        return TextMessage(field, message.role, message.content)
    texts: list[str] = []
    for index, part in enumerate(message.content):
        text = part.get("text")
        if part.get("type", "text") != "text" or not isinstance(text, str):
            raise refusal(f"{field}.content[{index}]", "this target takes text parts only")
        texts.append(text)
    return TextMessage(field, message.role, "".join(texts))


_CHAT_SETTINGS = tuple(name for name in InvokeSettings.model_fields if name not in {"extra_body", "unsupported"})


def ignoring_unsupported(request: InvokeRequest | ApiRequest) -> InvokeRequest | ApiRequest:
    """Return the request with ``unsupported: ignore``, unless it says itself what is to be done."""
    if isinstance(request, ApiRequest):
        return request._replace(ignore_unsupported=True)
    settings = request.settings
    if settings is None or settings.unsupported is not None:
        return request
    return request.model_copy(update={"settings": settings.model_copy(update={"unsupported": "ignore"})})


def with_defaults(requested: InvokeSettings | None, defaults: InvokeSettings) -> InvokeSettings:
    """Return the settings of a request, and the target's where it sets none."""
    if requested is None:
        return defaults
    values = {name: value for name in requested.model_fields_set if (value := getattr(requested, name)) is not None}
    if defaults.extra_body and requested.extra_body:
        values["extra_body"] = {**defaults.extra_body, **requested.extra_body}
    return defaults.model_copy(update=values)


def settings_of(settings: InvokeSettings, translation: Translation | None = None) -> Json:
    """Return the settings as the fields of a chat request, without those of no known name: a translation notes these.

    Raises `UnsupportedParameter` with the nearest known name where it may not.
    """
    if translation is not None:
        _leave_out_unknown(settings, translation)
    chat: Json = {name: value for name in _CHAT_SETTINGS if (value := getattr(settings, name)) is not None}
    # A list of texts is what every server takes.
    return {**chat, "stop": [chat["stop"]]} if isinstance(chat.get("stop"), str) else chat


def _leave_out_unknown(settings: InvokeSettings, translation: Translation) -> None:
    for name in sorted(settings.unknown()):
        known = [field.alias or key for key, field in InvokeSettings.model_fields.items()]
        nearest = get_close_matches(name, known, n=1)
        hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
        translation.leave_out(
            name, f"no setting has this name{hint}; a field of the provider's own goes into extraBody"
        )


def ignored_settings(requested: InvokeSettings | None, provider: str, *, takes_all: bool = False) -> tuple[str, ...]:
    """Return the names of the settings that a provider which takes all of them, or none, is asked without.

    Raises `ProviderFailure`, which names the setting.
    """
    if requested is None:
        return ()
    translation = Translation(provider, ignore_unsupported=requested.unsupported == "ignore")
    try:
        with named_as_sent():
            given = settings_of(requested, translation)
            for name, value in () if takes_all else {**given, "extra_body": requested.extra_body or {}}.items():
                translation.leave_out(name, value=value)
    except BadRequest as fault:
        raise ProviderFailure(fault, Billing.UNBILLED) from None
    return tuple(camel(name) for name in translation.ignored)


_MESSAGE = re.compile(r"messages\[(\d+)\](.*)", re.DOTALL)


@contextmanager
def named_as_sent(request: InvokeRequest | None = None) -> Iterator[None]:
    """Let faults that are raised inside name a field of a chat request as the conversation has it, which it is made of.

    Without a request, only its settings are looked at.
    """
    try:
        yield
    except BadRequest as fault:
        field, _, reason = fault.message.partition(": ")
        if request is not None and (found := _MESSAGE.match(field)) is not None:
            index = int(found[1]) - bool(request.system_prompt)
            place = f"messages[{index}]" if request.messages else "question"
            name = ("systemPrompt" if index < 0 else place) + re.sub(r"\.function(?=\.)", "", camel(found[2]))
            raise with_field(fault, name, shorten(name), reason) from None
        name = camel(field)
        parameter = shorten(name) if isinstance(fault, UnsupportedParameter) else f"settings.{name}"
        raise with_field(fault, f"settings.{name}", parameter, reason) from None


def with_field(fault: BadRequest, field: str, parameter: str, reason: str) -> BadRequest:
    """Return the fault of another field."""
    renamed = type(fault)(f"{field}: {reason}")
    renamed.parameter = parameter
    return renamed


def camel(path: str) -> str:
    """Return the name that a field of a chat request has in a conversation's request."""
    head, dot, rest = path.partition(".")
    known = InvokeSettings.model_fields.get(head)
    name = head if known is None else known.alias or head
    if name != "extraBody":
        rest = re.sub(r"tool_call(s|_id)", lambda found: "toolCalls" if found[1] == "s" else "toolCallId", rest)
    return f"{name}{dot}{rest}"


def prompts_of(request: InvokeRequest, *, separate_system: bool = False) -> tuple[str, str]:
    """Return the prompt and the system prompt; a single message as it is, several as ``role: text`` each."""
    turns = text_messages(request)
    system = "\n\n".join(turn.text for turn in turns if turn.role == "system") if separate_system else ""
    prompt_turns = [turn for turn in turns if not (separate_system and turn.role == "system")]
    if len(prompt_turns) == 1:
        return prompt_turns[0].text, system
    return "\n\n".join(f"{turn.role}: {turn.text}" for turn in prompt_turns), system


def state_of(request: InvokeRequest) -> str | None:
    """Return what an earlier answer said of the conversation."""
    continuation = None if request.turn is None else request.turn.continuation
    return None if continuation is None else continuation.state


def session_of(state: str) -> JsonValue:
    """Return the session that a state is. Raises `ProviderFailure` for what no endpoint has said."""
    try:
        if len(state) <= MAX_SESSION_LENGTH:
            return parse_json(state)  # type: ignore[return-value]
    except ValueError:
        pass
    raise refusal("turn.continuation.state", "not what an answer of this target has")


def last_question(request: InvokeRequest) -> str:
    """Return the text of the last message, which is the user's. Raises `ProviderFailure`."""
    last = text_message(*named_messages(request)[-1])
    if last.role != "user":
        raise refusal(f"{last.field}.role", "the last message of a turn is the user's")
    return last.text
