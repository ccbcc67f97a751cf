"""Converts between OpenAI's embeddings and Quintain's messages. No I/O."""

from __future__ import annotations

import base64
import binascii
import struct
from typing import Any

from quintain.contracts.inputs import EmbeddingInput, Vector
from quintain.contracts.invoke import InvokeRequest, InvokeSettings, Result
from quintain.errors import ProviderFailed
from quintain_gateway.apis.embeddings.schemas import EmbeddingRequest
from quintain_gateway.apis.openai.wire import write_cost, write_ignored
from quintain_gateway.http.schemas import validate_as
from quintain_gateway.http.settings import parse_settings

JsonDict = dict[str, Any]

_FLOAT_BYTES = 4


def parse_embedding_request(value: object) -> InvokeRequest:
    """Parse the JSON value of an embeddings request. Raises `BadRequest`, which names the field as OpenAI does."""
    body = validate_as(EmbeddingRequest, value)
    settings = parse_settings(body, {})
    return InvokeRequest(
        target=body.model,
        embedding=EmbeddingInput(input=_texts(body), dimensions=body.dimensions, encoding_format=body.encoding_format),
        settings=None if settings == InvokeSettings() else settings,
    )


def _texts(body: EmbeddingRequest) -> list[str | list[int]]:
    """Return the texts: a list of numbers is one of them, as its tokens."""
    if isinstance(body.input, str):
        return [body.input]
    texts = [item for item in body.input if not isinstance(item, int)]
    return texts or [[item for item in body.input if isinstance(item, int)]]


def write_embeddings(request: InvokeRequest, result: Result) -> JsonDict:
    """Return the vectors in the format of the request, which not every provider knows. Raises `ProviderFailed`."""
    as_base64 = request.embedding is not None and request.embedding.encoding_format == "base64"
    convert = _as_base64 if as_base64 else _as_numbers
    body: JsonDict = {
        "object": "list",
        "data": [
            {"object": "embedding", "index": index, "embedding": convert(vector)}
            for index, vector in enumerate(result.embeddings or [])
        ],
        "model": result.model or result.target,
        **write_ignored([result]),
    }
    if result.token_usage is not None:
        tokens = result.token_usage.input
        body["usage"] = {"prompt_tokens": tokens, "total_tokens": tokens, **write_cost([result])}
    return body


def _as_base64(vector: Vector) -> str:
    if isinstance(vector, str):
        return vector
    try:
        return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
    except OverflowError:
        raise _unreadable() from None


def _as_numbers(vector: Vector) -> list[float]:
    if not isinstance(vector, str):
        return vector
    try:
        data = base64.b64decode(vector, validate=True)
        return list(struct.unpack(f"<{len(data) // _FLOAT_BYTES}f", data))
    except (binascii.Error, struct.error):
        raise _unreadable() from None


def _unreadable() -> ProviderFailed:
    return ProviderFailed("The provider sent a vector that is no list of 32-bit floats", charged=True)
