"""A provider's answer on its way to its caller: as it is where both speak the same API, else as its translation.

The tools that a vendor ran for an answer of its model, such as a search, are steps of the answer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Final

from quintain.apis.answer_json import CallNumbers, PartNumbers, UnreadableAnswer, parse_object
from quintain.apis.chat import arguments_of, call_id, pieces_of
from quintain.apis.requests import left_out
from quintain.apis.streams import STREAMS, AnswerStream, StreamTranslation, translate_answer
from quintain.apis.translation import Json, calls_of, objects, read_usage, text_of, thinking_of
from quintain.contracts.agents import AgentStep
from quintain.contracts.api_request import ApiName
from quintain.contracts.invoke import OutputMessage, Reasoning, ReasoningChunk, TokenUsage, ToolCall, ToolCallChunk
from quintain_worker.providers.provider import Delta, OnText, ProviderAnswer

#: What the answers of each API have, as a list: one without it is none.
_CONTENT_FIELDS: Final[Mapping[ApiName, str]] = {
    "chat": "choices",
    "responses": "output",
    "completions": "choices",
    "embeddings": "data",
    "messages": "content",
}

#: Where the content of an answer stands in each API.
_CONTENT: Final = re.compile(r"choices\[\]\.message\.(content|audio|images)|content\[|output\[message\]|output_text")

#: What tells the parts of a stream apart.
_NUMBERS: Final[Mapping[ApiName, Callable[[], CallNumbers | PartNumbers]]] = {
    "chat": CallNumbers,
    "responses": partial(PartNumbers, "output_index"),
    "messages": partial(PartNumbers, "index"),
}


class ProviderReply:
    """The answer to one request, as it comes: whole, or event by event.

    ``api`` is the provider's API; ``caller_api`` is that of the caller's request, or None for a conversation. Pieces of
    the answer in the caller's words go to ``on_piece``.
    """

    def __init__(self, api: ApiName, caller_api: ApiName | None, on_piece: OnText | None) -> None:
        self._api, self._caller_api, self._on_piece = api, caller_api, on_piece
        self._words: ApiName = caller_api or "chat"
        self._stream: AnswerStream | None = None
        self._numbers, self._is_done = _NUMBERS[api]() if api in _NUMBERS else None, False
        self._translation = None if api == self._words else StreamTranslation(api, self._words)
        self._pieces = StreamedPieces()
        self._whole: Json = {}
        #: By which its vendor knows the generation; empty until it says so.
        self.generation_id = ""

    @property
    def is_complete(self) -> bool:
        """Whether the events were those of a whole answer. Some servers never say why a chat completion ended."""
        stream = self._stream
        return stream is not None and (stream.is_complete or (self._is_done and self._has_choices and stream.has_begun))

    @property
    def has_begun(self) -> bool:
        """Whether there was any event."""
        return self._stream is not None

    @property
    def has_ended(self) -> bool:
        """Whether no event follows that matters; the usage of a chat completion follows its end."""
        return self._is_done or (self.is_complete and not self._has_choices)

    @property
    def _has_choices(self) -> bool:
        return self._api in {"chat", "completions"}

    def feed(self, event: Json) -> None:
        """Add the next event of the provider's stream."""
        if self._has_choices and event.get("type") == "ping":
            return
        if self._numbers is not None:
            self._numbers.number(event)
        self._stream = self._stream or STREAMS[self._api]()
        self.generation_id = self.generation_id or _text(event.get("id"))
        self._stream.feed(event)
        for translated in [event] if self._translation is None else self._translation.feed(event):
            self._pass_on(translated)

    def end(self) -> None:
        """Note that the provider said that no more events follow."""
        self._is_done = True

    def set_whole(self, whole: Json) -> None:
        """Set the provider's answer, which came whole; where a stream was asked for, it is passed on as events.

        Raises `ValueError` for one that is none.
        """
        self.generation_id = self.generation_id or _text(whole.get("id"))
        _check_answer(self._api, whole)
        self._whole = whole
        for event in () if self._on_piece is None else STREAMS[self._api]().rest_of(whole):
            self.feed(event)

    @property
    def may_join_texts(self) -> bool:
        """Whether neighbouring chunks that only add to a text may be fed as one: a caller of an API gets them as they
        are."""
        return self._api == "chat" and self._caller_api is None

    def answer(self, ignored: tuple[str, ...] = ()) -> ProviderAnswer:
        """Return the answer for the caller, which was asked without the ``ignored``; what has no place in it is too.

        Raises `ValueError` where the provider's is none.
        """
        body = self._whole
        if self._stream is not None:
            _check_answer(self._api, body := self._stream.answer())
        came, usage = body, read_usage(self._api, body.get("usage"))
        steps = () if self._caller_api is not None else server_tool_steps(self._api, body)
        if self._caller_api is not None:
            ignored = (*ignored, *left_out(self._api, self._caller_api, came))
        if self._translation is not None and self._stream is None:
            body = translate_answer(self._api, self._words, body)
        elif self._translation is not None:
            for event in self._translation.end():
                self._pass_on(event)
            body = self._translation.answer()
        if self._caller_api is not None:
            return _answer_with_body(self._words, body, usage, ignored)
        answer = read_answer(body, usage, ignored, steps)
        if not (answer.text or answer.output or steps):
            lost = [path for path in left_out(self._api, None, came) if _CONTENT.match(path)]
            if lost:
                raise UnreadableAnswer(f"it has no text, but {', '.join(lost)}")
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
        raise UnreadableAnswer(f"it has no {_CONTENT_FIELDS[api]}")
    if api == "chat" and not all(isinstance(choice.get("message"), dict) for choice in items):
        raise UnreadableAnswer("a choice has no message")
    if api == "responses" and body.get("status") in {"queued", "in_progress"}:
        raise UnreadableAnswer(f"it is {body['status']}")


