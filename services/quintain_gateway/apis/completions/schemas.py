"""Schemas of OpenAI's completions API: request bodies, and the response body for the OpenAPI document."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from quintain.contracts.inputs import Prompt
from quintain.contracts.invoke import Fraction, JsonObject, Unsupported
from quintain_gateway.apis.openai.schemas import MAX_CHOICES, StreamOptions
from quintain_gateway.http.schemas import RequestModel

#: The maximum number of prompts of a request.
MAX_PROMPTS = 2048


class CompletionRequest(RequestModel):
    """A completion request. ``model`` is the name of a target; each of ``n`` choices for each prompt is one call.

    ``extra_body`` holds fields of the provider's own, which get there unchanged; any field that is not listed is
    refused by name, or ignored with ``unsupported``.
    """

    model: Annotated[str, Field(min_length=1)]
    prompt: Prompt | Annotated[list[Prompt], Field(min_length=1, max_length=MAX_PROMPTS)]
    suffix: str | None = None
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0)] | None = None
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    best_of: Literal[1] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
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
    extra_body: JsonObject | None = None
    unsupported: Unsupported | None = None
    user: str | None = None


class CompletionResponse(BaseModel):
    """A completion with one choice per call."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[JsonObject]
    usage: JsonObject | None = None
