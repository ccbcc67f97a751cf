"""Reaches a running fleet: the admin client over its broker, and the workers that a call waits for."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Collection

from quintain.client.admin import Admin
from quintain.client.client import connect_admin
from quintain.contracts.session import Info
from quintain.errors import ConfigError
from quintain.settings import MEMORY_URL, Settings, environment, read_settings
from quintain_cli.console import escape_for_terminal, print_stderr
from quintain_cli.state_dir import require_admin_token


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
async def open_fleet_admin() -> AsyncIterator[Admin]:
    """Open the admin client of the environment, over its broker. Raises `ConfigError` or `BusError`."""
    settings = read_settings(environment())
    url, token = fleet_broker_url(settings), require_admin_token(settings)
    async with connect_admin(url, token, timeout_seconds=REPLY_TIMEOUT_SECONDS) as admin:
        yield admin


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
