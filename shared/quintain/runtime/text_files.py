"""Reads text files and tables as bytes: UTF-8, whose lines end with LF or CRLF and with nothing else."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from quintain.contracts.message import MAX_BODY_BYTES
from quintain.errors import ConfigError

_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)

_LINE_END = re.compile(r"\r?\n\Z")

#: The rest of a quoted cell, up to the quote that closes it or to the end of the line.
_QUOTED = re.compile(r'[^"]*(?:""[^"]*)*')

_UNQUOTED = re.compile(r"[^,]*")


class InvalidLine(ValueError):
    """A line of a file, or the row that begins there, cannot be read; the message says why and how to mend it.

    ``line`` is its number from 1, or 0 where who catches it knows that.
    """

    def __init__(self, message: str, line: int = 0) -> None:
        super().__init__(message)
        self.line = line


def read_text(path: Path, *, advice: str = "", keep_line_ends: bool = False) -> str:
    """Return the text of a UTF-8 file, without its byte order mark and, unless they are kept, with LF for each CRLF.

    Raises `ConfigError` that names the file, and the line where there is one; ``advice`` ends the message about a file
    that cannot be opened.
    """
    try:
        with path.open("rb") as file:
            text = decode_text(file, str(path))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}{advice}") from None
    return text if keep_line_ends else text.replace("\r\n", "\n")


def decode_text(lines: Iterable[bytes], name: str) -> str:
    """Return the text of a file that is open for reading bytes, with its line ends; errors begin with ``name``."""
    try:
        return "".join(line for _, line in text_lines(lines))
    except InvalidLine as error:
        raise ConfigError(f"{name}: line {error.line}: {error}") from None


def text_lines(lines: Iterable[bytes]) -> Iterator[tuple[int, str]]:
    """Decode the lines of a file that is open for reading bytes; returns each with its line end and its number, from 1.

    A byte order mark before the first is removed. Raises `InvalidLine` for a line that is not UTF-8 or holds a NUL.
    """
    for number, line in enumerate(lines, start=1):
        content = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
        found = "it has a NUL, which no text has" if b"\0" in content else ""
        try:
            text = content.decode()
        except UnicodeDecodeError:
            found = "it is not UTF-8 text" + (" but UTF-16" if number == 1 and line.startswith(_UTF_16) else "")
        if found:
            raise InvalidLine(f"{found}; save the file as UTF-8", number)
        yield number, text


def csv_rows(lines: Iterable[bytes], *, required: str = "") -> Iterator[tuple[int, dict[str, str] | InvalidLine]]:
    """Read CSV with a header row; returns each further row by the names of the header, with the line where it begins.

    Cells are separated by commas, and may be quoted as in RFC 4180; their text is not changed. A blank line is no row.
    A row that has another number of cells than the header is an error in its place. After an invalid header, or one
    without the ``required`` column, and after a quote that is not closed, nothing more is read.

    Example::

        with Path("cases.csv").open("rb") as file:
            for number, row in csv_rows(file):
                if isinstance(row, InvalidLine):
                    raise ConfigError(f"cases.csv: line {number}: {row}")
    """
    header: list[str] = []
    try:
        for number, cells in _csv_cells(lines):
            if not header:
                header = _header_names(cells, required, number)
            elif len(cells) == len(header):
                yield number, dict(zip(header, cells, strict=True))
            else:
                told = f"it has {len(cells)} cells, and the header row names {len(header)}"
                yield number, InvalidLine(f"{told}; quote a cell with commas, and leave no cell out")
    except InvalidLine as invalid_line:
        yield invalid_line.line, invalid_line


def _header_names(cells: list[str], required: str, number: int) -> list[str]:
    """The column names of the header row. Raises `InvalidLine`."""
    names = [cell.strip() for cell in cells]
    twice = sorted({name for name in names if names.count(name) > 1 and name})
    if "\r" in "".join(names):
        problem = "has a CR alone, which ends no line; save the file with LF or CRLF"
    elif required and required not in names:
        fix = (
            "separate the cells by commas"
            if re.search("[;\t]", names[0])
            else f"name the columns: {required},question,expected"
        )
        problem = f"names no {required}; {fix}"
    elif twice:
        problem = f"names {', '.join(map(repr, twice))} twice; rename one"
    elif "" in names:
        problem = f"has no name for column {names.index('') + 1}; name it, or remove the column"
    else:
        return names
    raise InvalidLine(f"the header row {problem}", number)


def _csv_cells(lines: Iterable[bytes]) -> Iterator[tuple[int, list[str]]]:
    """Divide CSV into rows of cells, each with the line where it begins. Raises `InvalidLine`.

    Python's ``csv`` does not say where a quote was opened, and its limit of a cell's length is one of the process.
    """
    cells: list[str] = []
    quoted: list[str] | None = None
    begin = opened = length = 0
    for number, line in text_lines(lines):
        content, place = _LINE_END.sub("", line), 0
        while content or quoted is not None:
            begin = begin or number
            if quoted is None and content.startswith('"', place):
                quoted, opened, length, place = [], number, 0, place + 1
            if quoted is None:
                end = _UNQUOTED.match(content, place).end()  # type: ignore[union-attr]
                cells.append(content[place:end])
            else:
                quoted.append(_QUOTED.match(line, place)[0])  # type: ignore[index]
                end, length = place + len(quoted[-1]) + 1, length + len(quoted[-1])
                if end > len(line) and length <= MAX_BODY_BYTES:
                    break
                if length > MAX_BODY_BYTES or content[end : end + 1] not in ("", ","):
                    told = "is too long" if length > MAX_BODY_BYTES else "ends before the comma"
                    raise InvalidLine(f"it is not CSV (its quoted cell {told}, on line {number}){_QUOTE_FIX}", opened)
                cells.append("".join(quoted).replace('""', '"'))
                quoted = None
            if end >= len(content):
                yield begin, cells
                cells, begin = [], 0
                break
            place = end + 1
    if quoted is not None:
        raise InvalidLine(f"it is not CSV (unexpected end of data in its quoted cell){_QUOTE_FIX}", opened)


_QUOTE_FIX = "; close the quote, and double each quote within the cell"
