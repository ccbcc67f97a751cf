"""The dataset: cases streamed from a file, and every row checked before anything is called."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from quintain.errors import ConfigError
from quintain.graders import Case
from quintain_runner.case_rows import EXAMPLE, LineMistake, Parsed, parse_csv, parse_lines
from quintain_runner.choice import EVERY_ROW, Choice, Lottery
from quintain_runner.dataset_spec import DatasetSpec
from quintain_runner.fingerprint import Fingerprints, fingerprint
from quintain_runner.grader_input import expected_text
from quintain_runner.mistakes import MOST_TOLD, refusal


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A file of cases, and which of its rows count."""

    path: Path
    is_csv: bool = False
    choice: Choice = EVERY_ROW


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetFacts:
    """What the check of a dataset found out. The characters are those of all the cases that count, about."""

    source: Source
    cases: int
    sha256: str
    asked_characters: int = 0
    expected_characters: int = 0


def read_cases(source: Source) -> Generator[Case, None, None]:
    """The cases that count, one at a time. Raises `ConfigError` at the first row that is none."""
    with closing(_rows(source)) as rows:
        yield from source.choice.chosen(_cases(source, rows))


def check_dataset(spec: DatasetSpec, path: Path) -> DatasetFacts:
    """Read every row once, up to the last that can count. Raises `ConfigError` with all the mistakes, each with its
    line's number. ``path`` is the file; of a command, what it printed."""
    source = Source(path=path, is_csv=spec.is_csv)
    lottery, ids, sha = Lottery(spec), Fingerprints(), hashlib.sha256()
    mistakes: list[str] = []
    rows, wrong, asked, expected = 0, 0, 0, 0
    for number, row in _rows(source, sha.update):
        rows += 1
        mistake = _mistake(row, ids)
        if mistake is not None:
            wrong += 1
            if wrong <= MOST_TOLD:
                mistakes.append(f"line {number}: {mistake}")
        elif isinstance(row, Case) and lottery.pass_by(row):
            asked += _length(row)
            expected += len(expected_text(row) or "")
            if lottery.is_over:
                break
    if wrong:
        raise refusal(path, mistakes, more=wrong - len(mistakes))
    _refuse_none(path, spec, rows, lottery)
    share = lottery.chosen / lottery.selected
    return DatasetFacts(
        source=replace(source, choice=lottery.drawn()),
        cases=lottery.chosen,
        sha256=_identity(sha.hexdigest(), spec),
        asked_characters=round(asked * share),
        expected_characters=round(expected * share),
    )


def _refuse_none(path: Path, spec: DatasetSpec, rows: int, lottery: Lottery) -> None:
    if not rows:
        raise refusal(path, [f"the dataset has no cases; write one to a line, such as {EXAMPLE}"])
    if not lottery.selected:
        fields = ", ".join(spec.where)
        raise refusal(path, [f"where selects none of its {rows:,} rows; check {fields}"])


def _mistake(row: Case | LineMistake, ids: Fingerprints) -> str | None:
    if isinstance(row, LineMistake):
        return str(row)
    known = fingerprint(row.id)
    if known in ids:
        return f"the id {row.id!r} is used before; ids tell cases apart: rename one"
    ids.add(known)
    return None


def _identity(sha256: str, spec: DatasetSpec) -> str:
    if spec.is_whole:
        return sha256
    choice = spec.model_dump(include={"where", "sample", "seed", "limit"})
    return hashlib.sha256(json.dumps([sha256, choice], sort_keys=True).encode()).hexdigest()


def _length(case: Case) -> int:
    said = case.question or "".join(str(message.content) for message in case.messages or [])
    return len(said) + len(case.system_prompt or "")


def _cases(source: Source, rows: Iterator[Parsed]) -> Iterator[Case]:
    for number, row in rows:
        if isinstance(row, LineMistake):
            raise refusal(source.path, [f"line {number}: {row}"])
        yield row


def _rows(source: Source, seen: Callable[[bytes], object] = len) -> Generator[Parsed, None, None]:
    """Every row of a file; ``seen`` is given each of its lines."""
    try:
        with source.path.open("rb") as file:
            lines = _seen(file, seen)
            yield from parse_csv(lines) if source.is_csv else parse_lines(lines)
    except OSError as error:
        raise ConfigError(
            f"{source.path}: the dataset cannot be read ({error.strerror}); its path is relative to the evaluation file"
        ) from None


def _seen(lines: Iterable[bytes], seen: Callable[[bytes], object]) -> Iterator[bytes]:
    for line in lines:
        seen(line)
        yield line
