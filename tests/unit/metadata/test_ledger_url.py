"""What QUINTAIN_LEDGER_URL may say, and what is shown of it."""

from __future__ import annotations

import sys

import pytest

from quintain.errors import ConfigError
from quintain_metadata.store.base import redacted_url, sqlite_path
from quintain_metadata.store.opening import open_ledger


@pytest.mark.parametrize(
    ("url", "path"), [("sqlite://", ":memory:"), ("sqlite:///srv/ledger.sqlite3", "/srv/ledger.sqlite3")]
)
def test_a_sqlite_url_names_an_absolute_path_or_memory(url: str, path: str) -> None:
    assert sqlite_path(url) == path


@pytest.mark.parametrize(
    "url", ["sqlite://ledger.sqlite3", "sqlite:ledger", "mysql://u:secret@h/db", "/srv/ledger", ""]
)
def test_what_names_no_ledger_is_refused_with_both_ways_to_name_one(url: str) -> None:
    with pytest.raises(ConfigError, match=r"sqlite:// and three slashes .* or postgresql://") as refusal:
        sqlite_path(url)
    assert "secret" not in refusal.value.message


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("sqlite:///srv/ledger.sqlite3", "sqlite:///srv/ledger.sqlite3"),
        ("postgresql://me:secret@db.example:5433/ledger?sslpassword=secret", "postgresql://me@db.example:5433/ledger"),
        ("postgresql://db.example/ledger", "postgresql://db.example/ledger"),
        ("postgres:///ledger?host=/run/postgresql&password=secret", "postgres:///ledger"),
    ],
)
def test_no_password_and_no_option_is_shown(url: str, told: str) -> None:
    assert redacted_url(url) == told


@pytest.mark.parametrize("url", ["postgresql://me:sec/ret@db/ledger", "postgresql://me:sec#ret@db/ledger"])
def test_a_password_that_breaks_its_url_is_not_shown_either(url: str) -> None:
    with pytest.raises(ConfigError, match="%2F") as refusal:
        redacted_url(url)
    assert "sec" not in refusal.value.message
    assert "ret@" not in refusal.value.message


async def test_without_its_extra_a_postgresql_ledger_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "asyncpg", None)
    for module in [name for name in sys.modules if name.startswith("quintain_metadata.store.postgres")]:
        monkeypatch.delitem(sys.modules, module)
    with pytest.raises(ConfigError, match=r"pip install 'quintain\[postgres\]'"):
        await open_ledger("postgresql://me@db/ledger")
