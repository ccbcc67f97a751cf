"""Labels: what people said of answers, kept in ``notes.jsonl`` of a results folder.

A label is of one answer, and not of whatever stands at its trial: it has the hash of what was answered.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from pydantic import AliasChoices, Field, ValidationError

from quintain.contracts.message import Message
from quintain.errors import QuintainError
from quintain_runner.results.row import GraderRow, Row

FILE_NAME = "notes.jsonl"

MAX_NOTE_CHARACTERS = 10_000


class Chosen(StrEnum):
    """How an answer came to be labeled: at random, because it is disputed, or because a person picked it."""

    RANDOM = "random"
    DISPUTED = "disputed"
    PICKED = "picked"


class NoteKey(NamedTuple):
    """The answer that a note is about: its trial, and the hash of what was answered."""

    case_id: str
    column: str
    repeat: int
    answer: str

    @classmethod
    def of(cls, row: Row) -> NoteKey:
        """The key of a row's answer; of a row without one it is the key of no note."""
        return cls(row.case_id, row.column, row.repeat, answer_sha256(row) or "")


class Note(Message):
    """What a person noted about one answer. ``passed`` is the person's own verdict; None takes it back.

    ``answer`` is the SHA-256 of the answer. ``verdicts_shown`` says that the person may have seen what graders said of
    it before.
    """

    case_id: str
    column: str
    repeat: int
    answer: str = ""
    # The field is ``pass`` in JSON, which is a reserved word in Python.
    passed: bool | None = Field(
        default=None, validation_alias=AliasChoices("pass", "passed"), serialization_alias="pass"
    )
    text: str = Field(default="", max_length=MAX_NOTE_CHARACTERS)
    chosen: Chosen = Chosen.PICKED
    verdicts_shown: bool = True
    noted_at: str = ""

    @property
    def key(self) -> NoteKey:
        """The answer that it is about."""
        return NoteKey(self.case_id, self.column, self.repeat, self.answer)


def text_sha256(text: str) -> str:
    """The hash of an answer that is only a text."""
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def answer_sha256(row: Row) -> str | None:
    """The hash of what a target said and did, None where the row does not hold it.

    It is that of the text, and where there was more than that also of messages, steps and turns: of two answers with
    the same last words, one may have called another tool.
    """
    if row.output is None:
        return None
    parts = [row.output]
    if row.answer is not None and (row.answer.messages or row.answer.steps):
        parts.append(row.answer.model_dump_json(include={"messages", "steps"}))
    if row.conversation is not None:
        parts.append(row.conversation.model_dump_json(include={"turns": {"__all__": {"question", "output"}}}))
    return text_sha256("\0".join(parts))


def read_notes(folder: Path) -> list[Note]:
    """All notes of a folder in their order; lines that are no notes are passed over."""
    try:
        lines = (folder / FILE_NAME).read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise QuintainError(f"{folder / FILE_NAME}: cannot be read ({error.strerror}); check its rights") from None
    return list(_notes(lines))


def latest_notes(notes: Iterable[Note]) -> dict[NoteKey, Note]:
    """The latest note of each answer."""
    return {note.key: note for note in notes}


def blind_labels(notes: Iterable[Note]) -> dict[NoteKey, Note]:
    """The labels of answers that were chosen at random, given before any verdict was shown.

    Only from these can the quality of graders be estimated. A label that was changed after verdicts were shown counts
    as it was given first; one that was taken back does not count.
    """
    notes = list(notes)
    blind = {
        note.key: note
        for note in notes
        if note.chosen is Chosen.RANDOM and not note.verdicts_shown and note.passed is not None
    }
    latest = latest_notes(notes)
    return {key: note for key, note in blind.items() if latest[key].passed is not None}


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


def verdicts_of(graders: Mapping[str, GraderRow]) -> dict[str, bool]:
    """Whether an answer passes by each grader, and by each judge of a jury.

    Not in it are those without a verdict, a jury that is tied, and comparisons, which do not say whether it passes.
    """
    verdicts: dict[str, bool] = {}
    for name, grader in graders.items():
        if grader.comparisons is not None:
            continue
        named = {name: grader, **{f"{name} · {judge}": vote for judge, vote in grader.votes.items()}}
        verdicts.update((each, one.passed) for each, one in named.items() if one.passed is not None and not one.tied)
    return verdicts


def _notes(lines: Iterable[bytes]) -> Iterable[Note]:
    for line in lines:
        try:
            yield Note.model_validate_json(line)
        except ValidationError:
            continue
