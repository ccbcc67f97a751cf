"""Text files and tables: UTF-8 whose lines end with LF and CRLF alone, cells as they are, every error by its line."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quintain.errors import ConfigError
from quintain.runtime.text_files import InvalidLine, csv_rows, read_text

#: Characters at which `str.splitlines` would break a line, and what else a cell may hold.
NO_LINE_ENDS = ["\u2028", "\u2029", "\x85", "\f", "\v", "\x1c", "\ufeff", "\r"]


def rows(data: str | bytes) -> list[tuple[int, dict[str, str] | str]]:
    lines = io.BytesIO(data.encode() if isinstance(data, str) else data)
    return [(number, str(row) if isinstance(row, InvalidLine) else row) for number, row in csv_rows(lines)]


@pytest.mark.parametrize("mark", NO_LINE_ENDS)
def test_a_cell_and_a_text_keep_what_ends_no_line(tmp_path: Path, mark: str) -> None:
    assert rows(f'a,b\n1{mark}2,"3{mark}4"\n') == [(2, {"a": f"1{mark}2", "b": f"3{mark}4"})]
    (tmp_path / "t").write_bytes(f"1{mark}2\n3".encode())
    assert read_text(tmp_path / "t") == f"1{mark}2\n3"


def test_a_byte_order_mark_and_crlf_are_no_part_of_a_text(tmp_path: Path) -> None:
    (tmp_path / "t").write_bytes(b"\xef\xbb\xbfa\r\nb\r\n")
    assert read_text(tmp_path / "t") == "a\nb\n"
    assert rows(b"\xef\xbb\xbfa,b\r\n1,2\r\n\r\n3,") == [(2, {"a": "1", "b": "2"}), (4, {"a": "3", "b": ""})]


def test_quoted_cells_are_read_as_pythons_csv_reads_them_and_rows_begin_at_their_lines() -> None:
    text = 'a,b\n"x, ""y""\r\n\n, z","1"\r\n\n,\n5" pipe,""\n"""",","'
    assert [row for _, row in rows(text)] == list(csv.DictReader(io.StringIO(text, newline=""), strict=True))
    assert [number for number, _ in rows(text)] == [2, 6, 7, 8]


CELLS = st.text(st.sampled_from('a ,"\r\n\u2028\x85\f')) | st.text(
    st.characters(codec="utf-8", exclude_characters="\0")
)


@given(st.lists(st.tuples(CELLS, CELLS)), st.sampled_from(["\n", "\r\n"]))
def test_what_pythons_csv_writes_is_read_as_the_same_cells(cells: list[tuple[str, str]], line_end: str) -> None:
    written = io.StringIO(newline="")
    csv.writer(written, lineterminator=line_end).writerows([("a", "b"), *cells])
    assert [row for _, row in rows(written.getvalue())] == [{"a": a, "b": b} for a, b in cells]


def test_a_cell_is_as_long_as_a_case_whatever_the_limit_of_pythons_csv() -> None:
    csv.field_size_limit(1000)
    long = "x" * 200_000
    assert rows(f'a,b\n"{long}",{long}\n') == [(2, {"a": long, "b": long})]


@pytest.mark.parametrize(
    ("text", "line", "told"),
    [
        ("a,b\n1,2,3\n", 2, "it has 3 cells"),
        ("a,b\n\n1\n", 3, "it has 1 cells"),
        ('a,b\n"1\n1","2\n3,4\n5,6\n', 3, "close the quote"),
        ('a,b\n"1,2\n3,"4"\n', 2, "expected after '\"', on line 3"),
        ('a\n"' + ("x" * 1_000_000 + "\n") * 17, 2, "(16777216), on line 18"),
        ("a,a\n1,2\n", 1, "names 'a' twice"),
        ("a,,\n1,2,3\n", 1, "no name for column 2"),
        ("a,b\r1,2\r", 1, "CR alone"),
        ("a,b\n1,\0\n", 2, "a NUL"),
        ("a,b\n1,\xe9\n".encode("latin-1"), 2, "not UTF-8"),
        ("a,b\n1,2\n".encode("utf-16"), 1, "UTF-16"),
    ],
)
def test_what_is_no_table_is_told_with_the_line_where_it_begins(text: str | bytes, line: int, told: str) -> None:
    ((number, error),) = rows(text)
    assert number == line
    assert told in str(error)


@pytest.mark.parametrize("data", ["a\n\xe9".encode("latin-1"), b"a\n\0", "a\n".encode("utf-16")])
def test_a_text_in_another_encoding_is_refused_by_name(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "prompt.txt").write_bytes(data)
    with pytest.raises(ConfigError, match=r"prompt\.txt: line [12]: .*save the file as UTF-8"):
        read_text(tmp_path / "prompt.txt")
