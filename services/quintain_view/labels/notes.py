"""Reads and writes ``notes.jsonl``: a line for each label or note, the latest of a trial counts."""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from pydantic import AliasChoices, Field, ValidationError

from quintain.contracts.message import Message
from quintain.errors import QuintainError

FILE_NAME = "notes.jsonl"

MAX_NOTE_CHARACTERS = 10_000

#: The field is ``pass`` in JSON, which is a reserved word in Python.
_PASS = AliasChoices("pass", "passed")


class Note(Message):
    """What a person noted about one trial. ``passed`` is the person's own verdict; None takes it back."""

    case_id: str
    column: str
    repeat: int
    passed: bool | None = Field(
        default=None, validation_alias=AliasChoices("pass", "passed"), serialization_alias="pass"
    )
    text: str = Field(default="", max_length=MAX_NOTE_CHARACTERS)
    noted_at: str = ""

    @property
    def key(self) -> NoteKey:
        """The trial that it is about."""
        return NoteKey(self.case_id, self.column, self.repeat)


class NoteKey(NamedTuple):
    """The trial that a note is about."""

    case_id: str
    column: str
    repeat: int


def read_notes(folder: Path) -> dict[NoteKey, Note]:
    """The latest note of each trial; lines that are no notes are passed over."""
    try:
        lines = (folder / FILE_NAME).read_bytes().splitlines()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise QuintainError(f"{folder / FILE_NAME}: cannot be read ({error.strerror}); check its rights") from None
    return {note.key: note for note in _notes(lines)}


def append_note(folder: Path, note: Note) -> None:
    """Write a note with the current time; returns when it is on the disk. Raises `QuintainError` where it cannot be.

    One write appends the whole line, so that two pages that write at once do not mix.
    """
    noted = note.model_copy(update={"noted_at": datetime.now(UTC).isoformat(timespec="seconds")})
    path = folder / FILE_NAME
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, noted.to_wire() + b"\n")
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise QuintainError(
            f"{path}: the note cannot be written ({error.strerror}); make room, and save again"
        ) from None


def _notes(lines: Iterable[bytes]) -> Iterable[Note]:
    for line in lines:
        try:
            yield Note.model_validate_json(line)
        except ValidationError:
            continue
