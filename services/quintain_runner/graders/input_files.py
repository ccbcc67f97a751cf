"""Writes images and long answers to temporary files for a grader, and replaces them by paths in its input."""

from __future__ import annotations

import base64
import binascii
import contextlib
import functools
import hashlib
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from pydantic import JsonValue

from quintain_runner.graders.verdict_parser import GraderError

#: Keeps a file of this name and returns its path.
SaveFile = Callable[[str, bytes], str]

#: What a media type may give a file's name: it is a stranger's word, and never a path.
_SUFFIX = re.compile(r"[a-z0-9]{1,10}")


def replace_images_with_files(content: JsonValue, save_file: SaveFile) -> JsonValue:
    """A message's content with a path for every image that it holds; what is no such image stays as it is."""
    return [_part(part, save_file) for part in content] if isinstance(content, list) else content


def _part(part: JsonValue, save_file: SaveFile) -> JsonValue:
    if not isinstance(part, dict):
        return part
    is_agentv_image = part.get("type") == "image"
    image = part.get("image_url")
    url = part.get("source") if is_agentv_image else image.get("url") if isinstance(image, dict) else None
    if not isinstance(url, str):
        return part
    decoded = _decode_data_url(url)
    if decoded is not None:
        kind, data = decoded
        name = f"image-{hashlib.sha256(data).hexdigest()[:16]}.{_suffix(kind)}"
        return {"type": "image", "media_type": kind, "path": save_file(name, data)}
    # What AgentV's part names elsewhere is its path already; of OpenAI's nobody knows the media type.
    return {"type": "image", "media_type": part.get("media_type"), "path": url} if is_agentv_image else part


def _decode_data_url(url: str) -> tuple[str, bytes] | None:
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


@contextlib.contextmanager
def temporary_grader_files() -> Iterator[SaveFile]:
    """Keeps files for a grader, in a folder that is made for the first; it is gone when this is left.

    What it gives raises `GraderError` where a file cannot be written.
    """
    with contextlib.ExitStack() as stack:

        @functools.cache
        def folder() -> Path:
            return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="quintain-grader-")))

        def save_file(name: str, data: bytes) -> str:
            try:
                path = folder() / name
                path.write_bytes(data)
            except OSError as error:
                raise GraderError(
                    f"A file for it cannot be written in {tempfile.gettempdir()} ({error.strerror}); make room there, "
                    "or name another folder in TMPDIR"
                ) from None
            return str(path)

        yield save_file
