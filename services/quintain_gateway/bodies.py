"""Request bodies: read within the limits of size, time and memory, and what the gateway reads of them and publishes.

The gateway reads which target is called, how often, and whether the answer is streamed. The rest goes to the target's
worker as it was sent. An error names the field that is wrong, as its API does.
"""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request

from quintain.client.client import Client
from quintain.contracts.api_request import CARRIED_HEADERS, ApiName, ApiRequest, JsonText, parse_json_object
from quintain.errors import BadRequest, Cancelled, PayloadTooLarge
from quintain_gateway.endpoint import RequestContext, context_of
from quintain_gateway.errors import BUSY_RETRY_MS, LargeBodiesBusy, RequestTimeout, UnsupportedEncoding
from quintain_gateway.settings import GatewayLimits


class BodyReader:
    """Reads request bodies. All that are larger than the default share one amount of memory."""

    def __init__(self, limits: GatewayLimits) -> None:
        self._limits = limits
        self._free_bytes = limits.max_large_bodies_bytes

    async def read(self, request: Request, client: Client | None = None) -> bytes:
        """Read the whole body, limited in size and time by `GatewayLimits`.

        With ``client``, its session may allow a larger body: it is asked before such a body is read.

        Raises `PayloadTooLarge`, `LargeBodiesBusy`, `RequestTimeout`, `UnsupportedEncoding` for a body that is
        compressed, or `Cancelled` if the client disconnects.
        """
        if any(each.strip().lower() not in {"", "identity"} for each in request.headers.getlist("content-encoding")):
            raise UnsupportedEncoding
        max_bytes, timeout_seconds = self._limits.max_body_bytes, self._limits.body_timeout_seconds
        size, is_asked = int(request.headers.get("content-length", 0)), False
        body = bytearray()
        try:
            async with asyncio.timeout(timeout_seconds):
                if size > max_bytes:
                    max_bytes, is_asked = await self._allow_large_body(request, client, size), True
                async for chunk in request.stream():
                    body += chunk
                    if len(body) > max_bytes and not is_asked:
                        max_bytes, is_asked = await self._allow_large_body(request, client, len(body)), True
                    if len(body) > max_bytes:
                        raise _too_large(max_bytes)
        except TimeoutError:
            raise RequestTimeout(f"The body did not arrive within {timeout_seconds:g} s") from None
        except ClientDisconnect:
            raise Cancelled("The client disconnected before its body had arrived") from None
        return bytes(body)

    async def _allow_large_body(self, request: Request, client: Client | None, size: int) -> int:
        """Return the limit of the session's bodies, once there is memory for one. Raises `PayloadTooLarge`."""
        max_bytes = self._limits.max_body_bytes
        if client is not None:
            max_bytes = max(max_bytes, (await client.get_info()).max_body_bytes or 0)
        if size > max_bytes:
            raise _too_large(max_bytes)
        # A body without a declared size may grow up to the limit.
        self._take(context_of(request), size if "content-length" in request.headers else max_bytes)
        return max_bytes

    def _take(self, context: RequestContext, size: int) -> None:
        """Take the memory for one large body until its request ends. Raises `LargeBodiesBusy` without enough of it."""
        if size > self._free_bytes:
            raise LargeBodiesBusy(retry_after_ms=BUSY_RETRY_MS)
        self._add_free(-size)
        context.on_end.append(partial(self._add_free, size))

    def _add_free(self, size: int) -> None:
        self._free_bytes += size


def _too_large(max_bytes: int) -> PayloadTooLarge:
    return PayloadTooLarge(f"The body is larger than {max_bytes} bytes")


class RequestModel(BaseModel):
    """Base class of the objects in a request body: strict types, unknown fields kept.

    Unknown fields are passed on with the call, for its target's provider to refuse or ignore by name.
    """

    model_config = ConfigDict(
        strict=True, extra="allow", frozen=True, allow_inf_nan=False, hide_input_in_errors=True, protected_namespaces=()
    )


#: The maximum number of choices of a request, and of prompts; each choice of each prompt is one call.
MAX_CHOICES, MAX_PROMPTS = 128, 2048

