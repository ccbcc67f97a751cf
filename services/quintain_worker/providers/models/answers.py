"""Converts the model library's response into a `ProviderAnswer`, and streams its text."""

from __future__ import annotations

from pydantic_ai.messages import (
    ModelResponse,
    ModelResponseStreamEvent,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
    ToolCallPart,
    ToolCallPartDelta,
)
from pydantic_ai.usage import RequestUsage

from quintain.contracts.chunk import ReasoningChunk, ToolCallChunk
from quintain.contracts.invoke import JsonObject, OutputMessage, Reasoning, TokenUsage, ToolCall
from quintain.contracts.strings import replace_surrogates
from quintain_worker.providers.models.capabilities import ApiCapabilities
from quintain_worker.providers.provider import OnText, ProviderAnswer

#: The id that the model library gives to reasoning that only the provider reads.
REDACTED_ID = "redacted_thinking"


def answer_of(response: ModelResponse, capabilities: ApiCapabilities) -> ProviderAnswer:
    """Convert the model library's response into an answer.

    Tool calls, reasoning, a refusal and log probabilities are part of its output.
    """
    text = "".join(part.content for part in response.parts if isinstance(part, TextPart))
    refusal = _refusal(response)
    # A refusal is the model's answer: evaluations need its text.
    text = text or refusal or ""
    calls = [_tool_call(part, capabilities) for part in response.parts if isinstance(part, ToolCallPart)]
    message = OutputMessage(
        content=replace_surrogates(text),
        tool_calls=calls or None,
        reasoning=[_reasoning(part) for part in response.parts if isinstance(part, ThinkingPart)] or None,
        refusal=None if refusal is None else replace_surrogates(refusal),
        logprobs=_logprobs(response),
    )
    return ProviderAnswer(
        text=text,
        output=None if message == OutputMessage(content=message.content) else [message],
        token_usage=_usage(response.usage),
        model=response.model_name,
        finish_reason=_finish_reason(response, has_tool_calls=bool(calls)),
    )


def is_refusal(answer: ProviderAnswer) -> bool:
    """Whether the answer's text is the model's refusal to answer."""
    return any(message.refusal == message.content for message in answer.output or [])


def _refusal(response: ModelResponse) -> str | None:
    refusal = _details(response).get("refusal")
    return refusal if isinstance(refusal, str) else None


def _reasoning(part: ThinkingPart) -> Reasoning:
    if part.signature is not None and not part.content:
        return Reasoning(redacted=part.signature)
    return Reasoning(text=replace_surrogates(part.content), signature=part.signature)


def _logprobs(response: ModelResponse) -> list[JsonObject] | None:
    """Return the log probabilities of the text's tokens: of the whole answer, or of each of its parts."""
    holders = [
        _details(response),
        *(part.provider_details or {} for part in response.parts if isinstance(part, TextPart)),
    ]
    found = [holder["logprobs"] for holder in holders if isinstance(holder.get("logprobs"), list)]
    return [token for logprobs in found for token in logprobs] or None


