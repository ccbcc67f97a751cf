"""What a model library read of a provider's answer, as the port's `Answer`; and its text while it is on its way."""

from __future__ import annotations

from pydantic_ai.messages import (
    ModelResponse,
    ModelResponseStreamEvent,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ToolCallPart,
)
from pydantic_ai.usage import RequestUsage

from quintain.contracts.invoke import OutputMessage, TokenUsage, ToolCall
from quintain.contracts.text import whole
from quintain_worker.port import Answer, Heard
from quintain_worker.providers.dialect import Dialect


def answer_of(response: ModelResponse, dialect: Dialect) -> Answer:
    """The whole answer, its calls of tools among its output."""
    text = "".join(part.content for part in response.parts if isinstance(part, TextPart))
    refused = _details(response).get("refusal")
    if not text and isinstance(refused, str):
        # A refusal is what the model said, and an evaluation wants to read it.
        text = refused
    calls = [_call(part, dialect) for part in response.parts if isinstance(part, ToolCallPart)]
    return Answer(
        text=text,
        output=[OutputMessage(content=whole(text), tool_calls=calls)] if calls else None,
        token_usage=_usage(response.usage),
        model=response.model_name,
        finish_reason=_finish_reason(response, called=bool(calls)),
    )


class Pieces:
    """Tells the text of an answer that is streamed; a character that comes in two halves is told whole."""

    def __init__(self, heard: Heard) -> None:
        self._heard = heard
        self._half = ""
        self._told = False

    def add(self, event: ModelResponseStreamEvent) -> None:
        """Tell what this event adds to the text, often nothing."""
        text = self._half + _text_in(event)
        self._half = text[-1:] if "\ud800" <= text[-1:] <= "\udbff" else ""
        self._tell(text.removesuffix(self._half))

    def end(self, text: str) -> None:
        """Tell what is left of the whole text: a refusal comes beside the text, and is it where there is none."""
        self._tell(self._half if self._half or self._told else text)

    def _tell(self, text: str) -> None:
        if text:
            self._told = True
            self._heard(whole(text))


def _text_in(event: ModelResponseStreamEvent) -> str:
    if isinstance(event, PartStartEvent) and isinstance(event.part, TextPart):
        return event.part.content
    if isinstance(event, PartDeltaEvent) and isinstance(event.delta, TextPartDelta):
        return event.delta.content_delta
    return ""


def is_whole(streamed: ModelResponse) -> bool:
    """Whether a stream came to the answer's end. Every API names a reason there; a connection that closed early
    looks like an end to some transports, and the library then makes a reason up."""
    details = _details(streamed)
    return "finish_reason" in details or "refusal" in details


def _details(response: ModelResponse) -> dict[str, object]:
    return response.provider_details or {}


def _call(part: ToolCallPart, dialect: Dialect) -> ToolCall:
    arguments = part.args
    if not isinstance(arguments, str) or not (arguments or dialect.text_arguments):
        # An object, which a stream gives as its text, and as no text where it is empty.
        arguments = part.args_as_json_str()
    return ToolCall(id=part.tool_call_id, name=part.tool_name, arguments=whole(arguments))


def _finish_reason(response: ModelResponse, *, called: bool) -> str | None:
    said = _details(response).get("finish_reason")
    if response.finish_reason == "tool_call" or (called and said == "completed"):
        # OpenAI's word, and what its Responses API, which calls an answer with calls completed, has no word for.
        return "tool_calls"
    reason = response.finish_reason or said
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