_Objects = Annotated[list[dict[str, Any]], Field(min_length=1)]
_Choices = Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None
_Tokens = Annotated[list[int], Field(min_length=1)]
_Prompt = Annotated[str, Field(min_length=1)] | _Tokens


class StreamOptions(RequestModel):
    """Options of a streamed response."""

    include_usage: bool | None = None


class CallBody(RequestModel):
    """The fields of every request. ``model`` is the name of a target."""

    model: Annotated[str, Field(min_length=1)]
    stream: bool | None = None
    stream_options: StreamOptions | None = None


class ChatBody(CallBody):
    """A chat completion request; each of ``n`` choices is one call."""

    messages: _Objects
    n: _Choices = None


class CompletionBody(CallBody):
    """A completion request; each of ``n`` choices for each prompt is one call.

    Without a prompt the server takes its own default, which is the beginning of a document.
    """

    prompt: str | _Tokens | Annotated[list[str | _Tokens], Field(min_length=1, max_length=MAX_PROMPTS)] | None = None
    n: _Choices = None


class EmbeddingBody(RequestModel):
    """An embeddings request: one call, whatever number of texts."""

    model: Annotated[str, Field(min_length=1)]
    input: _Prompt | Annotated[list[_Prompt], Field(min_length=1, max_length=MAX_PROMPTS)]
    stream: Literal[False] | None = None
    stream_options: None = None


class ResponseBody(CallBody):
    """A request of the Responses API. Nothing is stored, whatever ``store`` says."""

    input: Annotated[str, Field(min_length=1)] | _Objects


class MessageBody(CallBody):
    """A messages request."""

    messages: _Objects
    max_tokens: Annotated[int, Field(ge=0)]


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
    #: The names of the options of a stream that have no effect here.
    ignored: list[str]


def parse_body(api: ApiName, body: bytes, headers: Headers) -> ParsedBody:
    """Parse the body of a request. Raises `BadRequest`, which names the field as its API does."""
    sent, _ = parse_json_object(body)
    try:
        read: Any = BODIES[api].model_validate(sent.values)
    except ValidationError as error:
        raise _invalid(error) from None
    has_choices = isinstance(read, ChatBody | CompletionBody)
    published = sent.without("model", "stream", "stream_options", *(["n"] if has_choices else []))
    # A header that stands twice is a list, as one with commas is.
    carried = {name: ",".join(values) for name in sorted(CARRIED_HEADERS) if (values := headers.getlist(name))}
    bodies = _prompts(published) if api == "completions" else [published]
    count = (read.n or 1) if has_choices else 1
    requests = [ApiRequest(api, each, carried, read.model) for each in bodies for _ in range(count)]
    options = {} if read.stream_options is None else read.stream_options.model_dump(exclude_none=True)
    include_usage = has_choices and options.pop("include_usage", False)
    return ParsedBody(
        target=read.model,
        requests=requests,
        stream=read.stream is True,
        include_usage=include_usage,
        ignored=[f"stream_options.{name}" for name in options],
    )


def _prompts(body: JsonText) -> list[JsonText]:
    """Return the body for each prompt: a list of numbers is one of them, as its tokens."""
    prompt = body.values.get("prompt")
    if not isinstance(prompt, list) or isinstance(prompt[0], int):
        return [body]
    return [body.with_members({"prompt": each}) for each in prompt]


#: Parts of a pydantic error location that name a type and not a field.
_PYDANTIC_TYPE_NAME = re.compile(r"str|bool|int|float|.*\W.*", re.DOTALL)


def _invalid(error: ValidationError) -> BadRequest:
    """Return the first error of a validation; its message never contains a value from the request."""
    first = error.errors(include_url=False, include_input=False)[0]
    parts = itertools.takewhile(lambda part: not _PYDANTIC_TYPE_NAME.fullmatch(part), map(str, first["loc"]))
    field, message = ".".join(parts), first["msg"].removeprefix("Value error, ")
    if first["type"] == "missing":
        fault = BadRequest(f"Missing required field: {field}")
    else:
        fault = BadRequest(f"{field}: {message}" if field else message)
    fault.parameter = field or None
    return fault
