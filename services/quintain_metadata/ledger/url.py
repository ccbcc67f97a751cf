"""Parses ``QUINTAIN_LEDGER_URL`` and removes its secrets for display, without opening a store."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from quintain.errors import ConfigError

#: The URL schemes of a PostgreSQL ledger; libpq accepts both.
POSTGRES_SCHEMES = ("postgresql", "postgres")

#: The URL of a ledger in memory, which ends with its process.
IN_MEMORY_URL = "sqlite://"


def sqlite_path(url: str) -> str:
    """Return the path of a ``sqlite:///`` URL, and ``:memory:`` for ``sqlite://``. Raises `ConfigError`."""
    if url == IN_MEMORY_URL:
        return ":memory:"
    path = url.removeprefix("sqlite://")
    if path == url or not path.startswith("/"):
        raise ConfigError(
            f"QUINTAIN_LEDGER_URL is {url.partition(':')[0]!r}: use sqlite:// and three slashes with an absolute "
            "path, or postgresql://user:password@host/database"
        )
    return path


def no_ledger(path: str) -> ConfigError:
    """Return the error for a file that is there and is no ledger, or of which a part is missing."""
    return ConfigError(
        f"{path} is no ledger: it is empty, of another program, or missing beside its {path}-wal. Put a backup in its "
        "place, without -wal; or name another ledger with QUINTAIN_LEDGER_URL; or delete both files to begin a new "
        "one, which knows no session that was opened before"
    )


def require_not_empty(path: str) -> None:
    """Raise `ConfigError` for a file without a byte: SQLite deletes the log beside it, even where it only reads."""
    if Path(path).exists() and not Path(path).stat().st_size:
        raise no_ledger(path)


def redacted_url(url: str) -> str:
    """Return the URL without password and options. Raises `ConfigError` where it cannot be parsed."""
    if url.startswith("sqlite:"):
        return url
    try:
        parts = urlsplit(url)
        user = "" if parts.username is None else f"{parts.username}@"
        port = "" if parts.port is None else f":{parts.port}"
    except ValueError:
        # The parser's message may contain a part of the password.
        raise ConfigError(
            "QUINTAIN_LEDGER_URL cannot be read: write postgresql://user:password@host:port/database, "
            "with @, : and / of the password as %40, %3A and %2F"
        ) from None
    return f"{parts.scheme}://{user}{parts.hostname or ''}{port}{parts.path}"
