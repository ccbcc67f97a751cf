"""Schemas of Anthropic's API: request bodies, and response bodies for the OpenAPI document."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from quintain.contracts.invoke import JsonObject
from quintain_gateway.http.schemas import RequestModel


class AnthropicRequestMessage(RequestModel):
    """One message: text, or blocks of text, images, tool calls and their results."""

    role: Literal["user", "assistant", "system"]
    content: str | list[JsonObject]


class AnthropicTool(RequestModel):
    """A tool of the client's own."""

    type: Literal["custom"] | None = None
    name: str
    description: str | None = None
    input_schema: JsonObject
    strict: bool | None = None


class AnthropicToolChoice(RequestModel):
    """Whether a tool is to be called, and which."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None


class AnthropicOutputFormat(RequestModel):
    """A JSON schema that the answer is to keep to."""

    type: Literal["json_schema"]
    json_schema: Annotated[JsonObject, Field(alias="schema")]


class AnthropicOutputConfig(RequestModel):
    """How the answer is to be written."""

    format: AnthropicOutputFormat | None = None


class AnthropicMessageRequest(RequestModel):
    """A request for a message. ``model`` is a target's name."""

    model: Annotated[str, Field(min_length=1)]
    messages: Annotated[list[AnthropicRequestMessage], Field(min_length=1)]
    max_tokens: Annotated[int, Field(gt=0)]
    system: str | list[JsonObject] | None = None
    temperature: float | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    tools: list[AnthropicTool] | None = None
    tool_choice: AnthropicToolChoice | None = None
    output_config: AnthropicOutputConfig | None = None


class AnthropicMessageResponse(BaseModel):
    """A message."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[JsonObject]
    stop_reason: str
    stop_sequence: None
    usage: JsonObject


class AnthropicErrorObject(BaseModel):
    """Why there is none. ``charged``: it counts against ``max_calls`` all the same."""

    type: str
    message: str
    code: str
    charged: bool


class AnthropicErrorResponse(BaseModel):
    """An error as Anthropic writes it."""

    type: Literal["error"]
    error: AnthropicErrorObject


#: Fields that a request may hold without a word about it: they change nothing in what is asked.
SILENTLY_IGNORED_FIELDS = frozenset({"metadata"})

#: Of a tool, and of a block: what is to be cached changes no answer.
CACHE_FIELDS = frozenset({"cache_control"})
