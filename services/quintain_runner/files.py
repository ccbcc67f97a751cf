"""Reads files that users write, and replaces and locks files of a run."""

from __future__ import annotations

import fcntl
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import BinaryIO, NoReturn

import pyromark
from pydantic import JsonValue

from quintain.errors import ConfigError, QuintainError
from quintain.runtime.text_files import InvalidLine, read_text, text_lines


def read_text_file(folder: Path, path: str) -> str:
    """The content of the text file at ``path``, relative to the evaluation file's ``folder``, with its line ends.

    Raises as `read_text`.
    """
    return read_text(folder / path, advice="; its path is relative to the evaluation file", keep_line_ends=True)


class InvalidJson(ValueError):
    """The text is not valid JSON; the message says why."""


def read_json(text: str) -> JsonValue:
    """Parse a text that consists of one JSON value. Raises `InvalidJson`, also for NaN, infinite numbers and keys that
    an object has twice."""
    return _read(text, _decoder(_parse_number))


def _read(text: str, decoder: json.JSONDecoder) -> JsonValue:
    try:
        value: JsonValue = decoder.decode(text.strip())
    except json.JSONDecodeError as error:
        line = f"line {error.lineno}, " if error.lineno > 1 else ""
        raise InvalidJson(f"{error.msg}, {line}column {error.colno}") from None
    except (ValueError, RecursionError) as error:
        raise InvalidJson(str(error)) from None
    return value


def read_exact_json(text: str) -> JsonValue:
    """Parse JSON of a file. Raises as `read_json`, also for half of a surrogate pair, which no UTF-8 can hold, and for
    numbers whose digits cannot all be kept."""
    value = _read(text, _decoder(_parse_exact_number))
    try:
        # Only an escape can stand for one.
        if "\\" in text:
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        half = f"\\u{ord(error.object[error.start]):04x}"
        raise InvalidJson(f"{half} is half of a surrogate pair, and no character; write both halves") from None
    return value


def json_lines(lines: Iterable[bytes], example: str) -> Iterator[tuple[int, JsonValue | InvalidLine]]:
    """Read JSON lines; returns each value, or the error in its place, with its line number. Blank lines are no values.

    ``lines`` is a file that is open for reading bytes, and ``example`` a valid line, for error messages.

    Example::

        with Path("labels.jsonl").open("rb") as file:
            for number, value in json_lines(file, '{"id": 1}'):
                print(number, value)
    """
    try:
        for number, line in text_lines(lines):
            if line.strip():
                try:
                    yield number, read_exact_json(line)
                except InvalidJson as error:
                    yield number, InvalidLine(f"it is not JSON ({error}); each line is one object: {example}")
    except InvalidLine as invalid_line:
        yield invalid_line.line, invalid_line


def extract_fenced_json(text: str) -> str:
    """The content of the only fenced code block of a text (CommonMark 0.31, 4.5), or the whole text if it has none.

    Raises `InvalidJson` if there are several blocks.
    """
    lines = text.replace("\r\n", "\n").replace("\r", "\n")
    # Models write tags around blocks, and CommonMark finds none in HTML: without its brackets nothing is HTML.
    bracket = next(one for one in map(chr, range(0xE000, 0xF8FF)) if one not in lines)
    blocks: list[str] = []
    is_inside = False
    for event in pyromark.events(lines.replace("<", bracket)):
        match event:
            case {"Start": {"CodeBlock": {"Fenced": _}}}:
                blocks.append("")
                is_inside = True
            case {"End": "CodeBlock"}:
                is_inside = False
            case {"Text": str(content)} if is_inside:
                blocks[-1] += content.replace(bracket, "<")
    if len(blocks) > 1:
        raise InvalidJson(f"it has {len(blocks)} fenced blocks; only one is allowed")
    return blocks[0] if blocks else text


#: So many characters that only begin like JSON are read, one after the other beginning.
_MAX_TRIED_CHARACTERS = 10_000_000


def json_values_in(text: str) -> Iterator[JsonValue]:
    """Iterate over the JSON objects and lists in a text, without those inside of others. Raises `InvalidJson` if too
    much of it only begins like JSON."""
    decoder, begin, tried = _decoder(_parse_number), 0, 0
    while (match := _JSON_BEGIN.search(text, begin)) is not None:
        try:
            value, begin = decoder.raw_decode(text, match.start())
            yield value
        except (ValueError, RecursionError) as error:
            begin = match.start() + 1
            # The error itself counts the lines before it.
            tried += begin // _COUNTED_AT_ONCE
            tried += error.pos - match.start() if isinstance(error, json.JSONDecodeError) else _UNKNOWN_CHARACTERS
            if tried > _MAX_TRIED_CHARACTERS:
                raise InvalidJson("too much of it begins like JSON, and is none") from None


_JSON_BEGIN = re.compile(r"[{\[]")

#: What an attempt counts that ended without a place, and the characters that are counted in the time one is read.
_UNKNOWN_CHARACTERS, _COUNTED_AT_ONCE = 10_000, 64


def _decoder(parse_float: Callable[[str], float | int]) -> json.JSONDecoder:
    return json.JSONDecoder(parse_constant=_reject_constant, parse_float=parse_float, object_pairs_hook=unique_keys)


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


def _parse_number(digits: str) -> float | int:
    """Parse a number with a fraction or exponent; one that is whole keeps all its digits. Raises `ValueError` if it is
    too large."""
    number = float(digits)
    if math.isinf(number):
        raise ValueError(f"{digits[:40]} is too large a number")
    if number.is_integer() and (whole := int(Decimal(digits))) != number and Decimal(whole) == Decimal(digits):
        return whole
    return number


#: A number of so many significant digits is one that another program made of a number as this one holds it.
_SURE_DIGITS = 17


def _parse_exact_number(digits: str) -> float | int:
    """Parse a number of a file. Raises `ValueError` as `_parse_number`, and if it has more digits than can be held."""
    number, exact = _parse_number(digits), Decimal(digits)
    if Decimal(repr(number)) != exact and len(exact.normalize().as_tuple().digits) > _SURE_DIGITS:
        raise ValueError(f"{digits[:60]} has more digits than a number keeps here; write it in quotes")
    return number


#: The most errors that one message lists; further ones are only counted.
MAX_REPORTED_ERRORS = 20


@contextmanager
def naming_file(path: Path) -> Iterator[None]:
    """Name the file in each `ConfigError` that the block raises."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{path}: {error.message}") from error


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
            # Its holder may have renamed the folder: the lock would then be of what has another path now.
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
