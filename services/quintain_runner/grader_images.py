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
    if not isinstance(part, dict):
        return part
    is_agentvs = part.get("type") == "image"
    image = part.get("image_url")
    url = part.get("source") if is_agentvs else image.get("url") if isinstance(image, dict) else None
    if not isinstance(url, str):
        return part
    held = _held(url)
    if held is not None:
        kind, data = held
        name = f"image-{hashlib.sha256(data).hexdigest()[:16]}.{_suffix(kind)}"
        return {"type": "image", "media_type": kind, "path": keep(name, data)}
    # What AgentV's part names elsewhere is its path already; of OpenAI's nobody knows the media type.
    return {"type": "image", "media_type": part.get("media_type"), "path": url} if is_agentvs else part


def _held(url: str) -> tuple[str, bytes] | None:
    """The media type and the bytes of a data URL in base64 (RFC 2397); None of any other."""
    scheme, _, rest = url.partition(":")
    head, _, data = rest.partition(",")
    kind, *options = head.split(";")
    if scheme.lower() != "data" or options[-1:] != ["base64"]:
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
