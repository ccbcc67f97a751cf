"""Schemas of OpenAI's embeddings API: request bodies, and the response body for the OpenAPI document."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from quintain.contracts.inputs import Prompt
from quintain.contracts.invoke import JsonObject
from quintain_gateway.apis.openai.schemas import CallRequest, PositiveInt

#: The maximum number of texts of a request, which is OpenAI's own.
MAX_INPUTS = 2048


class EmbeddingRequest(CallRequest):
    """An embeddings request: one call, whatever number of texts."""

    input: Prompt | Annotated[list[Prompt], Field(min_length=1, max_length=MAX_INPUTS)]
    dimensions: PositiveInt | None = None
    encoding_format: Literal["float", "base64"] | None = None
    user: str | None = None


class EmbeddingResponse(BaseModel):
    """The vectors of the texts, in their order."""

    object: Literal["list"]
    data: list[JsonObject]
    model: str
    usage: JsonObject | None = None
