"""Converts images and files in OpenAI's message format to the model library's.

Nothing is fetched here: the provider fetches the URLs of images, where its target allows them.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
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
_FILE_TYPES = ("application/pdf",)
_IMAGE_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")


class _ImageSource(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    url: Annotated[str, Field(min_length=1)]
    detail: str | None = None


class _ImagePart(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    type: Literal["image_url"]
    image_url: _ImageSource


class _FileSource(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    file_data: Annotated[str, Field(min_length=1)]
    filename: str | None = None


class _FilePart(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    type: Literal["file"]
    file: _FileSource


def file_of(field: str, part: JsonObject) -> BinaryContent:
    """Convert a ``file`` part with a PDF; the provider gets it without its name.

    Raises `ProviderFailure`, naming the field, for any other file, and for one that is not in the message.
    """
    try:
        file = _FilePart.model_validate(part).file
    except ValidationError as error:
        raise refusal(field, describe_validation_error(error)) from None
    media_type, data = _decode_data_url(f"{field}.file.file_data", file.file_data, _FILE_TYPES)
    return BinaryContent(data=data, media_type=media_type)


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
        media_type, data = _decode_data_url(url_field, image.url, _IMAGE_TYPES)
        return BinaryContent(data=data, media_type=media_type, vendor_metadata=vendor_metadata)
    if not capabilities.allows_image_urls:
        raise refusal(
            url_field, "this target takes no URLs of images (image_urls: refuse); send data:image/png;base64,…"
        )
    if not _is_https(image.url):
        raise refusal(url_field, "write it as https://host/… or data:image/png;base64,…")
    return ImageUrl(url=image.url, force_download=False, vendor_metadata=vendor_metadata)


def _decode_data_url(field: str, url: str, media_types: Sequence[str]) -> tuple[str, bytes]:
    head, _, encoded = url.partition(",")
    media_type, _, encoding = head[len("data:") :].lower().partition(";")
    if media_type not in media_types or encoding != "base64":
        raise refusal(field, f"a data URL holds {', '.join(media_types)}, in base64: data:{media_types[0]};base64,…")
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
