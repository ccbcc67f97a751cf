"""A provider's answer on its way to its caller: as it is where both speak the same API, else as its translation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from quintain.apis import messages, responses
from quintain.apis.streams import STREAMS, StreamTranslation, translate_answer
from quintain.apis.translation import Json, objects
from quintain.contracts.api_request import ApiName
from quintain_worker.providers.models.answers import StreamedPieces, read_answer, read_usage
from quintain_worker.providers.provider import Delta, OnText, ProviderAnswer

#: What the answers of each API have, as a list: one without it is none.
_CONTENT_FIELDS: Final[Mapping[ApiName, str]] = {
    "chat": "choices",
    "responses": "output",
    "completions": "choices",
    "embeddings": "data",
    "messages": "content",
}


class ProviderReply:
    """The answer to one request, as it comes: whole, or event by event.

    ``api`` is the provider's API; ``caller_api`` is that of the caller's request, or None for a conversation. Pieces of
    the answer in the caller's words go to ``on_piece``.
    """

    def __init__(self, api: ApiName, caller_api: ApiName | None, on_piece: OnText | None) -> None:
        self._api, self._caller_api, self._on_piece = api, caller_api, on_piece
        self._words: ApiName = caller_api or "chat"
        self._stream = None if on_piece is None else STREAMS[api]()
        self._translation = None if api == self._words else StreamTranslation(api, self._words)
        self._pieces = StreamedPieces()
        self._whole: Json = {}

    @property
    def is_complete(self) -> bool:
        """Whether the events were those of a whole answer."""
        return self._stream is not None and self._stream.is_complete

    @property
    def has_ended(self) -> bool:
        """Whether no event follows that matters; the usage of a chat completion follows its end."""
        return self._api not in {"chat", "completions"} and self.is_complete

    def feed(self, event: Json) -> None:
        """Add the next event of the provider's stream."""
        assert self._stream is not None, "only a stream has events"
        self._stream.feed(event)
        for translated in [event] if self._translation is None else self._translation.feed(event):
            self._pass_on(translated)

    def set_whole(self, whole: Json) -> None:
        """Set the provider's answer, which came whole."""
        self._whole = whole

    @property
    def may_join_texts(self) -> bool:
        """Whether neighbouring chunks that only add to a text may be fed as one: a caller of an API gets them as they
        are."""
        return self._api == "chat" and self._caller_api is None

    def answer(self) -> ProviderAnswer:
        """Return the answer for the caller. Raises `ValueError` where the provider's is none."""
        body = self._whole if self._stream is None else self._stream.answer()
        _check_answer(self._api, body)
        if self._translation is not None and self._stream is None:
            body = translate_answer(self._api, self._words, body)
        elif self._translation is not None:
            for event in self._translation.end():
                self._pass_on(event)
            body = self._translation.answer()
        if self._caller_api is not None:
            return _answer_with_body(self._words, body)
        answer = read_answer(body)
        for piece in self._pieces.end():
            self._send(piece)
        return answer

    def _pass_on(self, event: Json) -> None:
        if self._caller_api is not None:
            self._send(event)
            return
        for piece in self._pieces.feed(event):
            self._send(piece)

    def _send(self, piece: Delta) -> None:
        if self._on_piece is not None:
            self._on_piece(piece)


def _check_answer(api: ApiName, body: Json) -> None:
    """Check that an answer of this API is one. Raises `ValueError`."""
    content = body.get(_CONTENT_FIELDS[api])
    items = objects(content)
    if not isinstance(content, list) or len(items) < len(content) or not (items or api in {"messages", "responses"}):
        raise ValueError("the answer has no content")
    if api == "chat" and not all(isinstance(choice.get("message"), dict) for choice in items):
        raise ValueError("the answer has no message")


def _answer_with_body(api: ApiName, body: Json) -> ProviderAnswer:
    """Return an answer in this API, with what the ledger is told of it."""
    model = body.get("model")
    return ProviderAnswer(
        text="",
        body=body,
        token_usage=read_usage(_usage(api, body.get("usage"))),
        model=model if isinstance(model, str) else None,
        finish_reason=_finish_reason(api, body),
    )


def _usage(api: ApiName, usage: Any) -> Json | None:
    if not isinstance(usage, dict):
        return None
    if api == "messages":
        return messages.usage_to_chat(usage)
    return responses.usage_to_chat(usage) if api == "responses" else usage


def _finish_reason(api: ApiName, body: Json) -> str | None:
    if api in {"chat", "completions"}:
        reason = objects(body["choices"])[0].get("finish_reason")
    else:
        reason = body.get("stop_reason") if api == "messages" else body.get("status")
    return reason if isinstance(reason, str) else None
