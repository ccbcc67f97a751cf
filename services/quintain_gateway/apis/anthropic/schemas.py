"""Schemas of Anthropic's API: request bodies, and response bodies for the OpenAPI document."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from quintain.contracts.invoke import Fraction, JsonObject
from quintain_gateway.apis.openai.schemas import CallRequest
from quintain_gateway.http.schemas import RequestModel


class AnthropicRequestMessage(RequestModel):
    """One message: text, or blocks of text, images, tool calls and tool results."""

    role: Literal["user", "assistant", "system"]
    content: str | list[JsonObject]


class AnthropicTool(RequestModel):
    """A tool that the model may call and the client executes."""

    type: Literal["custom"] | None = None
    name: str
    description: str | None = None
    input_schema: JsonObject
    strict: bool | None = None


class AnthropicToolChoice(RequestModel):
    """Whether the model must call a tool, and which one."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class AnthropicOutputFormat(RequestModel):
    """The JSON schema that the response must match."""

    type: Literal["json_schema"]
    json_schema: Annotated[JsonObject, Field(alias="schema")]


class AnthropicOutputConfig(RequestModel):
    """The format of the response, and the effort that the model puts into it."""

    format: AnthropicOutputFormat | None = None
    effort: str | None = None


class AnthropicMessageRequest(CallRequest):
    """A messages request. ``metadata`` and ``service_tier`` are accepted without effect: they change no answer."""

    messages: Annotated[list[AnthropicRequestMessage], Field(min_length=1)]
    max_tokens: Annotated[int, Field(gt=0)]
    system: str | list[JsonObject] | None = None
    temperature: float | None = None
    top_p: Fraction | None = None
    top_k: int | None = None
    thinking: JsonObject | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    tools: list[AnthropicTool] | None = None
    tool_choice: AnthropicToolChoice | None = None
    output_config: AnthropicOutputConfig | None = None
    metadata: JsonObject | None = None
    service_tier: str | None = None
    cache_control: JsonObject | None = None


class AnthropicMessageResponse(BaseModel):
    """A message of the assistant."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[JsonObject]
    stop_reason: str
    stop_sequence: None
    usage: JsonObject


class AnthropicErrorObject(BaseModel):
    """An error in Anthropic's format. ``charged`` says whether the call counts against ``max_calls``.

    With ``chargeUnknown`` no ledger decided it: the same request under the same ``Idempotency-Key`` shows it.
    """

    type: str
    message: str
    code: str
    charged: bool
    charge_unknown: bool | None = Field(default=None, alias="chargeUnknown")


class AnthropicErrorResponse(BaseModel):
    """An error response in Anthropic's format."""

    type: Literal["error"]
    error: AnthropicErrorObject


#: Fields of tools and blocks that only control caching and do not affect the result.
CACHE_FIELDS = frozenset({"cache_control"})
