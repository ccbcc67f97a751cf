"""Reaches a running fleet: its broker, its ledger, its admin token, and the workers that a call waits for."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from pathlib import Path
from typing import TypeVar

from quintain.client.admin import Admin
from quintain.client.client import connect_admin
from quintain.contracts.session import Info
from quintain.errors import ConfigError
from quintain.settings import MEMORY_URL, Settings, environment, read_settings
from quintain_cli.console import escape_for_terminal, print_stderr, run_command

ReturnedT = TypeVar("ReturnedT")


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
        print_stderr(
            f"state    {path.parent} is new: tokens and the ledger are kept there; QUINTAIN_STATE_DIR names another"
        )
    except OSError as error:
        raise ConfigError(
            f"The state folder {path.parent} cannot be used ({error.strerror}): set QUINTAIN_STATE_DIR to a folder "
            "that this user may write"
        ) from None
    return secret


def fleet_broker_url(settings: Settings) -> str:
    """Return the broker URL of the environment. Raises `ConfigError` if there is none that another process can use."""
    if settings.broker_url is None and settings.gateway_url is not None:
        raise ConfigError(
            "This command uses the broker, and only QUINTAIN_GATEWAY_URL is set: set QUINTAIN_BROKER_URL too, "
            f"or check the gateway alone with `curl {settings.gateway_url.rstrip('/')}/health/ready`"
        )
    url = settings.require_broker_url()
    if url.startswith(MEMORY_URL):
        raise ConfigError(
            "A fleet on memory:// (`quintain up` without a broker) runs in one process, and no other can use its "
            "broker: check its gateway with `curl http://127.0.0.1:8787/health/ready`, or set QUINTAIN_BROKER_URL to amqp://…"
        )
    return url


#: The timeout for connecting to the broker and for each reply, in seconds.
REPLY_TIMEOUT_SECONDS = 10.0


@contextlib.asynccontextmanager
async def open_fleet_admin(*, over_gateway: bool = False) -> AsyncIterator[Admin]:
    """Open the admin client of the environment, over its broker, or where a gateway serves it over either.

    Raises `ConfigError` or `BusError`.
    """
    settings = read_settings(environment())
    url = settings.require_fleet_url() if over_gateway else fleet_broker_url(settings)
    async with connect_admin(url, require_admin_token(settings), timeout_seconds=REPLY_TIMEOUT_SECONDS) as admin:
        yield admin


async def run_with_admin(action: Callable[[Admin], Awaitable[ReturnedT]], *, over_gateway: bool = False) -> ReturnedT:
    """Open the admin client and return what ``action`` returns with it. Raises as `open_fleet_admin`."""
    async with open_fleet_admin(over_gateway=over_gateway) as admin:
        return await action(admin)


def ask_admin(
    action: Callable[[Admin], Awaitable[ReturnedT]], *, as_json: bool, over_gateway: bool = False
) -> ReturnedT:
    """Run a command's one action with the admin client and return its result; an error ends the command."""
    return run_command(run_with_admin(action, over_gateway=over_gateway), as_json=as_json)


def missing_workers(info: Info, targets: Collection[str]) -> str | None:
    """Return what is missing for calls of these targets, and how it is started; None if nothing is."""
    missing = [name for name in targets if name not in info.available_targets]
    if not missing:
        return None
    start = "start one with `quintain serve worker` where its configuration is"
    if not info.available_targets:
        return f"no worker has registered a target of this session: {start}"
    there = ", ".join(info.available_targets)
    return f"no worker has registered {', '.join(missing)}; registered are: {there}: {start}"


def print_missing(missing: str) -> None:
    """Print what a call waits for."""
    print_stderr(f"waiting  {escape_for_terminal(missing)}")
