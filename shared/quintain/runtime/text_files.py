"""Reads text files and tables as bytes: UTF-8, whose lines end with LF or CRLF and with nothing else."""

from __future__ import annotations

import codecs
import csv
import re
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from quintain.contracts.message import MAX_BODY_BYTES
from quintain.errors import ConfigError

_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)

#: A carriage return that ends no line, and what stands for it in Python's reader of CSV: no UTF-8 has a half of a pair.
_LONE_CR, _CR_MARK = re.compile(r"\r(?!\n)"), "\udc0d"

#: The cells of a row before the one that cannot be read.
_CELLS = re.compile(r'(?:(?:"(?:[^"]|"")*+"|(?!")[^,\n]*+),)*+')


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


def csv_rows(
    lines: Iterable[bytes], *, required: Collection[str] = ()
) -> Iterator[tuple[int, dict[str, str] | InvalidLine]]:
    """Read CSV with a header row; returns each further row by the names of the header, with the line where it begins.

    Cells are separated by commas, and may be quoted as in RFC 4180; their text is not changed. A blank line is no row.
    A row that has another number of cells than the header is an error in its place. After an invalid header, or one
    without the ``required`` columns, and after a quote that is not closed, nothing more is read.

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


def _header_names(cells: list[str], required: Collection[str], number: int) -> list[str]:
    """The column names of the header row. Raises `InvalidLine`."""
    names = [cell.strip() for cell in cells]
    twice = sorted({name for name in names if names.count(name) > 1 and name})
    if "\r" in "".join(cells):
        problem = "has a CR alone, which ends no line; save the file with LF or CRLF"
    elif len(names) == 1 and re.search("[;\t|]", names[0]):
        problem = f"names one column, {names[0]!r}; separate the cells by commas"
    elif missing := sorted(set(required) - set(names)):
        problem = f"names no {missing[0]}; its columns are {', '.join(names)}: add one, or rename one"
    elif twice:
        problem = f"names {', '.join(map(repr, twice))} twice; rename one"
    elif "" in names:
        problem = f"has no name for column {names.index('') + 1}; name it, or remove the column"
    else:
        return names
    raise InvalidLine(f"the header row {problem}", number)


def _csv_cells(lines: Iterable[bytes]) -> Iterator[tuple[int, list[str]]]:
    """Divide CSV into rows of cells, each with the line where it begins. Raises `InvalidLine` with the line where the
    cell begins that cannot be read.
    """
    begin, row = 1, list[str]()

    def noted() -> Iterator[str]:
        for _, line in text_lines(lines):
            row.append(line)
            yield _LONE_CR.sub(_CR_MARK, line)

    # A limit of the process; a cell may be as long as a case.
    csv.field_size_limit(MAX_BODY_BYTES)
    reader = csv.reader(noted(), strict=True)
    try:
        for cells in reader:
            if cells:
                yield begin, [cell.replace(_CR_MARK, "\r") for cell in cells]
            begin = reader.line_num + 1
            row.clear()
    except csv.Error as error:
        found = _CELLS.match("".join(row))
        opened = begin + (0 if found is None else found[0].count("\n"))
        told = f"it is not CSV ({error}, on line {reader.line_num})"
        raise InvalidLine(f"{told}; close the quote, and double each quote within the cell", opened) from None
