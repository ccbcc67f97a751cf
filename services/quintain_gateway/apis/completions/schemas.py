"""Schemas of OpenAI's completions API: request bodies, and the response body for the OpenAPI document."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from quintain.contracts.inputs import Prompt
from quintain.contracts.invoke import JsonObject
from quintain_gateway.apis.openai.schemas import MAX_CHOICES, SamplingRequest, StreamOptions

#: The maximum number of prompts of a request.
MAX_PROMPTS = 2048


class CompletionRequest(SamplingRequest):
    """A completion request; each of ``n`` choices for each prompt is one call."""

    prompt: Prompt | Annotated[list[Prompt], Field(min_length=1, max_length=MAX_PROMPTS)]
    suffix: str | None = None
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0)] | None = None
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    best_of: Literal[1] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None


class CompletionResponse(BaseModel):
    """A completion with one choice per call."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[JsonObject]
    usage: JsonObject | None = None
