"""The answers of OpenAI's and Anthropic's APIs: the provider's own JSON, whole or as events. No I/O.

Only the id and, where the provider names none, the model are Quintain's own; the choices of several calls are put into
one answer.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from quintain.apis.chat import DifferentAnswer
from quintain.apis.streams import STREAMS, AnswerStream
from quintain.contracts.api_request import ApiName
from quintain.contracts.invoke import Chunk, Result
from quintain.errors import Fault, ProviderFailed
from quintain_gateway.errors import anthropic_error, openai_error

Json = dict[str, Any]

#: A comment line of server-sent events, which clients ignore; it keeps the connection open.
KEEP_ALIVE_COMMENT = b": keep-alive\n\n"

_DONE_EVENT = b"data: [DONE]\n\n"

_ID_PREFIXES: Final[Mapping[ApiName, str]] = {
    "chat": "chatcmpl-",
    "completions": "cmpl-",
    "embeddings": "embd-",
    "responses": "resp_",
    "messages": "msg_",
}

#: The APIs whose answers have choices: one for each call.
_WITH_CHOICES = frozenset({"chat", "completions"})


@dataclass(slots=True)
class AnswerEncoder:
    """Encodes the answer to one HTTP request, whole or as server-sent events.

    ``key`` names its calls, and ``target`` is the model of an answer that names none. ``ignored`` are the names of what
    its calls are made without, whatever the provider.
    """

    api: ApiName
    key: str
    target: str
    include_usage: bool = False
    ignored: Sequence[str] = ()
    _choices: dict[int, _StreamedChoice] = field(default_factory=dict)
    _names_target: bool | None = None
    _next_number: int = 0

    def ignored_fields(self, results: Iterable[Result]) -> list[str]:
        """Return the names of what any of these calls was made without, or its answer is without."""
        return sorted({*self.ignored, *(name for result in results for name in result.ignored or ())})

    def encode_response(self, results: Sequence[Result]) -> Json:
        """Return the answer as one JSON body. Raises `ProviderFailed` for a result without one."""
        bodies = [self._owned(_body_of(result)) for result in results]
        whole = bodies[0]
        if len(bodies) > 1:
            choices = [{**choice, "index": index} for index, body in enumerate(bodies) for choice in body["choices"]]
            usages = [body["usage"] for body in bodies if body.get("usage")]
            whole = {**whole, "choices": choices, **({"usage": _sum_usages(usages)} if usages else {})}
        ignored = self.ignored_fields(results)
        return {**whole, "ignored_parameters": ignored} if ignored else whole

    def encode_error(self, fault: Fault) -> Json:
        """Return the JSON body of an error response."""
        return anthropic_error(fault) if self.api == "messages" else openai_error(fault)

    def encode_chunk(self, choice: int, chunk: Chunk) -> bytes:
        """Return the events of a chunk, as bytes; none after one was lost, or once the answer is begun again."""
        events = self._choice(choice).take(chunk)
        return b"".join(self._encode_event(choice, event) for event in events)

    def encode_result(self, choice: int, result: Result) -> bytes:
        """Return the events that a choice still lacks, as bytes.

        Raises `ProviderFailed` for a result that differs from what was sent.
        """
        streamed = self._choice(choice)
        try:
            events = b"".join(self._encode_event(choice, event) for event in streamed.sent.rest_of(_body_of(result)))
        except DifferentAnswer:
            message = "A retry gave another answer than the one begun; the same Idempotency-Key gets it, without stream"
            raise ProviderFailed(message, charged=True) from None
        return events

    def encode_end(self, results: Sequence[Result]) -> bytes:
        """Return the events that end the stream, after all choices have ended."""
        ignored = self.ignored_fields(results)
        if self.api not in _WITH_CHOICES:
            # These APIs have no event that could hold it, and clients skip a comment.
            return f": ignored_parameters {json.dumps(ignored)}\n\n".encode() if ignored else b""
        events = b""
        usages = [body["usage"] for result in results if (body := _body_of(result)).get("usage")]
        if (self.include_usage and usages) or ignored:
            head = {name: value for name, value in _body_of(results[0]).items() if name not in {"choices", "usage"}}
            if self.api == "chat":
                head["object"] = "chat.completion.chunk"
            more = {"usage": _sum_usages(usages)} if self.include_usage and usages else {}
            named = {"ignored_parameters": ignored} if ignored else {}
            events = _data_event(self._owned({**head, "choices": [], **more, **named}))
        return events + _DONE_EVENT

    def encode_stream_error(self, fault: Fault) -> bytes:
        """Return the event that ends the stream with an error."""
        error = self.encode_error(fault)
        if self.api == "messages":
            return _named_event(error)
        if self.api == "responses":
            # With the API's own fields, and the error where OpenAI's clients look for it in a stream.
            own = {name: error["error"][name] for name in ("code", "message", "param")}
            return _named_event({"type": "error", **own, **error, "sequence_number": self._next_number})
        return _data_event(error)

    def _choice(self, choice: int) -> _StreamedChoice:
        return self._choices.setdefault(choice, _StreamedChoice(STREAMS[self.api]()))

    def _encode_event(self, choice: int, event: Json) -> bytes:
        if self.api not in _WITH_CHOICES:
            if self.api == "responses":
                event, self._next_number = {**event, "sequence_number": self._next_number}, self._next_number + 1
            return _named_event(self._owned_event(event))
        if not event.get("choices"):
            # The usage of all choices is one event at the end, for clients that ask for it.
            return b""
        if choice:
            event = {**event, "choices": [{**each, "index": choice} for each in event["choices"]]}
        if event.get("usage") is not None:
            event = {name: value for name, value in event.items() if name != "usage"}
        return _data_event(self._owned(event))

    def _owned(self, body: Json) -> Json:
        if self._names_target is None:
            # A stream names one model: that of its first event.
            self._names_target = not body.get("model")
        own: Json = {"model": self.target if self._names_target else body.get("model") or self.target}
        if "id" in body or self.api != "embeddings":
            own["id"] = f"{_ID_PREFIXES[self.api]}{self.key}"
        return {**body, **own}

    def _owned_event(self, event: Json) -> Json:
        for name in ("message", "response"):
            if isinstance(event.get(name), dict):
                return {**event, name: self._owned(event[name])}
        return event


@dataclass(slots=True)
class _StreamedChoice:
    """What was sent of one choice. Events go on while none is missing and the attempt is the same."""

    sent: AnswerStream
    _attempt: int = 0
    _seq: int = 0
    _is_broken: bool = False

    def take(self, chunk: Chunk) -> list[Json]:
        """Return the events of the next chunk that are to be sent."""
        if (chunk.attempt, chunk.seq) < (self._attempt, self._seq):
            # It came again, or its attempt is void.
            return []
        if chunk.attempt != self._attempt:
            # Every attempt begins its answer again, and what was sent cannot be taken back.
            self._is_broken = self.sent.has_begun
            self._attempt, self._seq = chunk.attempt, 0
        self._is_broken = self._is_broken or chunk.seq != self._seq
        self._seq = chunk.seq + 1
        if self._is_broken:
            return []
        for event in chunk.events or ():
            self.sent.feed(event)
        return chunk.events or []


def _body_of(result: Result) -> Json:
    if result.body is None:
        raise ProviderFailed("The worker of this target answered without the API's own JSON", charged=True)
    return result.body


def _sum_usages(usages: Sequence[Json]) -> Json:
    if len(usages) == 1:
        return usages[0]
    total: Json = {}
    for usage in usages:
        for name, value in usage.items():
            if isinstance(value, dict):
                total[name] = _sum_usages([total[name], value]) if name in total else value
            elif isinstance(value, int | float) and not isinstance(value, bool):
                total[name] = total.get(name, 0) + value
            else:
                total.setdefault(name, value)
    return total


def _data_event(data: Json) -> bytes:
    return b"data: " + json.dumps(data).encode() + b"\n\n"


def _named_event(data: Json) -> bytes:
    return f"event: {data.get('type')}\ndata: {json.dumps(data)}\n\n".encode()
