"""Schemas of OpenAI's Responses API: request bodies, and the response body for the OpenAPI document."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from quintain.contracts.invoke import Fraction, JsonObject
from quintain_gateway.apis.openai.schemas import CallRequest, PositiveInt
from quintain_gateway.http.schemas import RequestModel


class ResponseTextOptions(RequestModel):
    """The format of the answer's text."""

    format: JsonObject | None = None
    verbosity: str | None = None


class ResponseReasoningOptions(RequestModel):
    """How much the model reasons."""

    effort: str | None = None


class ResponseFunctionTool(RequestModel):
    """A function that the model may call."""

    type: Literal["function"]
    name: Annotated[str, Field(min_length=1)]
    description: str | None = None
    parameters: JsonObject | None = None
    strict: bool | None = None


class ResponseToolChoice(RequestModel):
    """The function that the model must call."""

    type: Literal["function"]
    name: str


class ResponseRequest(CallRequest):
    """A request of the Responses API; nothing is stored, whatever ``store`` says.

    Fields from ``user`` on are accepted without effect: none of them changes an answer.
    """

    input: Annotated[str | list[JsonObject], Field(min_length=1)]
    instructions: str | None = None
    stream: bool | None = None
    max_output_tokens: PositiveInt | None = None
    temperature: float | None = None
    top_p: Fraction | None = None
    top_logprobs: Annotated[int, Field(ge=0)] | None = None
    include: list[str] | None = None
    text: ResponseTextOptions | None = None
    reasoning: ResponseReasoningOptions | None = None
    tools: list[ResponseFunctionTool] | None = None
    tool_choice: str | ResponseToolChoice | None = None
    parallel_tool_calls: bool | None = None
    truncation: str | None = None
    background: bool | None = None
    previous_response_id: str | None = None
    conversation: str | JsonObject | None = None
    prompt: JsonObject | None = None
    user: str | None = None
    store: bool | None = None
    metadata: JsonObject | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    stream_options: JsonObject | None = None


class ResponseObject(BaseModel):
    """A response of the Responses API."""

    id: str
    object: Literal["response"]
    created_at: int
    status: Literal["completed", "incomplete", "in_progress"]
    model: str
    output: list[JsonObject]
    usage: JsonObject | None = None
