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

from quintain.program_confinement import Confinement
from quintain_runner.graders.verdict_parser import GraderError

#: Writes a file with this name and content, and returns its path.
SaveFile = Callable[[str, bytes], str]

#: The subtypes of media types that are used as file suffixes: the media type is untrusted and must not form a path.
_SUFFIX = re.compile(r"[a-z0-9]{1,10}")


def replace_images_with_files(content: JsonValue, save_file: SaveFile) -> JsonValue:
    """A message's content in which each image is replaced by the path of a file; other parts are unchanged."""
    return [_part(part, save_file) for part in content] if isinstance(content, list) else content


def _part(part: JsonValue, save_file: SaveFile) -> JsonValue:
    """A content part, with an image in AgentV's or OpenAI's form replaced by the path of a file."""
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
    # A source in AgentV's form that is not a data URL is already a path. Parts in OpenAI's form have no known media
    # type.
    return {"type": "image", "media_type": part.get("media_type"), "path": url} if is_agentv_image else part


def _decode_data_url(url: str) -> tuple[str, bytes] | None:
    """The media type and the bytes of a base64 data URL (RFC 2397); None for any other URL."""
    scheme, _, rest = url.partition(":")
    head, _, data = rest.partition(",")
    kind, *options = head.split(";")
    if scheme.lower() != "data" or options[-1:] != ["base64"]:
        return None
    try:
        return kind, base64.b64decode(data)
    except (binascii.Error, ValueError):
        # Invalid base64: the part stays unchanged, so that a grader can report it.
        return None


def _suffix(kind: str) -> str:
    """The file suffix for a media type, or ``bin`` if it is unusual."""
    suffix = kind.partition("/")[2].partition("+")[0]
    if not _SUFFIX.fullmatch(suffix):
        return "bin"
    return "jpg" if suffix == "jpeg" else suffix


@contextlib.contextmanager
def temporary_grader_files(parent: Path | None, confinement: Confinement) -> Iterator[SaveFile]:
    """Provide a function that writes files for a grader; they are removed at the end of the ``with`` block.

    The folder is created with the first file, in ``parent`` if it is given. The function raises `GraderError` if a
    file cannot be written.
    """
    with contextlib.ExitStack() as stack:

        @functools.cache
        def folder() -> Path:
            made = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="quintain-grader-", dir=parent)))
            confinement.share(made)
            return made

        def save_file(name: str, data: bytes) -> str:
            try:
                path = folder() / name
                path.write_bytes(data)
                confinement.share(path)
            except OSError as error:
                raise GraderError(
                    f"A file for it cannot be written in {tempfile.gettempdir()} ({error.strerror}); free disk space, "
                    "or set TMPDIR to another folder"
                ) from None
            return str(path)

        yield save_file
