"""The bodies of OpenAI's API: what a request may hold, and what the gateway's description says of the answers."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from quintain.contracts.invoke import JsonObject
from quintain_gateway.bodies import Body

#: Each choice is one call of the budget.
MOST_CHOICES = 128

Limit = Annotated[int, Field(gt=0)]


class ChatFunction(Body):
    """What an assistant wanted called, and with what."""

    name: str
    arguments: str = ""


class ChatCall(Body):
    """A tool call of an earlier turn."""

    id: str
    type: Literal["function"] = "function"
    function: ChatFunction


class ChatTurn(Body):
    """One message. A refusal is what the assistant said, where it said nothing else."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[JsonObject] | None = None
    refusal: str | None = None
    tool_calls: list[ChatCall] | None = None
    tool_call_id: str | None = None


class StreamOptions(Body):
    """How a stream is to be written."""

    include_usage: bool | None = None


class ChatBody(Body):
    """A chat completion request. ``model`` is a target's name; each of ``n`` choices is one call of the budget."""

    model: Annotated[str, Field(min_length=1)]
    messages: Annotated[list[ChatTurn], Field(min_length=1)]
    n: Annotated[int, Field(ge=1, le=MOST_CHOICES)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: float | None = None
    max_tokens: Limit | None = None
    max_completion_tokens: Limit | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    response_format: JsonObject | None = None
    tools: list[JsonObject] | None = None
    tool_choice: str | JsonObject | None = None


class Model(BaseModel):
    """A target."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class ModelList(BaseModel):
    """The targets that a session may call."""

    object: Literal["list"]
    data: list[Model]


class ChatAnswer(BaseModel):
    """A completion: a choice for every call."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[JsonObject]
    usage: JsonObject | None = None


class ErrorObject(BaseModel):
    """Why there is none. ``charged``: it counts against ``max_calls`` all the same."""

    message: str
    type: str
    param: str | None
    code: str
    charged: bool


class OpenAIError(BaseModel):
    """An error as OpenAI writes it."""

    error: ErrorObject


#: Fields that a request may hold without a word about it: they change nothing in what is asked.
SILENT = frozenset({"user", "store", "metadata", "safety_identifier", "prompt_cache_key"})
