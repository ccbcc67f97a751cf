"""Images and files in requests: their media types, their parts of messages, data URLs, and hosts of URLs. No I/O."""

from __future__ import annotations

import base64
import binascii
import contextlib
import ipaddress
import re
from collections.abc import Iterator, Sequence
from urllib.parse import urlsplit

from quintain.apis.translation import Json, Translation, invalid

#: The media types that every API takes.
FILE_TYPES = ("application/pdf",)
IMAGE_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")


def image_part(field: str, part: Json, translation: Translation) -> Json:
    """Return the ``image_url`` object of a chat part. Raises `BadRequest` where it has none."""
    image = part.get("image_url")
    if not isinstance(image, dict) or not isinstance(image.get("url"), str) or not image["url"]:
        raise invalid(f"{field}.image_url", 'write it as {"url": "https://host/…"}')
    translation.leave_out_rest(f"{field}.", part, ("type", "image_url"))
    translation.leave_out_rest(f"{field}.image_url.", image, ("url", "detail"))
    return image


def image_source(field: str, url: str) -> Json:
    """Return an image's URL as a source of Anthropic's. Raises `BadRequest` for one that no API takes."""
    if url[:5].lower() != "data:":
        return {"type": "url", "url": url}
    return _source(f"{field}.image_url.url", url, IMAGE_TYPES)


def file_of(field: str, part: Json, translation: Translation) -> Json:
    """Return the ``file`` object of a chat part. Raises `BadRequest` where it has no content."""
    file = part.get("file")
    if not isinstance(file, dict) or not isinstance(file.get("file_data"), str) or not file["file_data"]:
        raise invalid(f"{field}.file", 'write it as {"file_data": "data:application/pdf;base64,…"}')
    translation.leave_out_rest(f"{field}.", part, ("type", "file"))
    translation.leave_out_rest(f"{field}.file.", file, ("file_data", "filename"))
    return file


def document_of(field: str, part: Json, translation: Translation) -> Json:
    """Return a ``file`` part with a PDF as a document of Anthropic's. Raises `BadRequest` for any other file."""
    file = file_of(field, part, translation)
    document: Json = {"type": "document", "source": _source(f"{field}.file.file_data", file["file_data"], FILE_TYPES)}
    return document if file.get("filename") is None else {**document, "title": file["filename"]}


def file_part(data_url: str, name: object) -> Json:
    """Return a file as a chat part."""
    return {"type": "file", "file": {"file_data": data_url, **({} if name is None else {"filename": name})}}


def _source(field: str, url: str, media_types: Sequence[str]) -> Json:
    media_type = check_data_url(field, url, media_types)
    return {"type": "base64", "media_type": media_type, "data": url.partition(",")[2]}


def check_data_url(field: str, url: str, media_types: Sequence[str]) -> str:
    """Return the media type of a data URL in base64. Raises `BadRequest` for another type, or what is no base64."""
    head, _, encoded = url.partition(",")
    media_type, _, encoding = head[len("data:") :].lower().partition(";")
    if media_type not in media_types or encoding != "base64":
        raise invalid(field, f"a data URL holds {', '.join(media_types)}, in base64: data:{media_types[0]};base64,…")
    try:
        base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        raise invalid(field, "what follows the comma is not base64") from None
    return media_type


def check_url(field: str, url: str, *, allows_urls: bool) -> None:
    """Check a URL that the provider would fetch.

    Raises `BadRequest` for what is not ``https``, for an address that is not public, and for any where the target does
    not allow them.
    """
    if not allows_urls:
        raise invalid(field, "this target takes no URLs (image_urls: refuse); send data:image/png;base64,…")
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        host = ""
    if not host or parts.scheme != "https":
        raise invalid(field, "write it as https://host/… or data:image/png;base64,…")
    # Readers of URLs differ in what they take for the host where one of these stands before it.
    if not is_public_host(host) or "@" in parts.netloc or "\\" in url:
        raise invalid(field, "it names an address that is not public")


#: The last names of hosts of one's own network.
_PRIVATE_NAMES = frozenset({"localhost", "localdomain", "local", "internal", "lan", "home", "corp", "intranet", "arpa"})

#: Domains in which everybody has a name for any address, also for those of private networks.
_NAMES_OF_ADDRESSES = (
    "nip.io", "sslip.io", "xip.io", "traefik.me", "localtest.me", "lvh.me", "vcap.me", "lacolhost.com", "rbndr.us",
    "local.gd", "localho.st", "1u.ms",
)  # fmt: skip

#: An IPv4 address that stands in the name of a host.
_WRITTEN_ADDRESS = re.compile(r"(?<![0-9])(?:\d{1,3}[.-]){3}\d{1,3}(?![0-9])")

#: The only block of IPv6 with public addresses; in parts of it any IPv4 address may be written.
_PUBLIC_IPV6 = ipaddress.IPv6Network("2000::/3")
_NOT_PUBLIC = tuple(ipaddress.ip_network(block) for block in ("2002::/16", "2001::/32", "192.0.0.0/24"))


def is_public_host(host: str) -> bool:
    """Whether the name of a host may be one that everybody reaches, as far as the name itself says."""
    try:
        # Other forms of letters, digits and dots are read as the ordinary ones.
        name = host.encode("idna").decode().rstrip(".").lower()
    except UnicodeError:
        return False
    try:
        return _is_public_address(ipaddress.ip_address(name))
    except ValueError:
        # Numbers that some resolvers read as an address (2130706433, 0x7f.1) are names of no host.
        last = name.rpartition(".")[2]
        is_ordinary = "." in name and last not in _PRIVATE_NAMES and not last[:1].isdigit()
        is_of_address = any(f".{name}".endswith(f".{domain}") for domain in _NAMES_OF_ADDRESSES)
        return is_ordinary and not is_of_address and all(map(_is_public_address, _written_addresses(name)))


def _written_addresses(name: str) -> Iterator[ipaddress.IPv4Address]:
    for found in _WRITTEN_ADDRESS.finditer(name):
        with contextlib.suppress(ValueError):
            yield ipaddress.IPv4Address(found[0].replace("-", "."))


def _is_public_address(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    is_public = address.is_global and not address.is_multicast and not any(address in block for block in _NOT_PUBLIC)
    return is_public and (address.version == 4 or address in _PUBLIC_IPV6)
