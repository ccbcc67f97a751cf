"""Reads files that users write, with what is wrong in them in sentences, and replaces and locks files of a run."""

from __future__ import annotations

import fcntl
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import BinaryIO, NoReturn

from pydantic import BaseModel, JsonValue, ValidationError
from pydantic_core import ErrorDetails

from quintain.config.secrets import format_path
from quintain.errors import ConfigError, QuintainError


def read_text_file(folder: Path, path: str) -> str:
    """The content of the UTF-8 text file at ``path``, relative to ``folder``; a byte order mark is removed.

    Raises `ConfigError` if the file cannot be read or is not UTF-8.
    """
    try:
        return (folder / path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(
            f"{folder / path}: cannot be read ({error.strerror}); its path is relative to the evaluation file"
        ) from None
    except UnicodeDecodeError:
        raise ConfigError(f"{folder / path}: not UTF-8 text; save it as UTF-8") from None


_FENCE = re.compile(r"^```[a-zA-Z0-9_-]*[ \t]*\n(.*?)^```[ \t]*$", re.DOTALL | re.MULTILINE)


class InvalidJson(ValueError):
    """The text is not valid JSON; the message says why."""


def read_json(text: str) -> JsonValue:
    """Parse a text that consists of one JSON value. Raises `InvalidJson`, also for NaN, infinite numbers and keys that
    an object has twice."""
    try:
        value: JsonValue = json.loads(
            text.strip(),
            parse_constant=_reject_constant,
            parse_float=_parse_finite,
            object_pairs_hook=unique_keys,
        )
    except json.JSONDecodeError as error:
        line = f"line {error.lineno}, " if error.lineno > 1 else ""
        raise InvalidJson(f"{error.msg}, {line}column {error.colno}") from None
    except (ValueError, RecursionError) as error:
        raise InvalidJson(str(error)) from None
    return value


def extract_fenced_json(text: str) -> str:
    """The content of the only fenced code block of a text, or the whole text if it has none.

    Raises `InvalidJson` if there are several blocks.
    """
    blocks = _FENCE.findall(text)
    if len(blocks) > 1:
        raise InvalidJson(f"it has {len(blocks)} fenced blocks; only one is allowed")
    return str(blocks[0]) if blocks else text


def unique_keys(pairs: list[tuple[str, JsonValue]]) -> dict[str, JsonValue]:
    """The object of these pairs, a hook of Python's parser. Raises `InvalidJson` if it has a key twice."""
    found: dict[str, JsonValue] = {}
    for key, value in pairs:
        if key in found:
            raise InvalidJson(f"the key {key[:40]!r} is given twice")
        found[key] = value
    return found


def _reject_constant(name: str) -> NoReturn:
    """Reject NaN and the infinities, which Python's parser would accept."""
    raise ValueError(f"{name} is not a JSON number")


def _parse_finite(digits: str) -> float:
    """Parse a number with a fraction or exponent; raises `ValueError` if it overflows to infinity."""
    number = float(digits)
    if math.isinf(number):
        raise ValueError(f"{digits[:40]} is too large a number")
    return number


#: The model at each place of a file, used to suggest known keys. ``"*"`` stands for any list item, and a `kind_tag` for
#: the kind that was selected there.
ModelsByPlace = Mapping[tuple[str, ...], type[BaseModel]]

#: The most errors that one message lists; further ones are only counted.
MAX_REPORTED_ERRORS = 20

_TYPE_MESSAGES = {
    "list_type": "it must be a list, such as [one, two]",
    "model_type": "it must be a map, such as {key: value}",
    "string_type": "not a text; put it in quotes",
}


def config_error(path: Path, messages: Sequence[str], *, more: int = 0) -> ConfigError:
    """One `ConfigError` with a line for each error of a file; ``more`` is the number of further errors that are not
    listed.
    """
    lines = [f"{path}: {message}" for message in messages]
    if more:
        lines.append(f"{path}: and {more} more")
    return ConfigError("\n".join(lines))


@contextmanager
def naming_file(path: Path) -> Iterator[None]:
    """Name the file in each `ConfigError` that the block raises."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{path}: {error.message}") from error


def validation_messages(error: ValidationError, models: ModelsByPlace) -> list[str]:
    """One sentence for each error of a validation, with its place; the invalid values are never shown.

    ``models`` are the models by place, for the suggestions about unknown keys.
    """
    return [_validation_message(detail, models) for detail in error.errors(include_url=False, include_input=False)]


def kind_tag(kind: str) -> str:
    """The tag of a kind in pydantic's error locations; it cannot be mistaken for a key and is removed from messages."""
    return f"<{kind}>"


def suggestion(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: the most similar known name, or else the list of all of them."""
    known = list(known)
    near = get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(known)}"


def _validation_message(detail: ErrorDetails, models: ModelsByPlace) -> str:
    """One validation error as a sentence with its place."""
    parts = detail["loc"]
    if detail["type"] == "extra_forbidden":
        key = str(parts[-1])
        return _prefix_location(parts[:-1], f"unknown key {key!r}{suggestion(key, _known_keys(parts[:-1], models))}")
    if detail["type"] == "missing":
        return _prefix_location(parts[:-1], f"missing key '{parts[-1]}'")
    what = _TYPE_MESSAGES.get(detail["type"]) or detail["msg"].removeprefix("Value error, ")
    return _prefix_location(parts, what.replace("Input should be", "it must be"))


def _prefix_location(parts: Sequence[str | int], what: str) -> str:
    """Put the place of an error in front of its message; kind tags are left out of the place."""
    shown = [part for part in parts if isinstance(part, int) or not _is_tag(part)]
    return f"{format_path(shown)}: {what}" if shown else what


def _is_tag(part: str) -> bool:
    """Whether a part of a place is a `kind_tag`."""
    return part.startswith("<") and part.endswith(">")


def _known_keys(parts: Sequence[str | int], models: ModelsByPlace) -> list[str]:
    """The valid keys of the model at a place, or an empty list if there is no model."""
    model = models.get(tuple("*" if isinstance(part, int) else part for part in parts))
    return [] if model is None else [field.alias or name for name, field in model.model_fields.items()]


@contextmanager
def atomic_write(path: Path, *, mode: int = 0o600) -> Iterator[BinaryIO]:
    """Open a temporary file for writing that replaces ``path`` when the ``with`` block ends without an exception.

    Only this user can read the new file, unless ``mode`` says otherwise; the process's umask applies to it.

    The new content is on disk (fsync) before the replacement. Raises `QuintainError` if it cannot be written; the old
    file is kept then.

    Example::

        with atomic_write(Path("run.json")) as file:
            file.write(b"{}")
    """
    temporary = path.with_name(f".{path.name}.new")
    try:
        # A leftover of a crashed run is removed first, so that neither its content nor its mode is reused.
        temporary.unlink(missing_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        raise QuintainError(
            f"{path}: cannot be written ({error.strerror}); its old content is kept. Free disk space, and give the "
            "same command again"
        ) from None
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def exclusive_lock(folder: Path, lock: Path) -> Iterator[None]:
    """Hold an exclusive lock on a results folder, so that no other run writes to it.

    ``lock`` is the path to lock: the folder itself, or a file in it. The folder is created if it does not exist. Raises
    `ConfigError` if another process holds the lock, or the folder cannot be written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(lock, os.O_RDONLY if lock == folder else os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be written to ({error.strerror}); give another --output") from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Whoever held it may have renamed the folder: the lock would then be of what has another path now.
            if not os.path.samestat(os.fstat(descriptor), lock.stat()):
                raise FileNotFoundError
        except OSError:
            raise ConfigError(
                f"{folder}: another `quintain run` is writing there, or it was renamed; wait, or give another --output"
            ) from None
        yield
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Write a folder's directory entries to disk (fsync), so that created or renamed files survive a crash."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
