"""Converts between OpenAI's completions and Quintain's messages, whole and streamed. No I/O."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from quintain.contracts.chunk import ReasoningChunk, ToolCallChunk
from quintain.contracts.inputs import CompletionInput
from quintain.contracts.invoke import InvokeRequest, InvokeSettings, Result
from quintain.errors import Fault
from quintain_gateway.apis.completions.schemas import CompletionRequest
from quintain_gateway.apis.openai.stream import DONE_EVENT, KEEP_ALIVE_COMMENT, encode_data_event
from quintain_gateway.apis.openai.wire import FINISH_REASONS, write_error, write_ignored, write_usage
from quintain_gateway.http.schemas import validate_as
from quintain_gateway.http.settings import parse_settings

JsonDict = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedCompletionRequest:
    """A parsed completion request: one request for each choice of each prompt."""

    requests: Sequence[InvokeRequest]
    model: str
    stream: bool
    include_usage: bool


def parse_completion_request(value: object) -> ParsedCompletionRequest:
    """Parse the JSON value of a completion request. Raises `BadRequest`, which names the field as OpenAI does."""
    body = validate_as(CompletionRequest, value)
    settings = _parse_settings(body)
    requests = [
        InvokeRequest(target=body.model, completion=_completion(body, prompt), settings=settings)
        for prompt in _prompts(body)
        for _ in range(body.n or 1)
    ]
    return ParsedCompletionRequest(
        requests=requests,
        model=body.model,
        stream=body.stream is True,
        include_usage=body.stream_options is not None and body.stream_options.include_usage is True,
    )


def _prompts(body: CompletionRequest) -> list[str | list[int]]:
    """Return the prompts: a list of numbers is one of them, as its tokens."""
    prompt = body.prompt
    if isinstance(prompt, str):
        return [prompt]
    texts = [item for item in prompt if not isinstance(item, int)]
    return texts or [[item for item in prompt if isinstance(item, int)]]


def _completion(body: CompletionRequest, prompt: str | list[int]) -> CompletionInput:
    return CompletionInput(
        prompt=prompt,
        suffix=body.suffix,
        echo=body.echo,
        logprobs=body.logprobs,
        # No setting may be 0: only here does it mean something, with echo.
        max_tokens=0 if body.max_tokens == 0 else None,
    )


def _parse_settings(body: CompletionRequest) -> InvokeSettings | None:
    settings = parse_settings(body, {"logprobs": None, "max_tokens": body.max_tokens or None})
    return None if settings == InvokeSettings() else settings


@dataclass(frozen=True, slots=True)
class CompletionEncoder:
    """Encodes one completion, whole or as server-sent events; see `ResponseEncoder`."""

    completion_id: str
    model: str
    include_usage: bool = False
    keep_alive_event: bytes = KEEP_ALIVE_COMMENT
    separates_refusals: bool = False
    created: int = field(default_factory=lambda: int(time.time()))

    def encode_response(self, results: Sequence[Result]) -> JsonDict:
        """Return the completion as one JSON body."""
        choices = [self._choice(index, result.raw_text, result) for index, result in enumerate(results)]
        usage = write_usage(results)
        body = {**self._common_fields(results[0].model), "choices": choices, **write_ignored(results)}
        return body if usage is None else {**body, "usage": usage}

    def encode_error(self, fault: Fault) -> JsonDict:
        """Return the JSON body of an error response."""
        return write_error(fault)[1]

    def stream_start(self, _: int) -> bytes:
        """Return nothing: a stream begins with its first text."""
        return b""

    def stream_delta(self, choice: int, delta: str, *, is_first: bool) -> bytes:
        """Return the event for the next piece of a choice's text."""
        return self._chunk_event([self._choice(choice, delta)])

    def stream_call(self, _: int, __: ToolCallChunk) -> bytes:
        """Return nothing: a completion calls no tools."""
        return b""

    def stream_reasoning(self, choice: int, piece: ReasoningChunk) -> bytes:
        """Return nothing: a completion has no reasoning."""
        return b""

    def stream_choice_end(self, choice: int, result: Result) -> bytes:
        """Return the event with a choice's log probabilities and its finish reason."""
        return self._chunk_event([self._choice(choice, "", result)], write_ignored([result]))

    def stream_end(self, results: Sequence[Result]) -> bytes:
        """Return the event with the usage, if the client requested it, and the ``[DONE]`` event."""
        usage = write_usage(results) if self.include_usage else None
        return DONE_EVENT if usage is None else self._chunk_event([], {"usage": usage}) + DONE_EVENT

    def stream_error(self, fault: Fault) -> bytes:
        """Return the error event that ends a stream, without ``[DONE]``."""
        return encode_data_event(self.encode_error(fault))

    def _choice(self, index: int, text: str, result: Result | None = None) -> JsonDict:
        reason = None if result is None else FINISH_REASONS.get(result.finish_reason or "", "stop")
        logprobs = None if result is None else result.output[0].completion_logprobs
        return {"text": text, "index": index, "logprobs": logprobs, "finish_reason": reason}

    def _chunk_event(self, choices: list[JsonDict], more: JsonDict | None = None) -> bytes:
        return encode_data_event({**self._common_fields(None), "choices": choices, **(more or {})})

    def _common_fields(self, model: str | None) -> JsonDict:
        return {
            "id": self.completion_id,
            "object": "text_completion",
            "created": self.created,
            "model": model or self.model,
        }
