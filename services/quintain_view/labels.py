"""Labels: what people noted about answers, kept in ``notes.jsonl``, and how far graders agree with it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from pydantic import AliasChoices, Field, ValidationError

from quintain.contracts.message import Message
from quintain.errors import QuintainError
from quintain_runner.results.row import Row
from quintain_view.index_reader import IndexReader, RowMoved, open_index, rows_of_case

FILE_NAME = "notes.jsonl"

MAX_NOTE_CHARACTERS = 10_000


class Note(Message):
    """What a person noted about one trial. ``passed`` is the person's own verdict; None takes it back."""

    case_id: str
    column: str
    repeat: int
    # The field is ``pass`` in JSON, which is a reserved word in Python.
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


#: How many labeled answers an agreement is counted over.
_MAX_LABELED = 5_000


@dataclass(frozen=True, slots=True)
class Agreement:
    """The agreement of a grader with labels: how many answers have both, on how many they agree, and kappa.

    ``kappa`` is 1 for full agreement and 0 for as much as chance gives; None where both gave one
    and the same verdict to all, so that chance alone explains the agreement.
    """

    grader: str
    labeled: int
    agreed: int
    kappa: float | None


def agreement(grader: str, verdicts: Iterable[tuple[bool, bool]]) -> Agreement:
    """The agreement over pairs of a label and the grader's own pass.

    Example::

        agreement("judge", [(True, True), (False, True)]).agreed  # 1
    """
    pairs = list(verdicts)
    agreed = sum(label == verdict for label, verdict in pairs)
    return Agreement(grader, len(pairs), agreed, _kappa(pairs, agreed))


def _kappa(pairs: list[tuple[bool, bool]], agreed: int) -> float | None:
    if not pairs:
        return None
    label_share = sum(label for label, _ in pairs) / len(pairs)
    verdict_share = sum(verdict for _, verdict in pairs) / len(pairs)
    by_chance = label_share * verdict_share + (1 - label_share) * (1 - verdict_share)
    return None if by_chance == 1 else (agreed / len(pairs) - by_chance) / (1 - by_chance)


def read_agreements(folder: Path) -> list[Agreement]:
    """The agreement of each grader with the labels of this folder; empty without labels."""
    labeled = [note for note in read_notes(folder).values() if note.passed is not None][:_MAX_LABELED]
    verdicts: dict[str, list[tuple[bool, bool]]] = {}
    with open_index(folder) as index:
        for note in labeled if index is not None else ():
            for row in _rows_or_none(folder, index, note.case_id):
                if (row.column, row.repeat) == (note.column, note.repeat) and note.passed is not None:
                    for name, grader in row.graders.items():
                        if grader.passed is not None:
                            verdicts.setdefault(name, []).append((note.passed, grader.passed))
    return [agreement(name, pairs) for name, pairs in verdicts.items()]


def _rows_or_none(folder: Path, index: IndexReader | None, case_id: str) -> list[Row]:
    case = None if index is None else index.find_case(case_id)
    try:
        return [] if case is None or index is None else rows_of_case(folder, index, case)
    except RowMoved:
        return []