class StreamedPieces:
    """Passes the text, the tool calls and the reasoning of a streamed answer to a callback, piece by piece.

    A surrogate pair that is split over two events is joined first.
    """

    def __init__(self, on_text: OnText) -> None:
        self._on_text = on_text
        self._has_text = False
        #: The first half of a surrogate pair, by the index of its part; that of the text is None.
        self._high_surrogates: dict[int | None, str] = {}
        #: The calls by the index of their part among all parts.
        self._calls: dict[int, int] = {}
        #: The pieces of reasoning by the index of their part, and those of which text was passed on.
        self._reasoning: dict[int, int] = {}
        self._has_reasoning_text = set[int]()

    def add(self, event: ModelResponseStreamEvent) -> None:
        """Pass on the piece that this event adds; many events add none."""
        if isinstance(event, PartStartEvent) and isinstance(event.part, TextPart):
            self._emit_text(self._whole(None, event.part.content))
        elif isinstance(event, PartDeltaEvent) and isinstance(event.delta, TextPartDelta):
            self._emit_text(self._whole(None, event.delta.content_delta))
        elif isinstance(event, PartStartEvent) and isinstance(event.part, ToolCallPart):
            self._start_call(event.index, event.part)
        elif isinstance(event, PartDeltaEvent) and isinstance(event.delta, ToolCallPartDelta):
            self._continue_call(event.index, event.delta)
        elif isinstance(event, PartStartEvent) and isinstance(event.part, ThinkingPart):
            self._reasoning.setdefault(event.index, len(self._reasoning))
            self._add_reasoning(event.index, event.part.content, event.part.signature, part_id=event.part.id)
        elif isinstance(event, PartDeltaEvent) and isinstance(event.delta, ThinkingPartDelta):
            self._add_reasoning(event.index, event.delta.content_delta, event.delta.signature_delta)

    def finish(self, text: str) -> None:
        """Pass on the rest of the answer's ``text``: all of it where nothing was streamed."""
        rest = self._high_surrogates.pop(None, "")
        self._emit_text(rest if rest or self._has_text else text)

    def _start_call(self, part_index: int, part: ToolCallPart) -> None:
        call = self._calls.setdefault(part_index, len(self._calls))
        arguments = self._whole(part_index, part.args) if isinstance(part.args, str) else ""
        self._on_text(
            ToolCallChunk(
                index=call, id=part.tool_call_id, name=part.tool_name, arguments=replace_surrogates(arguments)
            )
        )

    def _continue_call(self, part_index: int, delta: ToolCallPartDelta) -> None:
        call = self._calls.get(part_index)
        # Arguments that come as an object, whole, are in the final answer.
        if call is not None and isinstance(delta.args_delta, str):
            arguments = self._whole(part_index, delta.args_delta)
            if arguments:
                self._on_text(ToolCallChunk(index=call, arguments=replace_surrogates(arguments)))

    def _add_reasoning(
        self, part_index: int, content: str | None, signature: str | None, part_id: str | None = None
    ) -> None:
        index = self._reasoning.get(part_index)
        if index is None:
            return
        if part_id == REDACTED_ID:
            self._on_text(ReasoningChunk(index=index, redacted=signature))
            return
        text = self._whole(part_index, content or "")
        if text:
            self._has_reasoning_text.add(index)
        # A signature without text is known to be one only at the end.
        signature = (signature or None) if index in self._has_reasoning_text else None
        if text or signature:
            self._on_text(ReasoningChunk(index=index, text=replace_surrogates(text), signature=signature))

    def _whole(self, part_index: int | None, piece: str) -> str:
        """Return the piece behind a half of a surrogate pair that waited, without one that begins at its end."""
        piece = self._high_surrogates.pop(part_index, "") + piece
        if "\ud800" <= piece[-1:] <= "\udbff":
            self._high_surrogates[part_index] = piece[-1:]
            piece = piece[:-1]
        return piece

    def _emit_text(self, text: str) -> None:
        if text:
            self._has_text = True
            self._on_text(replace_surrogates(text))


def is_complete(response: ModelResponse) -> bool:
    """Whether the stream reached the end of the answer.

    Every API sends a finish reason there. For some transports a connection that closed early looks like an end, and the
    library then invents a reason, which is not in ``provider_details``.
    """
    details = _details(response)
    return "finish_reason" in details or "refusal" in details


def _details(response: ModelResponse) -> dict[str, object]:
    return response.provider_details or {}


def _tool_call(part: ToolCallPart, capabilities: ApiCapabilities) -> ToolCall:
    arguments = part.args
    if not isinstance(arguments, str) or not (arguments or capabilities.allows_text_arguments):
        # The arguments are a JSON object; while streaming they come as text, and empty ones as no text.
        arguments = part.args_as_json_str()
    return ToolCall(id=part.tool_call_id, name=part.tool_name, arguments=replace_surrogates(arguments))


def _finish_reason(response: ModelResponse, *, has_tool_calls: bool) -> str | None:
    raw_reason = _details(response).get("finish_reason")
    if response.finish_reason == "tool_call" or (has_tool_calls and raw_reason == "completed"):
        # OpenAI's chat API says "tool_calls". Its Responses API has no such reason and reports "completed".
        return "tool_calls"
    reason = response.finish_reason or raw_reason
    return None if reason is None else str(reason)


def _usage(usage: RequestUsage) -> TokenUsage | None:
    if not usage.has_values():
        return None
    return TokenUsage(
        input=usage.input_tokens,
        output=usage.output_tokens,
        cached=usage.cache_read_tokens or None,
        reasoning=usage.details.get("reasoning_tokens"),
    )
