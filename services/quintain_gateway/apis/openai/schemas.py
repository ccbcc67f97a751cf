"""Schemas of OpenAI's API: request bodies, and response bodies for the OpenAPI document."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from quintain.contracts.invoke import JsonObject
from quintain_gateway.http.schemas import RequestModel

#: Each choice is one call of the budget.
MAX_CHOICES = 128

PositiveInt = Annotated[int, Field(gt=0)]


class ChatFunctionCall(RequestModel):
    """What an assistant wanted called, and with what."""

    name: str
    arguments: str = ""


class ChatToolCall(RequestModel):
    """A tool call of an earlier turn."""

    id: str
    type: Literal["function"] = "function"
    function: ChatFunctionCall


class ChatRequestMessage(RequestModel):
    """One message. A refusal is what the assistant said, where it said nothing else."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[JsonObject] | None = None
    refusal: str | None = None
    tool_calls: list[ChatToolCall] | None = None
    tool_call_id: str | None = None


class StreamOptions(RequestModel):
    """How a stream is to be written."""

    include_usage: bool | None = None


class ChatCompletionRequest(RequestModel):
    """A chat completion request. ``model`` is a target's name; each of ``n`` choices is one call of the budget."""

    model: Annotated[str, Field(min_length=1)]
    messages: Annotated[list[ChatRequestMessage], Field(min_length=1)]
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: float | None = None
    max_tokens: PositiveInt | None = None
    max_completion_tokens: PositiveInt | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    response_format: JsonObject | None = None
    tools: list[JsonObject] | None = None
    tool_choice: str | JsonObject | None = None


class OpenAIModel(BaseModel):
    """A target."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class OpenAIModelList(BaseModel):
    """The targets that a session may call."""

    object: Literal["list"]
    data: list[OpenAIModel]


class ChatCompletionResponse(BaseModel):
    """A completion: a choice for every call."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[JsonObject]
    usage: JsonObject | None = None


class OpenAIErrorObject(BaseModel):
    """Why there is none. ``charged``: it counts against ``max_calls`` all the same."""

    message: str
    type: str
    param: str | None
    code: str
    charged: bool


class OpenAIErrorResponse(BaseModel):
    """An error as OpenAI writes it."""

    error: OpenAIErrorObject


#: Fields that a request may hold without a word about it: they change nothing in what is asked.
SILENTLY_IGNORED_FIELDS = frozenset({"user", "store", "metadata", "safety_identifier", "prompt_cache_key"})
