"""Schemas of OpenAI's API: request bodies, and response bodies for the OpenAPI document."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from quintain.contracts.invoke import Fraction, JsonObject, Unsupported
from quintain_gateway.http.schemas import RequestModel

#: The maximum number of choices of a request; each choice is one call.
MAX_CHOICES = 128

PositiveInt = Annotated[int, Field(gt=0)]


class ChatFunctionCall(RequestModel):
    """The function that the assistant called, with its arguments as JSON text."""

    name: str
    arguments: str = ""


class ChatToolCall(RequestModel):
    """A tool call in an assistant message of an earlier turn."""

    id: str
    type: Literal["function"] = "function"
    function: ChatFunctionCall


class ChatRequestMessage(RequestModel):
    """One message of a conversation. ``refusal`` is used if there is no ``content``."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[JsonObject] | None = None
    refusal: str | None = None
    tool_calls: list[ChatToolCall] | None = None
    tool_call_id: str | None = None


class StreamOptions(RequestModel):
    """Options of a streamed response."""

    include_usage: bool | None = None


class CallRequest(RequestModel):
    """The fields of every request that makes calls. ``model`` is the name of a target.

    ``extra_body`` holds fields of the provider's own, which get there unchanged; any field that is not listed is
    refused by name, or ignored with ``unsupported``.
    """

    model: Annotated[str, Field(min_length=1)]
    extra_body: JsonObject | None = None
    unsupported: Unsupported | None = None


class SamplingRequest(CallRequest):
    """A request with OpenAI's sampling parameters."""

    temperature: float | None = None
    top_p: Fraction | None = None
    top_k: int | None = None
    min_p: Fraction | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    seed: int | None = None
    stop: str | list[str] | None = None


class ChatCompletionRequest(SamplingRequest):
    """A chat completion request; each of ``n`` choices is one call.

    Fields from ``user`` on are accepted without effect: none of them changes an answer.
    """

    messages: Annotated[list[ChatRequestMessage], Field(min_length=1)]
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: PositiveInt | None = None
    max_completion_tokens: PositiveInt | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0)] | None = None
    reasoning_effort: str | None = None
    thinking: JsonObject | None = None
    verbosity: str | None = None
    modalities: list[str] | None = None
    response_format: JsonObject | None = None
    tools: list[JsonObject] | None = None
    tool_choice: str | JsonObject | None = None
    parallel_tool_calls: bool | None = None
    user: str | None = None
    store: bool | None = None
    metadata: JsonObject | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None


class OpenAIModel(BaseModel):
    """A target that the session may call, as a model."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class OpenAIModelList(BaseModel):
    """The targets that the session may call, as models."""

    object: Literal["list"]
    data: list[OpenAIModel]


class ChatCompletionResponse(BaseModel):
    """A chat completion with one choice per call."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[JsonObject]
    usage: JsonObject | None = None


class OpenAIErrorObject(BaseModel):
    """An error in OpenAI's format. ``charged`` says whether the call counts against ``max_calls``.

    With ``chargeUnknown`` no ledger decided it: the same request under the same ``Idempotency-Key`` shows it.
    """

    message: str
    type: str
    param: str | None
    code: str
    charged: bool
    charge_unknown: bool | None = Field(default=None, alias="chargeUnknown")


class OpenAIErrorResponse(BaseModel):
    """An error response in OpenAI's format."""

    error: OpenAIErrorObject


#: Fields that clients copy from an answer into the messages of their next request, and that no provider reads there.
ANSWER_FIELDS = frozenset({"annotations", "audio", "function_call", "reasoning", "reasoning_content"})
