"""Answers requests of a vendor's API with a provider that takes conversations only: programs, functions, mocks."""

from __future__ import annotations

import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any

from pydantic import ValidationError
from pydantic.alias_generators import to_snake

from quintain.apis.answer_json import CharacterJoiner, mended
from quintain.apis.chat import ChatStream, DifferentAnswer, chunk_of
from quintain.apis.policy import Policy, check_request
from quintain.apis.requests import CONVERSATION_APIS, left_out, own_name, request_to_chat
from quintain.apis.streams import StreamTranslation, translate_answer
from quintain.apis.translation import Json, Translation, all_objects, invalid, objects, written_usage
from quintain.contracts.api_request import ApiName, ApiRequest
from quintain.contracts.invoke import CUT_REASONS, InvokeRequest, InvokeSettings, OutputMessage, ReasoningChunk
from quintain.contracts.message import describe_validation_error
from quintain.contracts.values import shorten
from quintain.errors import BadRequest, Fault
from quintain_worker.providers.conversation import with_field
from quintain_worker.providers.model_requests import calls_and_thinking
from quintain_worker.providers.provider import Billing, Delta, OnText, ProviderAnswer, ProviderFailure

#: OpenAI's finish reasons by those of providers; clients accept only these. All others are ``stop``.
_FINISH_REASONS = {
    **dict.fromkeys(CUT_REASONS, "length"),
    "content_filter": "content_filter",
    "refusal": "content_filter",
    "tool_calls": "tool_calls",
}


#: The fields of a chat message that conversations have too, and those of a model's own message that change no answer.
_TURN_FIELDS = frozenset(
    {"role", "content", "refusal", "tool_calls", "tool_call_id", "is_error", "thinking_blocks", "reasoning_content",
     "reasoning"}
)  # fmt: skip


#: Asks a provider of conversations within so many seconds; what it is given last is called with each piece of text.
AskConversation = Callable[[InvokeRequest, float, OnText | None], Awaitable[ProviderAnswer]]


def check_conversation(request: ApiRequest) -> None:
    """Check a request for a provider that takes conversations only. Raises `BadRequest`, which names the field."""
    if request.api not in CONVERSATION_APIS:
        raise BadRequest(f"{request.api}: this target's provider has no such endpoint")
    check_request(request.api, request.body.values, Policy(image_urls="any"))


async def answer_in_words(
    ask: AskConversation, request: ApiRequest, timeout_seconds: float, on_text: OnText | None = None
) -> ProviderAnswer:
    """Answer a request in the words of its API, by a provider of conversations. Raises `ProviderFailure`."""
    translation = Translation("this target", ignore_unsupported=request.ignore_unsupported)
    try:
        conversation = conversation_of(
            request_to_chat(request.api, request.body.values, translation), translation, request
        )
    except BadRequest as fault:
        raise ProviderFailure(fault, Billing.UNBILLED) from None
    head = {"id": f"chatcmpl-{secrets.token_hex(12)}", "created": int(time.time())}
    stream = _Stream(request.api, head, on_text)
    on_piece = None if on_text is None else stream.add
    try:
        answer = await ask(conversation, timeout_seconds, on_piece)
    except ProviderFailure as failure:
        failure.fault = _in_words_of(request, failure.fault, translation)
        raise
    chat = mended(chat_answer_of(answer, head))
    return ProviderAnswer(
        text="",
        body=stream.complete(chat),
        token_usage=answer.token_usage,
        model=answer.model,
        finish_reason=answer.finish_reason,
        ignored=(
            *translation.ignored,
            *(_name_in(request, name, translation) for name in answer.ignored),
            *left_out("chat", request.api, chat),
        ),
        host_fingerprint=answer.host_fingerprint,
    )


def conversation_of(chat: Json, translation: Translation, request: ApiRequest) -> InvokeRequest:
    """Return a chat request as a conversation. Raises `BadRequest`, which names the field."""
    settings: Json = {}
    for name, value in chat.items():
        field = "max_tokens" if name == "max_completion_tokens" else name
        if field in InvokeSettings.model_fields.keys() - {"extra_body", "unsupported"}:
            settings[field] = value
    translation.leave_out_rest("", chat, {*settings, "max_completion_tokens", "messages"})
    if request.ignore_unsupported:
        settings["unsupported"] = "ignore"
    turns = chat.get("messages")
    if not isinstance(turns, list) or not turns:
        raise BadRequest("messages: it is a list of at least one message")
    try:
        fields: dict[str, Any] = {
            "messages": [_turn(f"messages[{at}]", turn, translation) for at, turn in enumerate(turns)]
        }
        if settings:
            fields["settings"] = settings
        return InvokeRequest.model_validate({**fields, "target": request.target}, strict=True)
    except ValidationError as error:
        raise _in_words_of(request, BadRequest(describe_validation_error(error)), translation) from None