def _answer_with_body(api: ApiName, body: Json, usage: TokenUsage | None, ignored: tuple[str, ...]) -> ProviderAnswer:
    """Return an answer in this API, with what the ledger is told of it."""
    model = body.get("model")
    return ProviderAnswer(
        text="",
        body=body,
        token_usage=usage,
        model=model if isinstance(model, str) else None,
        finish_reason=_reason_in(api, body),
        ignored=ignored,
    )


def _reason_in(api: ApiName, body: Json) -> str | None:
    if api in {"chat", "completions"}:
        reason = objects(body["choices"])[0].get("finish_reason")
    else:
        reason = body.get("stop_reason") if api == "messages" else body.get("status")
    return reason if isinstance(reason, str) else None


def read_answer(
    chat: Json, usage: TokenUsage | None, ignored: tuple[str, ...] = (), steps: tuple[AgentStep, ...] = ()
) -> ProviderAnswer:
    """Read a chat completion with one choice; ``steps`` are what was done for it.

    Raises `ValueError` for one without a message.
    """
    choices = objects(chat.get("choices"))
    message = choices[0].get("message") if choices else None
    if not isinstance(message, dict):
        raise ValueError("no message")  # noqa: TRY004 -- a wrong value
    refusal = _text(message.get("refusal")) or None
    # A refusal is the model's answer: evaluations need its text.
    text = text_of(message.get("content")) or refusal or ""
    calls = [_tool_call(call, chat, index) for index, call in enumerate(calls_of(message))]
    reasoning, logprobs = _reasoning(message), choices[0].get("logprobs")
    tokens = objects(logprobs.get("content")) if isinstance(logprobs, dict) else []
    output = None
    if calls or reasoning or tokens or refusal is not None:
        output = OutputMessage(
            content=text,
            tool_calls=calls or None,
            reasoning=reasoning or None,
            refusal=refusal,
            logprobs=tokens or None,
        )
    return ProviderAnswer(
        text=text,
        output=None if output is None else [output],
        token_usage=usage,
        model=_text(chat.get("model")) or None,
        finish_reason=_finish_reason(choices[0], has_calls=bool(calls), is_refusal=refusal is not None),
        ignored=ignored,
        steps=steps,
    )


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _tool_call(call: Json, chat: Json, index: int) -> ToolCall:
    function = call.get("function")
    fields = function if isinstance(function, dict) else {}
    return ToolCall(
        id=call_id(call.get("id"), chat, index),
        name=_text(fields.get("name")),
        arguments=arguments_of(fields),
    )


