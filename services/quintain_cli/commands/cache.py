"""``quintain cache list|prune|clear``: what this user's cache of answers has, and how to make it smaller."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from quintain.errors import QuintainError
from quintain.settings import environment
from quintain_cli.console import AsJson, exit_with_error, print_json, print_stderr, print_stdout, print_table
from quintain_runner.results.answer_store import AnswerStore
from quintain_runner.results.cache_file import age_seconds, default_cache_path, open_cache

FileOption = Annotated[
    Path | None, typer.Option(help="The file of the cache; by default that of this user, in ~/.cache/quintain.")
]

_COLUMNS = ("target", "answers", "MB", "oldest", "latest")


def _age(text: str) -> float:
    if (seconds := age_seconds(text)) is None:
        raise typer.BadParameter("an age is a number followed by m, h or d, such as 30d")
    return seconds


def list_answers(file: FileOption = None, as_json: AsJson = False) -> None:
    """Show how many answers of each target the cache has. Exit code 2 if its file cannot be used."""
    with _opened(file, as_json=as_json) as store:
        sizes, size = store.sizes(), store.bytes
    if as_json:
        print_json({"file": str(store.path), "bytes": size, "targets": [one._asdict() for one in sizes]})
        return
    rows = [
        (one.target, f"{one.answers:,}", f"{one.bytes / 1e6:,.1f}", _date(one.oldest_at), _date(one.latest_at))
        for one in sizes
    ]
    print_table(rows, _COLUMNS)
    print_stderr(f"cache    {store.path}, {size / 1e6:,.1f} MB")


def prune(
    older_than: Annotated[float, typer.Option(metavar="AGE", parser=_age, help="How old, such as 30d.")],
    file: FileOption = None,
    as_json: AsJson = False,
) -> None:
    """Delete answers of the cache that are older than an age. Exit code 2 if its file cannot be used."""
    _delete(file, time.time() - older_than, as_json=as_json)


def clear(file: FileOption = None, as_json: AsJson = False) -> None:
    """Delete all answers of the cache. Exit code 2 if its file cannot be used."""
    _delete(file, None, as_json=as_json)


def _delete(file: Path | None, before: float | None, *, as_json: bool) -> None:
    with _opened(file, as_json=as_json) as store:
        deleted = store.prune(before=1000 * (time.time() + 1 if before is None else before))
        size = store.bytes
    if as_json:
        print_json({"file": str(store.path), "bytes": size, "deleted": deleted})
    else:
        print_stdout(f"{deleted:,} answers deleted; {store.path} has {size / 1e6:,.1f} MB")


@contextlib.contextmanager
def _opened(file: Path | None, *, as_json: bool) -> Iterator[AnswerStore]:
    try:
        with contextlib.closing(open_cache(file or default_cache_path(environment()))) as store:
            yield store
    except QuintainError as error:
        exit_with_error(error, as_json=as_json)


def _date(milliseconds: int) -> str:
    return f"{datetime.fromtimestamp(milliseconds / 1000, UTC):%Y-%m-%d %H:%M}"
