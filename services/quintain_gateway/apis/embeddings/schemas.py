"""Schemas of OpenAI's embeddings API: request bodies, and the response body for the OpenAPI document."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from quintain.contracts.inputs import Prompt
from quintain.contracts.invoke import JsonObject, Unsupported
from quintain_gateway.apis.openai.schemas import PositiveInt
from quintain_gateway.http.schemas import RequestModel

#: The maximum number of texts of a request, which is OpenAI's own.
MAX_INPUTS = 2048


class EmbeddingRequest(RequestModel):
    """An embeddings request. ``model`` is the name of a target; the request is one call, whatever number of texts.

    ``extra_body`` holds fields of the provider's own, which get there unchanged; any field that is not listed is
    refused by name, or ignored with ``unsupported``.
    """

    model: Annotated[str, Field(min_length=1)]
    input: Prompt | Annotated[list[Prompt], Field(min_length=1, max_length=MAX_INPUTS)]
    dimensions: PositiveInt | None = None
    encoding_format: Literal["float", "base64"] | None = None
    extra_body: JsonObject | None = None
    unsupported: Unsupported | None = None
    user: str | None = None


class EmbeddingResponse(BaseModel):
    """The vectors of the texts, in their order."""

    object: Literal["list"]
    data: list[JsonObject]
    model: str
    usage: JsonObject | None = None
