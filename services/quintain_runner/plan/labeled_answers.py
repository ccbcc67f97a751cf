"""Answers with labels, on which judges are calibrated: of a file, or of a run that was labeled in `quintain view`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from pydantic import Field, ValidationError

from quintain.config.file_errors import config_error, validation_messages
from quintain.contracts.invoke import NO_TOKENS
from quintain.contracts.message import Message
from quintain.contracts.values import TargetName
from quintain.errors import ConfigError
from quintain.graders import Case
from quintain.runtime.text_files import InvalidLine
from quintain_runner.files import json_lines
from quintain_runner.plan.changes import grading_fingerprint, input_fingerprint
from quintain_runner.results.answer import Answer
from quintain_runner.results.labels import NoteKey, answer_sha256, blind_labels, latest_notes, read_notes
from quintain_runner.results.row import GRADER_FAILED, Row, RowCase, RowError, RowFingerprints, RowKey, RowStatus
from quintain_runner.results.store import current_rows, key_hash
from quintain_runner.spec.asking_graders import JudgeGrader
from quintain_runner.spec.grader_options import NonEmptyString, SpecModel
from quintain_runner.spec.prompts import Prompt

#: So many errors of a file, and so many of the cases that are not there, are named.
_NAMED = 10

_EXAMPLE = '{"id": "case-1", "output": "Paris", "pass": true}'


class Half(StrEnum):
    """One half of the cases with labels: on one a judge's prompt is developed, by the other judges are compared."""

    DEVELOPMENT = "development"
    HELD_OUT = "held-out"

    @classmethod
    def of(cls, case_id: str, seed: int) -> Half:
        """The half of a case; it depends on the seed and the id alone, so that more labels move no case."""
        return cls.HELD_OUT if key_hash("held-out", seed, case_id) % 2 else cls.DEVELOPMENT


class LabelLine(SpecModel):
    """A line of a file of labels: the answer ``output`` to a case, and whether a person says that it passes."""

    id: NonEmptyString | int
    output: str
    passed: bool = Field(alias="pass")
    target: TargetName | None = None
    text: str = ""

    @property
    def case_id(self) -> str:
        """The id of the case, as the dataset's ids are read."""
        return str(self.id)


@dataclass(frozen=True, slots=True)
class LabeledAnswer:
    """An answer and its label. ``row`` holds the answer, and no verdict on it; ``judges`` are its case's own,
    or all that judge it."""

    row: Row
    label: bool
    judges: Sequence[JudgeGrader] = ()

    @property
    def key(self) -> RowKey:
        """The trial at which the answer stands."""
        return self.row.key

    @property
    def verdict_names(self) -> list[str]:
        """The names of the verdicts on it: those of its judges, and of a jury also one for each judge."""
        judges = ((one.name, judge) for one in self.judges for judge in ("", *(one.judge_targets or ())))
        return [f"{name} · {judge}" if judge else name for name, judge in judges]


class UnusedLabels(Message):
    """How many labels are not used for one reason, and the ids of their cases, the first of them."""

    labels: int = 0
    cases: list[str] = Field(default_factory=list)


@dataclass(slots=True)
class LabeledAnswers:
    """The answers with labels of one source; ``left_out`` are the labels that are not used, by the reason."""

    source: Path
    answers: list[LabeledAnswer] = field(default_factory=list)
    left_out: dict[str, UnusedLabels] = field(default_factory=dict)

    def leave_out(self, reason: str, case_id: str) -> None:
        """Count a label that is not used."""
        one = self.left_out.get(reason, UnusedLabels())
        self.left_out[reason] = UnusedLabels(labels=one.labels + 1, cases=[*one.cases, case_id][:_NAMED])

    def in_half(self, half: Half | None, seed: int) -> list[LabeledAnswer]:
        """The answers of a half of the cases; of None all."""
        return [one for one in self.answers if half is None or Half.of(one.row.case_id, seed) is half]


def read_label_file(path: Path) -> list[LabelLine]:
    """The lines of a file of labels. Raises `ConfigError` with a line for each error, also where two labels are of the
    same answer."""
    try:
        with path.open("rb") as file:
            lines = list(json_lines(file, _EXAMPLE))
    except OSError as error:
        raise ConfigError(
            f"{path}: the labels cannot be read ({error.strerror}); the path is relative to the evaluation file"
        ) from None
    labels: list[LabelLine] = []
    errors: list[str] = []
    seen: dict[tuple[str, str | None, str], int] = {}
    for number, value in lines:
        if isinstance(value, InvalidLine):
            errors.append(f"line {number}: {value}")
            continue
        try:
            label = LabelLine.model_validate(value)
        except ValidationError as error:
            errors += (f"line {number}: {text}" for text in validation_messages(error, {(): LabelLine}))
            continue
        first = seen.setdefault((label.case_id, label.target, label.output), number)
        if first != number:
            errors.append(f"line {number}: it labels the same answer as line {first}; keep one of them")
        labels.append(label)
    if not labels and not errors:
        errors.append(f"it has no labels; write one to a line: {_EXAMPLE}")
    if errors:
        raise config_error(path, errors[:_NAMED], more=len(errors) - len(errors[:_NAMED]))
    return labels


