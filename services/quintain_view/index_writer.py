"""Makes the index of a results folder, and continues it as the results grow.

The index notes how far it has read and the hash of the last line it read. If the results are not what they were (a run
compacts them at its end, or somebody cut them), the index is made anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import apsw
from pydantic import ValidationError

from quintain.errors import QuintainError
from quintain_runner.report.run_file import RunFile
from quintain_runner.report.run_report import question_text
from quintain_runner.results.row import Row
from quintain_runner.results.store import RESULTS_FILE_NAME, key_hash
from quintain_view.index_schema import (
    COST_UNITS,
    FILE_NAME,
    LEAST_TEXT_BITS,
    MAX_BITS,
    MAX_QUESTION_CHARACTERS,
    MOST_TEXT_BITS,
    NO_SCORE,
    ORDER_INDEXES,
    SCHEMA_VERSION,
    SCORE_UNITS,
    STATES_OF_CASES,
    TABLES,
    CountedTrial,
    CountsByColumn,
    Outcome,
    all_rows,
    disagreement_of,
    outcome_of,
    reduced_outcome,
    searched_texts,
    whole,
)

#: How many bytes of results one step reads: about a second of work.
STEP_BYTES = 16_000_000

#: How long a step waits for another process that writes the same index.
_BUSY_TIMEOUT_MS = 5_000

_EARLIER_TRIAL = "SELECT scores, outcome, score_units FROM trial WHERE case_no = ? AND column_no = ? AND repeat = ?"

_INSERT_TRIAL = f"INSERT OR REPLACE INTO trial VALUES ({', '.join('?' * 15)})"
#: Of the hash of what was asked and expected, 31 bits are kept: it is compared with that of the same case.
_ASKED_SHIFT = 33

_INSERT_SCORE = "INSERT OR REPLACE INTO grader_score VALUES (?, ?, ?, ?, ?, ?)"
_DELETE_SCORE = "DELETE FROM grader_score WHERE bit = ? AND value = ? AND case_no = ? AND column_no = ? AND repeat = ?"
_INSERT_TEXT = "INSERT INTO trial_text (rowid, question, answer, reason) VALUES (?, ?, ?, ?)"

#: Gives a row if an index is not as long as it was when it was made as small as can be.
_GROWN = "UPDATE meta SET value = ?1 WHERE name = 'compacted' AND value != ?1 RETURNING 1"


class IndexProgress(NamedTuple):
    """How much of the results is in the index. ``unreadable_lines`` are no rows of this version."""

    indexed_bytes: int = 0
    total_bytes: int = 0
    rows: int = 0
    unreadable_lines: int = 0

    @property
    def is_complete(self) -> bool:
        """Whether every whole line is in the index."""
        return self.indexed_bytes >= self.total_bytes


def index_path(folder: Path) -> Path:
    """The index of a results folder."""
    return folder / FILE_NAME


def update_index(folder: Path, run: RunFile | None = None) -> IndexProgress:
    """Bring the index of a folder up to date with its results; for large results this takes about 0.1 ms for each row.

    Raises `QuintainError` if the folder cannot be written to.
    """
    while not (progress := update_index_step(folder, run)).is_complete:
        pass
    return progress


def update_index_step(folder: Path, run: RunFile | None = None, *, max_bytes: int = STEP_BYTES) -> IndexProgress:
    """Read up to ``max_bytes`` of the results that are not in the index yet.

    ``run`` gives the order of the columns, and prices. Raises `QuintainError` if the folder cannot be written to.
    """
    results = folder / RESULTS_FILE_NAME
    try:
        if not results.is_file():
            return IndexProgress()
        # Readers of the results may read their index, and nobody else.
        os.close(os.open(index_path(folder), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, results.stat().st_mode & 0o777))
        with contextlib.closing(apsw.Connection(str(index_path(folder)))) as connection, results.open("rb") as file:
            connection.set_busy_timeout(_BUSY_TIMEOUT_MS)
            connection.execute("PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF")
            with _immediate(connection):
                progress = _IndexWriter(connection, run).step(file.fileno(), max_bytes)
            is_ended = progress.is_complete and (run is None or run.ended_at is not None)
            if is_ended and all_rows(connection, _GROWN, (progress.indexed_bytes,)):
                connection.execute("INSERT INTO trial_text (trial_text) VALUES ('optimize')")
                with contextlib.suppress(apsw.Error):  # of no room for a second file: the first one is as good
                    connection.execute("VACUUM")
            return progress
    except (apsw.Error, OSError) as error:
        raise QuintainError(
            f"{index_path(folder)}: the index cannot be written ({error}); make room in the folder, allow writing "
            "there, or remove the file: it is made again from the results"
        ) from None


class _immediate:  # noqa: N801 -- a context manager
    """A transaction that takes the write lock at its beginning."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection

    def __enter__(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")

    def __exit__(self, error_type: object, *_: object) -> None:
        self._connection.execute("COMMIT" if error_type is None else "ROLLBACK")


class _IndexWriter:
    """One step of writing, in one transaction."""

    def __init__(self, connection: apsw.Connection, run: RunFile | None) -> None:
        self._connection, self._run = connection, run
        self._columns: dict[str, int] = {}
        self._graders: dict[str, int] = {}
        self._case_count = 0
        self._counts = CountsByColumn()
        self._text_bits = 0
        self._texts: dict[int, int] = {}

    def step(self, results: int, max_bytes: int) -> IndexProgress:
        prices, reducer = _prices_of(self._run), None if self._run is None else self._run.configuration.reduce.row
        is_changed = (bool(prices) and prices != self._meta("prices")) or (reducer or "") != self._meta("reducer")
        if self._meta("schema") != SCHEMA_VERSION or is_changed or not self._is_continued(results):
            trials = 0 if self._run is None else len(self._run.configuration.columns) * self._run.configuration.repeats
            self._create(max(LEAST_TEXT_BITS, (2 * trials).bit_length()), prices=prices, reducer=reducer or "")
        self._text_bits = self._meta("text_bits")
        self._connection.create_scalar_function(
            "reduced_outcome", lambda *counts: int(reduced_outcome(counts, reducer)), len(Outcome), deterministic=True
        )
        self._columns = {str(name): int(number) for number, name in self._all("SELECT * FROM result_column")}
        self._graders = {str(name): int(bit) for bit, name in self._all("SELECT * FROM grader")}
        self._case_count = self._number("SELECT coalesce(max(case_no), 0) FROM case_text")
        self._counts = CountsByColumn(self._meta("counts"))
        for name in () if self._run is None else self._run.configuration.columns:
            self._column_no(name)
        begin, size = int(self._meta("offset") or 0), os.fstat(results).st_size
        block = os.pread(results, max_bytes, begin)
        while (end := block.rfind(b"\n") + 1) == 0 and begin + len(block) < size:
            # A line longer than a step.
            block += os.pread(results, max_bytes, begin + len(block))
        self._add_lines(block[:end], begin)
        if self._text_bits < MOST_TEXT_BITS and max(self._texts.values(), default=0) > 1 << self._text_bits:
            self._create(MOST_TEXT_BITS, prices=prices, reducer=reducer or "")
            return IndexProgress(0, size)
        total = begin + end if begin + len(block) >= size else size
        progress = IndexProgress(begin + end, total, int(self._meta("rows") or 0), int(self._meta("unreadable") or 0))
        if progress.is_complete:
            self._finish()
        return progress

    def _create(self, text_bits: int, **known: str) -> None:
        for kind, name in self._all(
            "SELECT type, name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'trial_text_%' "
            "AND name NOT LIKE 'sqlite_%'"
        ):
            self._connection.execute(f'DROP {kind} "{name}"')
        self._connection.execute(TABLES)
        meta: dict[str, int | str] = {"schema": SCHEMA_VERSION, "text_bits": text_bits, "compacted": 0, **known}
        for name, value in meta.items():
            self._set_meta(name, value)

    def _is_continued(self, results: int) -> bool:
        """Whether the results still begin with what was read of them, by the last line read."""
        offset, length = int(self._meta("offset") or 0), int(self._meta("last_line_length") or 0)
        last_line = os.pread(results, length, offset - length)
        return not offset or _digest(last_line) == self._meta("last_line")

    def _add_lines(self, block: bytes, begin: int) -> None:
        if not block:
            return
        rows = unreadable = 0
        last = b""
        for line, offset in _lines(block, begin):
            last = line
            try:
                row = Row.model_validate_json(line)
            except ValidationError:
                unreadable += bool(line.strip())
                continue
            self._add_row(row, offset, len(line))
            rows += 1
        texts = "UPDATE case_text SET texts = ?2 WHERE case_no = ?1"
        self._connection.executemany(texts, self._texts.items())
        self._connection.execute(STATES_OF_CASES, (json.dumps(sorted(self._texts)),))
        self._set_meta("offset", begin + len(block))
        self._set_meta("rows", int(self._meta("rows") or 0) + rows)
        self._set_meta("unreadable", int(self._meta("unreadable") or 0) + unreadable)
        self._set_meta("counts", self._counts.to_text())
        self._set_meta("last_line", _digest(last))
        self._set_meta("last_line_length", len(last))

    def _add_row(self, row: Row, offset: int, length: int) -> None:
        case_no, column_no = self._case_no(row), self._column_no(row.column)
        place = case_no, column_no, whole(row.repeat)
        for earlier_scores, *superseded in self._all(_EARLIER_TRIAL, place):
            self._counts.add(column_no, CountedTrial(*superseded), times=-1)
            for bit, value in json.loads(earlier_scores).items():
                self._connection.execute(_DELETE_SCORE, (int(bit), whole(value * SCORE_UNITS), *place))
        trial = CountedTrial(
            outcome=outcome_of(row),
            score_units=NO_SCORE if row.score is None else whole(row.score * SCORE_UNITS),
        )
        measured = whole(max(1.0, row.duration_ms) if row.duration_ms else 0), self._cost_units(row)
        self._counts.add(column_no, trial)
        tokens = whole(row.token_usage.input), whole(row.token_usage.output)
        graders = {self._grader_bit(name): grader for name, grader in row.graders.items()}
        failed = sum(1 << bit for bit, grader in graders.items() if not grader.passed and bit < MAX_BITS)
        scores = {bit: grader.score for bit, grader in graders.items() if grader.score is not None}
        rest = whole(disagreement_of(row) * SCORE_UNITS), failed, json.dumps(scores, separators=(",", ":"))
        asked = key_hash(row.fingerprints.input, row.fingerprints.grading) >> _ASKED_SHIFT
        self._connection.execute(_INSERT_TRIAL, (*place, *trial, *measured, *tokens, *rest, offset, length, asked))
        for bit, value in scores.items():
            self._connection.execute(_INSERT_SCORE, (bit, whole(value * SCORE_UNITS), *place, trial.outcome))
        # Where a case has more rows than numbers here, the index is made anew.
        size = 1 << self._text_bits
        text_row = case_no * size + self._texts[case_no] % size
        self._texts[case_no] += 1
        self._connection.execute(_INSERT_TEXT, (text_row, *map(_storable, searched_texts(row))))

    def _case_no(self, row: Row) -> int:
        case_id = _storable(row.case_id)
        for case_no, texts in self._all("SELECT case_no, texts FROM case_text WHERE case_id = ?", (case_id,)):
            self._texts.setdefault(case_no, texts)
            return int(case_no)
        self._case_count += 1
        self._texts[self._case_count] = 0
        question = _storable(" ".join(question_text(row)[: 2 * MAX_QUESTION_CHARACTERS].split()))
        tags = {_storable(field): [_storable(value) for value in values] for field, values in (row.tags or {}).items()}
        self._connection.execute(
            "INSERT INTO case_text (case_no, case_id, question, tags) VALUES (?, ?, ?, ?)",
            (self._case_count, case_id, question[:MAX_QUESTION_CHARACTERS], json.dumps(tags)),
        )
        for field, value in ((field, value) for field, values in tags.items() for value in values):
            self._connection.execute(
                "INSERT OR IGNORE INTO case_tag VALUES (?, ?, ?)", (field, value, self._case_count)
            )
        return self._case_count

    def _column_no(self, name: str) -> int:
        if name not in self._columns:
            self._columns[name] = len(self._columns)
            self._connection.execute("INSERT INTO result_column VALUES (?, ?)", (self._columns[name], _storable(name)))
        return self._columns[name]

    def _grader_bit(self, name: str) -> int:
        """The number of a grader: its bit, where that is below `MAX_BITS`."""
        if name not in self._graders:
            self._graders[name] = len(self._graders)
            self._connection.execute("INSERT INTO grader VALUES (?, ?)", (self._graders[name], _storable(name)))
        return self._graders[name]

    def _cost_units(self, row: Row) -> int:
        """The cost of the target's tokens, in `COST_UNITS`; 0 where no price is known yet."""
        price = None if self._run is None else self._run.prices.get(row.target)
        return 0 if price is None else whole(float(price.of(row.token_usage)) * COST_UNITS)

    def _finish(self) -> None:
        for name, definition in ORDER_INDEXES.items():
            self._connection.execute(f"CREATE INDEX IF NOT EXISTS {name} ON trial {definition}")

    def _all(self, sql: str, values: tuple[str | int, ...] = ()) -> list[tuple[Any, ...]]:
        return all_rows(self._connection, sql, values)

    def _number(self, sql: str) -> int:
        return int(self._all(sql)[0][0])

    def _meta(self, name: str) -> Any:
        if not self._all("SELECT 1 FROM sqlite_schema WHERE name = 'meta'"):
            return None
        found = self._all("SELECT value FROM meta WHERE name = ?", (name,))
        return found[0][0] if found else None

    def _set_meta(self, name: str, value: int | str) -> None:
        self._connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (name, value))


def _lines(block: bytes, begin: int) -> Iterator[tuple[bytes, int]]:
    """Each line of the block with its line end, and its offset in the file."""
    lines = [line + b"\n" for line in block.split(b"\n")[:-1]]
    return zip(lines, itertools.accumulate((len(line) for line in lines), initial=begin), strict=False)


def _prices_of(run: RunFile | None) -> str:
    """The known prices of a run as one text; they are known when the run has ended."""
    prices = {} if run is None else run.prices
    return " ".join(f"{name}={price.model_dump_json()}" for name, price in sorted(prices.items()))


def _digest(line: bytes) -> str:
    return hashlib.blake2b(line, digest_size=16).hexdigest()


def _storable(text: str) -> str:
    """The text as SQLite can hold it: half of a surrogate pair is replaced."""
    return text.encode(errors="replace").decode()
