"""Files of labels and of notes: their lines end with LF or CRLF and with nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from quintain.errors import ConfigError
from quintain_runner.plan.labeled_answers import read_label_file
from quintain_runner.results.labels import FILE_NAME, read_notes


def test_a_label_keeps_its_text_and_a_cr_alone_ends_no_line(tmp_path: Path) -> None:
    path = tmp_path / "gold.jsonl"
    path.write_bytes('\ufeff{"id": 1,\r"output": "a\u2028b\x85c", "pass": true}\r\n\r\n'.encode())
    (label,) = read_label_file(path)
    assert (label.case_id, label.output, label.passed) == ("1", "a\u2028b\x85c", True)


@pytest.mark.parametrize("line", [b'{"id": 1, "output": "\\ud83d", "pass": true}', b"\xff", b"{}\0", b"{} \r {}"])
def test_what_is_no_label_is_told_with_its_line(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "gold.jsonl"
    path.write_bytes(b'{"id": 1, "output": "", "pass": true}\n' + line)
    with pytest.raises(ConfigError, match=r"gold\.jsonl: line 2: it "):
        read_label_file(path)


def test_a_cr_alone_ends_no_note(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b'{"caseId": "1",\r"column": "a", "repeat": 1, "pass": true}\r\n')
    assert [note.case_id for note in read_notes(tmp_path)] == ["1"]