def _reasoning(message: Json) -> list[Reasoning]:
    blocks = objects(message.get("thinking_blocks"))
    if not blocks:
        return [Reasoning(text=text)] if (text := thinking_of(message)) else []
    return [
        Reasoning(redacted=_text(block["data"]))
        if block.get("data") is not None
        else Reasoning(text=_text(block.get("thinking")), signature=_text(block.get("signature")) or None)
        for block in blocks
    ]


def _finish_reason(choice: Json, *, has_calls: bool, is_refusal: bool) -> str | None:
    reason = _text(choice.get("finish_reason")) or None
    if is_refusal and reason == "stop":
        return "content_filter"
    return "tool_calls" if has_calls and reason in {"stop", "function_call"} else reason


class StreamedPieces:
    """Reads the chunks of a chat completion: its text, its tool calls and its reasoning, piece by piece."""

    def __init__(self) -> None:
        #: The calls of which the id was passed on; some servers repeat it in each chunk.
        self._started: set[int] = set()

    def feed(self, chunk: Json) -> Iterator[Delta]:
        """Yield the pieces of a chunk. A refusal is none: only the end of the answer shows that its text is one."""
        for kind, at, text, fields in pieces_of(chunk):
            if kind == "thinking":
                redacted, signature = fields.get("data"), fields.get("signature") or None
                if text or redacted or signature:
                    yield ReasoningChunk(index=at, text=text, signature=signature, redacted=redacted)
            elif kind == "call":
                if at not in self._started:
                    self._started.add(at)
                    yield ToolCallChunk(
                        index=at, id=call_id(fields["id"], chunk, at), name=_text(fields["name"]), arguments=text
                    )
                elif text:
                    yield ToolCallChunk(index=at, arguments=text)
            elif kind == "text" and text:
                yield text


#: Calls in OpenAI's responses that the caller runs itself.
_CALLERS_OWN: Final = frozenset(
    {"function_call", "custom_tool_call", "computer_call", "local_shell_call", "shell_call", "apply_patch_call"}
)

#: Where the items of OpenAI's responses have what a tool found.
_RESULTS: Final = ("output", "outputs", "results", "result")


def server_tool_steps(api: str, answer: Json) -> tuple[AgentStep, ...]:
    """Return a step for each tool that a vendor ran for a whole answer of this API."""
    if api == "messages":
        return tuple(_of_blocks(objects(answer.get("content"))))
    return tuple(_of_items(objects(answer.get("output")))) if api == "responses" else ()


def _of_blocks(blocks: list[Json]) -> Iterator[AgentStep]:
    """What Anthropic ran: a block with the call, and one with its result."""
    found = {str(block["tool_use_id"]): block for block in blocks if "tool_use_id" in block}
    for block in blocks:
        if block.get("type") in {"server_tool_use", "mcp_tool_use"}:
            result = found.get(str(block.get("id")), {})
            content = result.get("content")
            is_error = result.get("is_error") is True or (isinstance(content, dict) and "error_code" in content)
            yield AgentStep(
                operation="execute_tool",
                tool=str(block.get("name")),
                tool_call_id=str(block.get("id")),
                arguments=block.get("input"),
                result=content,
                error_type="_OTHER" if is_error else None,
            )


def _of_items(items: list[Json]) -> Iterator[AgentStep]:
    """What OpenAI ran: an item has the call and its result."""
    for item in items:
        kind = str(item.get("type"))
        if kind.endswith("_call") and kind not in _CALLERS_OWN:
            given = {key: item[key] for key in item if key not in {"type", "id", "status", "name", "error", *_RESULTS}}
            arguments = parse_object(item.get("arguments"))
            yield AgentStep(
                operation="execute_tool",
                tool=str(item.get("name") or kind.removesuffix("_call")),
                tool_call_id=str(item.get("id")),
                arguments=given if arguments is None else arguments,
                result=next((item[name] for name in _RESULTS if item.get(name) is not None), item.get("error")),
                error_type="_OTHER" if item.get("error") or item.get("status") == "failed" else None,
            )
