"""The bodies of OpenAI's and Anthropic's requests: what the gateway reads of them, and what it publishes. No I/O.

The gateway reads which target is called, how often, and whether the answer is streamed. The rest goes to the target's
worker as it was sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field

from quintain.contracts.api_request import CARRIED_HEADERS, ApiName, ApiRequest
from quintain.contracts.json_text import JsonText, parse_json_object
from quintain_gateway.http.schemas import RequestModel, validate_as

#: The maximum number of choices of a request, and of prompts; each choice of each prompt is one call.
MAX_CHOICES, MAX_PROMPTS = 128, 2048

_Objects = Annotated[list[dict[str, Any]], Field(min_length=1)]
_Choices = Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None
_Prompt = Annotated[str, Field(min_length=1)] | Annotated[list[int], Field(min_length=1)]


class StreamOptions(RequestModel):
    """Options of a streamed response."""

    include_usage: bool | None = None


class CallBody(RequestModel):
    """The fields of every request. ``model`` is the name of a target."""

    model: Annotated[str, Field(min_length=1)]
    stream: bool | None = None


class ChatBody(CallBody):
    """A chat completion request; each of ``n`` choices is one call."""

    messages: _Objects
    n: _Choices = None
    stream_options: StreamOptions | None = None


class CompletionBody(CallBody):
    """A completion request; each of ``n`` choices for each prompt is one call."""

    prompt: _Prompt | Annotated[list[_Prompt], Field(min_length=1, max_length=MAX_PROMPTS)]
    n: _Choices = None
    stream_options: StreamOptions | None = None


class EmbeddingBody(RequestModel):
    """An embeddings request: one call, whatever number of texts."""

    model: Annotated[str, Field(min_length=1)]
    input: _Prompt | Annotated[list[_Prompt], Field(min_length=1, max_length=MAX_PROMPTS)]
    stream: Literal[False] | None = None


class ResponseBody(CallBody):
    """A request of the Responses API. Nothing is stored, whatever ``store`` says."""

    input: Annotated[str, Field(min_length=1)] | _Objects
    stream_options: dict[str, Any] | None = None


class MessageBody(CallBody):
    """A messages request."""

    messages: _Objects
    max_tokens: Annotated[int, Field(gt=0)]


BODIES: Mapping[ApiName, type[RequestModel]] = {
    "chat": ChatBody,
    "completions": CompletionBody,
    "embeddings": EmbeddingBody,
    "responses": ResponseBody,
    "messages": MessageBody,
}


class ParsedBody(NamedTuple):
    """The calls of one HTTP request, and how its response is written."""

    target: str
    requests: list[ApiRequest]
    stream: bool
    include_usage: bool


def parse_body(api: ApiName, body: bytes, headers: Mapping[str, str]) -> ParsedBody:
    """Parse the body of a request. Raises `BadRequest`, which names the field as its API does."""
    sent, _ = parse_json_object(body)
    read: Any = validate_as(BODIES[api], sent.values)
    has_choices = isinstance(read, ChatBody | CompletionBody)
    published = sent.without("model", "stream", "stream_options", *(["n"] if has_choices else []))
    carried = {name: headers[name] for name in sorted(CARRIED_HEADERS) if name in headers}
    bodies = _prompts(published) if api == "completions" else [published]
    count = (read.n or 1) if has_choices else 1
    requests = [ApiRequest(api, each, carried, read.model) for each in bodies for _ in range(count)]
    options = read.stream_options if has_choices else None
    return ParsedBody(
        target=read.model,
        requests=requests,
        stream=read.stream is True,
        include_usage=options is not None and options.include_usage is True,
    )


def _prompts(body: JsonText) -> list[JsonText]:
    """Return the body for each prompt: a list of numbers is one of them, as its tokens."""
    prompt = body.values["prompt"]
    if isinstance(prompt, str) or isinstance(prompt[0], int):
        return [body]
    return [body.with_members({"prompt": each}) for each in prompt]
