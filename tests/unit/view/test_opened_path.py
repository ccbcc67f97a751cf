"""What `quintain view --at` opens: a page of this server and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from quintain.errors import ConfigError
from quintain_view.folders import RunFolders
from quintain_view.responses import opened_path
from support.results_folder import graded_row, write_results


@pytest.mark.parametrize(
    ("folder", "at", "path"),
    [
        ("one", "is=bot%3Afailed&sort=cost", "/run/one?is=bot%3Afailed&sort=cost"),
        ("one", "?q=a+b&page=2#cases", "/run/one?q=a+b&page=2"),
        ("one", "case?id=2&at=1&text=raw", "/run/one/case?id=2&at=1&text=raw"),
        ("one", "", "/run/one?"),
        ("one", "q=//evil.example/%23token=x", "/run/one?q=%2F%2Fevil.example%2F%23token%3Dx"),
        (".", "q=one+two", "/?q=one+two"),
    ],
)
def test_a_query_opens_the_page_that_has_it(tmp_path: Path, folder: str, at: str, path: str) -> None:
    write_results(tmp_path / "one", [graded_row("1", 1.0)])
    assert opened_path(RunFolders([tmp_path / folder]), at) == path


@pytest.mark.parametrize(
    ("folder", "at"),
    [
        ("one", "words"),
        ("one", "http://evil.example/?q=x"),
        ("one", "/../static/page.js"),
        ("one", "q=a&iss=bot:failed"),
        ("one", "sort=nothing"),
        ("one", "case?words=a"),
        ("one", "raw?id=1"),
        (".", "is=bot:failed"),
        (".", "case?id=1"),
    ],
)
def test_what_no_page_has_is_refused_by_name(tmp_path: Path, folder: str, at: str) -> None:
    write_results(tmp_path / "one", [graded_row("1", 1.0)])
    with pytest.raises(ConfigError, match="--at"):
        opened_path(RunFolders([tmp_path / folder]), at)
