"""The dataset: cases as JSON lines, streamed. Every line is checked before anything is called."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NoReturn

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from quintain.contracts.invoke import ChatMessage, text_of
from quintain.errors import ConfigError
from quintain_runner.mistakes import MOST_TOLD, refusal, sentences

#: What a line looks like, for whoever wrote another.
EXAMPLE = '{"id": "1", "question": "What is the capital of France?", "expected": "Paris"}'

_OWN_FIELDS = frozenset({"id", "question", "messages", "system_prompt", "expected"})


class Case(BaseModel):
    """One row of a dataset. ``metadata`` is every field that has no meaning of its own here."""

    model_config = ConfigDict(frozen=True, strict=True)

    id: Annotated[str, Field(min_length=1)]
    question: Annotated[str, Field(min_length=1)] | None = None
    messages: Annotated[list[ChatMessage], Field(min_length=1)] | None = None
    system_prompt: str | None = None
    expected: JsonValue = None
    metadata: dict[str, JsonValue] = Field(default_factory=dict)

    @property
    def asked(self) -> str:
        """The question as text: where the case has messages, the last that the user said."""
        if self.question is not None:
            return self.question
        said = [message.content for message in self.messages or [] if message.role == "user"]
        return text_of(said[-1]) if said else ""


@dataclass(frozen=True, slots=True)
class DatasetFacts:
    """What the check of a dataset found out."""

    cases: int
    sha256: str


class LineMistake(ValueError):
    """A line that is not a case: what is wrong with it, and the mend."""


def read_cases(path: Path) -> Generator[Case, None, None]:
    """The cases, one at a time. Raises `ConfigError` at the first line that is not one."""
    for number, line in _lines(path):
        try:
            yield parse_case(line)
        except LineMistake as mistake:
            raise refusal(path, [f"line {number}: {mistake}"]) from None


def check_dataset(path: Path) -> DatasetFacts:
    """Read every line once. Raises `ConfigError` with all the mistakes, each with its line's number."""
    mistakes: list[str] = []
    ids: set[str] = set()
    cases, wrong, sha = 0, 0, hashlib.sha256()
    for number, line in _lines(path):
        sha.update(line)
        cases += 1
        mistake = _mistake_in(line, ids)
        if mistake is not None:
            wrong += 1
            if wrong <= MOST_TOLD:
                mistakes.append(f"line {number}: {mistake}")
    if wrong:
        raise refusal(path, mistakes, more=wrong - len(mistakes))
    if not cases:
        raise refusal(path, [f"the dataset has no cases; write one to a line, such as {EXAMPLE}"])
    return DatasetFacts(cases=cases, sha256=sha.hexdigest())


def parse_case(line: bytes) -> Case:
    """The case of one line. Raises `LineMistake`."""
    row = _object(line)
    case_id = row.get("id")
    if isinstance(case_id, int | float) and not isinstance(case_id, bool):
        row["id"] = str(case_id)
    elif not isinstance(case_id, str) or not case_id:
        raise LineMistake(f"it has no id (text or a number); write {EXAMPLE}")
    if (row.get("question") is None) == (row.get("messages") is None):
        raise LineMistake("give one of question (text) and messages (a list of {role, content})")
    own = {key: value for key, value in row.items() if key in _OWN_FIELDS}
    others = {key: value for key, value in row.items() if key not in _OWN_FIELDS}
    try:
        return Case.model_validate({**own, "metadata": others})
    except ValidationError as error:
        raise LineMistake("; ".join(sentences(error, {}))) from None


def _mistake_in(line: bytes, ids: set[str]) -> str | None:
    try:
        case = parse_case(line)
    except LineMistake as mistake:
        return str(mistake)
    if case.id in ids:
        return f"the id {case.id!r} is used before; ids tell cases apart: rename one"
    ids.add(case.id)
    return None


def _object(line: bytes) -> dict[str, object]:
    try:
        row = json.loads(line.decode(), parse_constant=_refuse_constant, parse_float=_finite)
    except UnicodeDecodeError:
        raise LineMistake("it is not UTF-8; save the file in that encoding") from None
    except json.JSONDecodeError as error:
        raise LineMistake(
            f"it is not JSON ({error.msg}, column {error.colno}); each line is one object: {EXAMPLE}"
        ) from None
    except (ValueError, RecursionError) as error:
        raise LineMistake(f"it is not JSON ({error})") from None
    if not isinstance(row, dict):
        raise LineMistake(f"it is JSON, but not an object; write {EXAMPLE}")
    return row


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise ValueError(f"{digits} is too large a number")
    return number


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                content = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
                if content.strip():
                    yield number, content
    except OSError as error:
        raise ConfigError(
            f"{path}: the dataset cannot be read ({error.strerror}); its path is relative to the evaluation file"
        ) from None