def _in_words_of(request: ApiRequest, fault: Fault, translation: Translation) -> Fault:
    """Return the fault of a conversation's field with its name in the caller's request."""
    field, colon, reason = fault.message.partition(": ")
    if not isinstance(fault, BadRequest) or not colon or " " in field:
        return fault
    name = _name_in(request, field.removeprefix("settings."), translation)
    return with_field(fault, name, shorten(name), reason)


def _name_in(request: ApiRequest, setting: str, translation: Translation) -> str:
    head, dot, rest = setting.partition(".")
    return own_name(request.api, to_snake(head) + dot + rest, request.body.values, translation)


def _turn(field: str, message: Any, translation: Translation) -> Json:
    if not isinstance(message, dict):
        raise invalid(field, "it is an object")
    translation.leave_out_rest(f"{field}.", message, _TURN_FIELDS)
    role, content = message.get("role"), message.get("content")
    if content is None and role != "assistant":
        raise invalid(f"{field}.content", "it is a text, or a list of parts")
    turn: Json = {"role": "system" if role == "developer" else role}
    turn["content"] = message.get("refusal") or "" if content is None else content
    if message.get("tool_calls"):
        turn["tool_calls"] = [_call(call) for call in all_objects(f"{field}.tool_calls", message["tool_calls"])]
    for name in ("tool_call_id", "is_error"):
        if message.get(name) is not None:
            turn[name] = message[name]
    blocks = objects(message.get("thinking_blocks"))
    if not blocks and isinstance(message.get("reasoning_content"), str):
        blocks = [{"thinking": message["reasoning_content"]}]
    if blocks:
        turn["reasoning"] = [
            {"text": block.get("thinking") or "", "signature": block.get("signature"), "redacted": block.get("data")}
            for block in blocks
        ]
    return turn


def _call(call: Json) -> Json:
    function = call.get("function")
    fields = function if isinstance(function, dict) else {}
    return {"id": call.get("id"), "name": fields.get("name"), "arguments": fields.get("arguments") or ""}


def chat_answer_of(answer: ProviderAnswer, head: Json) -> Json:
    """Return a provider's answer as a chat completion."""
    output = answer.output or [OutputMessage(content=answer.text)]
    said = OutputMessage(
        content="",
        tool_calls=[call for message in output for call in message.tool_calls or []],
        reasoning=[piece for message in output for piece in message.reasoning or []],
    )
    refusal = "".join(message.refusal or "" for message in output) or None
    text = "" if refusal is not None and refusal == answer.text else answer.text
    content = text or (None if said.tool_calls or refusal else "")
    turn: Json = {"role": "assistant", "content": content, "refusal": refusal, **calls_and_thinking(said)}
    if said.reasoning:
        turn["reasoning_content"] = "".join(piece.text for piece in said.reasoning)
    logprobs = [token for message in output for token in message.logprobs or []]
    reason = "tool_calls" if said.tool_calls else _FINISH_REASONS.get(str(answer.finish_reason).lower(), "stop")
    choice = {
        "index": 0,
        "message": turn,
        "finish_reason": reason,
        "logprobs": {"content": logprobs, "refusal": None} if logprobs else None,
    }
    whole = {**head, "object": "chat.completion", "model": answer.model, "choices": [choice]}
    return whole if answer.token_usage is None else {**whole, "usage": written_usage("chat", answer.token_usage)}


class _Stream:
    """An answer in the words of an API: its pieces are passed on as events of that API's stream."""

    def __init__(self, api: ApiName, head: Json, on_event: OnText | None) -> None:
        self._api, self._head, self._on_event = api, head, on_event
        self._chat, self._translation, self._joiner = ChatStream(), StreamTranslation("chat", api), CharacterJoiner()

    def add(self, piece: Delta) -> None:
        """Pass on the events of the next piece."""
        role = {} if self._chat.has_begun else {"role": "assistant"}
        self._feed(self._joiner.feed(chunk_of(self._head, {**role, **_delta(piece)})))

    def complete(self, chat: Json) -> Json:
        """Pass on what was not passed on of this chat completion, and return the whole answer."""
        self._feed(self._joiner.end())
        try:
            rest = list(self._chat.rest_of(chat))
        except DifferentAnswer:
            # The whole answer counts, whatever the pieces were.
            return translate_answer("chat", self._api, chat)
        self._feed(rest)
        self._send(self._translation.end())
        return {**self._translation.answer(), "model": chat["model"]}

    def _feed(self, chunks: Iterable[Json]) -> None:
        for chunk in chunks:
            self._chat.feed(chunk)
            self._send(self._translation.feed(chunk))

    def _send(self, events: Iterator[Json]) -> None:
        for event in events:
            if self._on_event is not None:
                self._on_event(event)


def _delta(piece: Delta) -> Json:
    if isinstance(piece, str):
        return {"content": piece}
    assert isinstance(piece, ReasoningChunk), "a provider of conversations streams its text and its reasoning"
    block = {"type": "thinking", "thinking": piece.text, "signature": piece.signature or "", "index": piece.index}
    return {"reasoning_content": piece.text, "thinking_blocks": [block]}
