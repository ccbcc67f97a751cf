"""Images that stand in messages as data, shown to a grader as files in AgentV's words. Pure; `Keep` is given."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Callable

from pydantic import JsonValue

#: Keeps a file of this name and returns its path.
Keep = Callable[[str, bytes], str]

#: What a media type may give a file's name: it is a stranger's word, and never a path.
_SUFFIX = re.compile(r"[a-z0-9]{1,10}")


def with_files(content: JsonValue, keep: Keep) -> JsonValue:
    """A message's content with a path for every image that it holds; what is no such image stays as it is."""
    return [_part(part, keep) for part in content] if isinstance(content, list) else content


def _part(part: JsonValue, keep: Keep) -> JsonValue:
    url = _data_url(part)
    held = None if url is None else _held(url)
    if held is None:
        return part
    kind, image = held
    name = f"image-{hashlib.sha256(image).hexdigest()[:16]}.{_suffix(kind)}"
    return {"type": "image", "media_type": kind, "path": keep(name, image)}


def _data_url(part: JsonValue) -> str | None:
    """Where OpenAI's parts and AgentV's hold an image."""
    if not isinstance(part, dict):
        return None
    if part.get("type") == "image":
        url = part.get("source")
    else:
        image = part.get("image_url")
        url = image.get("url") if isinstance(image, dict) else None
    return url if isinstance(url, str) and url[:5].lower() == "data:" else None


def _held(url: str) -> tuple[str, bytes] | None:
    """The media type and the bytes of a data URL in base64 (RFC 2397)."""
    head, _, data = url[len("data:") :].partition(",")
    kind, *options = head.split(";")
    if options[-1:] != ["base64"]:
        return None
    try:
        return kind, base64.b64decode(data)
    except (binascii.Error, ValueError):
        # As whoever wrote it wrote it: a grader may say so.
        return None


def _suffix(kind: str) -> str:
    suffix = kind.partition("/")[2].partition("+")[0]
    if not _SUFFIX.fullmatch(suffix):
        return "bin"
    return "jpg" if suffix == "jpeg" else suffix
