"""Reads single rows of ``results.jsonl`` from the places that the index names."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pydantic import ValidationError

from quintain_runner import RESULTS_FILE_NAME, Row


class RowMoved(Exception):
    """The results are not what the index says: they were compacted, replaced or cut since."""


def read_rows(folder: Path, places: Iterable[tuple[int, int]], case_id: str | None = None) -> list[Row]:
    """The rows at these places, each an offset and a length, all of the case ``case_id`` if that is given.

    Raises `RowMoved` if another row, or none, stands there.
    """
    rows: list[Row] = []
    try:
        with (folder / RESULTS_FILE_NAME).open("rb") as file:
            for offset, length in places:
                file.seek(offset)
                rows.append(Row.model_validate_json(file.read(length)))
    except (OSError, ValidationError):
        raise RowMoved from None
    if case_id is not None and any(row.case_id.encode(errors="replace").decode() != case_id for row in rows):
        raise RowMoved
    return rows