def read_labels(path: Path, cases: Iterable[Case]) -> list[tuple[LabelLine, Case]]:
    """The labels of a file, each with its case. Raises as `read_label_file`, and `ConfigError` if the dataset does not
    have some of the cases."""
    labels = read_label_file(path)
    wanted = Counter(label.case_id for label in labels)
    found = {case.id: case for case in cases if case.id in wanted}
    if unknown := [case_id for case_id in wanted if case_id not in found]:
        count = sum(wanted[case_id] for case_id in unknown)
        named = ", ".join(map(repr, unknown[:_NAMED])) + (" and others" if len(unknown) > _NAMED else "")
        raise ConfigError(
            f"{path}: {count} of {len(labels)} labels are of {len(unknown)} cases that the dataset does not have: "
            f"{named}; mend their ids, or remove these lines"
        )
    return [(label, found[label.case_id]) for label in labels]


def answers_of_file(path: Path, cases: Iterable[Case], targets: Sequence[str], prompt: Prompt) -> LabeledAnswers:
    """The answers of a file of labels: those of no named target are taken to be of the first.

    Raises as `read_labels`, and `ConfigError` for labels of unknown targets.
    """
    labels = read_labels(path, cases)
    others = Counter(label.target for label, _ in labels if label.target is not None and label.target not in targets)
    if others:
        named = ", ".join(f"{name} ({count})" for name, count in others.items())
        raise ConfigError(f"{path}: labels are of targets that the evaluation does not have: {named}; mend the names")
    repeats: Counter[tuple[str, str]] = Counter()
    found = LabeledAnswers(path)
    for label, case in labels:
        target, asked = label.target or targets[0], prompt.apply(case)
        repeats[label.case_id, target] += 1
        row = Row(
            case_id=label.case_id,
            target=target,
            prompt=prompt.name,
            repeat=repeats[label.case_id, target],
            status=RowStatus.ERROR,
            case=RowCase.of(asked),
            output=label.output,
            answer=Answer(),
            fingerprints=RowFingerprints(input=input_fingerprint(asked), grading=grading_fingerprint(asked)),
        )
        found.answers.append(LabeledAnswer(_unjudged(row), label.passed, case.graders))
    return found


def answers_of_run(
    folder: Path, cases: Iterable[Case], targets: Sequence[str], prompts: Sequence[Prompt]
) -> LabeledAnswers:
    """The answers of a run with labels of the random queue that were given before verdicts were shown.

    Raises `ConfigError` where there are none.
    """
    notes = read_notes(folder)
    labels, found = blind_labels(notes), LabeledAnswers(folder)
    for key, note in latest_notes(notes).items():
        if note.passed is not None and key not in labels:
            found.leave_out("not chosen at random, or labeled after verdicts were shown", key.case_id)
    by_id = {case.id: case for case in cases} if labels else {}
    gone = set(labels)
    for row, key in _rows_of(folder, labels):
        gone.discard(key)
        prompt = next((one for one in prompts if one.name == row.prompt), None)
        if row.target not in targets or prompt is None:
            found.leave_out("of targets or prompts that the evaluation does not have any more", row.case_id)
        elif (case := by_id.get(row.case_id)) is None:
            found.leave_out("of cases that the dataset does not have any more", row.case_id)
        elif row.fingerprints.input != input_fingerprint(prompt.apply(case)) or not row.is_gradable:
            found.leave_out("of answers to another question: the case or the prompt changed", row.case_id)
        else:
            found.answers.append(LabeledAnswer(_unjudged(row), bool(labels[key].passed), case.graders))
    for key in gone:
        found.leave_out("of another answer: the case was asked again", key.case_id)
    if not found.answers:
        reasons = "; ".join(f"{one.labels} are {why}" for why, one in found.left_out.items())
        raise ConfigError(
            f"{folder}: there are no labels of answers chosen at random{f' ({reasons})' if reasons else ''}; label "
            f"some in `quintain view {folder}`, or name a file of them in the evaluation file: labels: gold.jsonl"
        )
    return found


def _rows_of(folder: Path, keys: Iterable[NoteKey]) -> Iterator[tuple[Row, NoteKey]]:
    """The rows that hold these answers."""
    wanted = set(keys)
    trials = {key[:3] for key in wanted}
    for row in current_rows(folder):
        if (row.case_id, row.column, row.repeat) in trials and (key := NoteKey.of(row)) in wanted:
            yield row, key


def _unjudged(row: Row) -> Row:
    """The row with its answer only: what it cost was paid by the run that asked, and nobody has judged it here."""
    return row.with_fields(
        status=RowStatus.ERROR,
        error=RowError(code=GRADER_FAILED, error="no judge has judged it yet"),
        graders={},
        score=None,
        calls=0,
        token_usage=NO_TOKENS,
        tries=1,
        tags=None,
        fingerprints=row.fingerprints.with_fields(target=None),
    )


def is_same_answer(row: Row | None, wanted: Row) -> bool:
    """Whether a row that there is holds the same answer to the same question."""
    return (
        row is not None
        and row.fingerprints.input == wanted.fingerprints.input
        and answer_sha256(row) == answer_sha256(wanted)
    )
