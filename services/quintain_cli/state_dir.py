"""The state folder: the ledger and the admin token that `quintain up` keeps between starts, for this user only."""

from __future__ import annotations

import secrets
from pathlib import Path

from quintain.errors import ConfigError
from quintain.settings import Settings


def ledger_url(settings: Settings) -> str:
    """Return the ledger URL of the environment, else that of the SQLite file in the state folder."""
    return settings.ledger_url or f"sqlite://{_stored_ledger_path(settings).absolute()}"


def has_stored_ledger(settings: Settings) -> bool:
    """Whether there is a ledger file in the state folder."""
    return _stored_ledger_path(settings).exists()


def _stored_ledger_path(settings: Settings) -> Path:
    return settings.state_dir / "ledger.sqlite3"


def read_or_create_admin_token(settings: Settings) -> str:
    """Return the admin token of the environment, else that of the state folder, created if needed."""
    if settings.admin_token is not None:
        return settings.admin_token
    return read_or_create_secret(settings.state_dir / "admin-token")


def require_admin_token(settings: Settings) -> str:
    """Return the admin token of the environment, else that of the state folder. Raises `ConfigError` without any."""
    path = settings.state_dir / "admin-token"
    if settings.admin_token is None and not path.exists():
        raise ConfigError(
            "QUINTAIN_ADMIN_TOKEN is not set: set it to the token that the metadata service was started with"
        )
    return read_or_create_admin_token(settings)


def read_or_create_secret(path: Path) -> str:
    """Return the secret in a file that only this user can read; create both if there is no file.

    Raises `ConfigError` where that cannot be done.
    """
    try:
        if path.exists():
            return path.read_text().strip()
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        secret = secrets.token_urlsafe(32)
        path.touch(mode=0o600)
        path.write_text(f"{secret}\n")
    except OSError as error:
        raise ConfigError(
            f"The state folder {path.parent} cannot be used ({error.strerror}): set QUINTAIN_STATE_DIR to a folder "
            "that this user may write"
        ) from None
    return secret
