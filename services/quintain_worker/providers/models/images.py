"""Converts images in OpenAI's message format to the model library's.

Images are never fetched here: the provider fetches URLs.
"""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_ai.messages import BinaryContent, ImageUrl

from quintain.contracts.invoke import JsonObject
from quintain.contracts.message import describe_validation_error
from quintain_worker.providers.conversation import refusal
from quintain_worker.providers.models.capabilities import ApiCapabilities

#: The media types that every provider supports. Others would be sent as text by the library, or be refused after
#: billing.
_MEDIA_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")


class _ImageSource(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    url: Annotated[str, Field(min_length=1)]
    detail: str | None = None


class _ImagePart(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    type: Literal["image_url"]
    image_url: _ImageSource


def image_of(field: str, part: JsonObject, capabilities: ApiCapabilities) -> ImageUrl | BinaryContent:
    """Convert an ``image_url`` part.

    Raises `ProviderFailure`, naming the field, for what the provider does not support.
    """
    try:
        image = _ImagePart.model_validate(part).image_url
    except ValidationError as error:
        raise refusal(field, describe_validation_error(error)) from None
    if image.detail not in {None, "auto"} and not capabilities.allows_image_detail:
        raise refusal(f"{field}.image_url.detail", f"{capabilities.provider} does not take it; leave it out")
    url_field = f"{field}.image_url.url"
    vendor_metadata = None if image.detail is None else {"detail": image.detail}
    if image.url[:5].lower() == "data:":
        media_type, data = _decode_data_url(url_field, image.url)
        return BinaryContent(data=data, media_type=media_type, vendor_metadata=vendor_metadata)
    if not _is_https(image.url):
        raise refusal(url_field, "write it as https://host/… or data:image/png;base64,…")
    return ImageUrl(url=image.url, force_download=False, vendor_metadata=vendor_metadata)


def _decode_data_url(field: str, url: str) -> tuple[str, bytes]:
    head, _, encoded = url.partition(",")
    media_type, _, encoding = head[len("data:") :].lower().partition(";")
    if media_type not in _MEDIA_TYPES or encoding != "base64":
        raise refusal(field, f"a data URL holds {', '.join(_MEDIA_TYPES)}, in base64: data:image/png;base64,…")
    try:
        return media_type, base64.b64decode(encoded, validate=True)
    except binascii.Error:
        raise refusal(field, "what follows the comma is not base64") from None


def _is_https(url: str) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme == "https" and bool(parts.hostname)
