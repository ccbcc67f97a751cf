"""Images in a message, as OpenAI writes them. None is ever fetched here: a URL is the provider's to read."""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_ai.messages import BinaryContent, ImageUrl

from quintain.contracts.invoke import JsonObject
from quintain.contracts.message import explain
from quintain_worker.providers.conversation import refusal
from quintain_worker.providers.dialect import Dialect

#: The kinds that every provider here takes. Others the library would take for text, or the provider refuse, charged.
_KINDS = ("image/png", "image/jpeg", "image/gif", "image/webp")


class _Image(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    url: Annotated[str, Field(min_length=1)]
    detail: str | None = None


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    type: Literal["image_url"]
    image_url: _Image


def image_of(field: str, part: JsonObject, dialect: Dialect) -> ImageUrl | BinaryContent:
    """The image of a part. Raises `ProviderFailure`, naming the field, for what the provider does not take."""
    try:
        image = _Part.model_validate(part).image_url
    except ValidationError as error:
        raise refusal(field, explain(error)) from None
    if image.detail not in {None, "auto"} and not dialect.image_detail:
        raise refusal(f"{field}.image_url.detail", f"{dialect.provider} does not take it; leave it out")
    place = f"{field}.image_url.url"
    said = None if image.detail is None else {"detail": image.detail}
    if image.url[:5].lower() == "data:":
        kind, data = _data(place, image.url)
        return BinaryContent(data=data, media_type=kind, vendor_metadata=said)
    if not _is_https(image.url):
        raise refusal(place, "write it as https://host/… or data:image/png;base64,…")
    return ImageUrl(url=image.url, force_download=False, vendor_metadata=said)


def _data(place: str, url: str) -> tuple[str, bytes]:
    head, _, encoded = url.partition(",")
    kind, _, encoding = head[len("data:") :].lower().partition(";")
    if kind not in _KINDS or encoding != "base64":
        raise refusal(place, f"an image in place is {', '.join(_KINDS)}, in base64: data:image/png;base64,…")
    try:
        return kind, base64.b64decode(encoded, validate=True)
    except binascii.Error:
        raise refusal(place, "what follows the comma is not base64") from None


def _is_https(url: str) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme == "https" and bool(parts.hostname)
