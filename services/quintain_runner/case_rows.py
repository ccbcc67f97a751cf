"""A row of a dataset, as a line of JSON or of CSV, becomes a case; or a sentence says why not. Pure."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator

from pydantic import ValidationError

from quintain.graders import Case
from quintain_runner.json_text import NoJson, read_json
from quintain_runner.mistakes import sentences
from quintain_runner.tool_calls import read_message

#: What a line looks like, for whoever wrote another.
EXAMPLE = '{"id": "1", "question": "What is the capital of France?", "expected": "Paris"}'

_OWN_FIELDS = frozenset({"id", "question", "messages", "system_prompt", "expected"})

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"

#: A row by its line's number: a case, or why it is none.
Parsed = tuple[int, "Case | LineMistake"]


class LineMistake(ValueError):
    """A row that is not a case: what is wrong with it, and the mend."""


def parse_lines(lines: Iterable[bytes]) -> Iterator[Parsed]:
    """The cases of lines of JSON."""
    for number, line in enumerate(lines, start=1):
        content = line.removeprefix(_BYTE_ORDER_MARK) if number == 1 else line
        if content.strip():
            try:
                yield number, parse_case(content)
            except LineMistake as mistake:
                yield number, mistake


def parse_csv(lines: Iterable[bytes]) -> Iterator[Parsed]:
    """The cases of comma-separated values with a header row. An empty cell is an absent field."""
    reader = csv.reader(_decoded(lines), strict=True)
    header: list[str] | None = None
    while True:
        try:
            cells = next(reader, None)
            if cells is None:
                return
            if not cells:
                continue
            if header is None:
                header = _header(cells)
                continue
            yield reader.line_num, _case_of_cells(header, cells)
        except LineMistake as mistake:
            yield max(reader.line_num, 1), mistake
            if header is None:
                return
        except csv.Error as error:
            yield reader.line_num, LineMistake(f"it is not CSV ({error}); quote such a cell, or use JSON lines")
            return


def parse_case(line: bytes) -> Case:
    """The case of one line of JSON. Raises `LineMistake`."""
    try:
        row = read_json(line.decode())
    except UnicodeDecodeError:
        raise LineMistake("it is not UTF-8; save the file in that encoding") from None
    except NoJson as no_json:
        raise LineMistake(f"it is not JSON ({no_json}); each line is one object: {EXAMPLE}") from None
    if not isinstance(row, dict):
        raise LineMistake(f"it is JSON, but not an object; write {EXAMPLE}")
    return case_of({**row})


def case_of(row: dict[str, object]) -> Case:
    """The case of a row's fields. Raises `LineMistake`."""
    case_id = row.get("id")
    if isinstance(case_id, int | float) and not isinstance(case_id, bool):
        row["id"] = str(case_id)
    elif not isinstance(case_id, str) or not case_id:
        raise LineMistake(f"it has no id (text or a number); write {EXAMPLE}")
    if (row.get("question") is None) == (row.get("messages") is None):
        raise LineMistake("give one of question (text) and messages (a list of {role, content})")
    own = {key: value for key, value in row.items() if key in _OWN_FIELDS}
    messages = own.get("messages")
    if isinstance(messages, list):
        own["messages"] = [read_message(message) for message in messages]
    others = {key: value for key, value in row.items() if key not in _OWN_FIELDS}
    try:
        return Case.model_validate({**own, "metadata": others})
    except ValidationError as error:
        raise LineMistake("; ".join(sentences(error, {}))) from None


def _decoded(lines: Iterable[bytes]) -> Iterator[str]:
    for number, line in enumerate(lines, start=1):
        content = line.removeprefix(_BYTE_ORDER_MARK) if number == 1 else line
        try:
            yield content.decode()
        except UnicodeDecodeError:
            raise LineMistake("it is not UTF-8; save the file in that encoding") from None


def _header(cells: list[str]) -> list[str]:
    names = [cell.strip() for cell in cells]
    if "id" not in names:
        mend = "separate the cells by commas" if ";" in names[0] else "name the columns: id,question,expected"
        raise LineMistake(f"the header row names no id; {mend}")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise LineMistake(f"the header row names {', '.join(map(repr, twice))} twice; rename one")
    return names


def _case_of_cells(header: list[str], cells: list[str]) -> Case:
    if len(cells) != len(header):
        raise LineMistake(
            f"it has {len(cells)} cells, and the header row names {len(header)}; quote a cell with commas"
        )
    return case_of({name: cell for name, cell in zip(header, cells, strict=True) if cell and name})
