"""The admin client of commands that inspect running services: always over the broker, as in `quintain status`."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from quintain.client.admin import Admin
from quintain.client.connect import connect_admin
from quintain.errors import ConfigError
from quintain.settings import MEMORY_URL, Settings, environment, read_settings
from quintain_cli.state_dir import require_admin_token


def fleet_broker_url(settings: Settings) -> str:
    """The broker to ask over. Raises `ConfigError` where there is none that could be asked."""
    if settings.broker_url is None and settings.gateway_url is not None:
        raise ConfigError(
            "This asks over the broker, and only QUINTAIN_GATEWAY_URL is set: set QUINTAIN_BROKER_URL too, "
            f"or ask the gateway alone with `curl {settings.gateway_url.rstrip('/')}/health/ready`"
        )
    url = settings.require_broker_url()
    if url.startswith(MEMORY_URL):
        raise ConfigError(
            "A fleet on memory:// (`quintain up` without a broker) lives in one process, and no other can ask over its "
            "broker: ask its gateway with `curl http://127.0.0.1:8787/health/ready`, or set QUINTAIN_BROKER_URL to amqp://…"
        )
    return url


#: How long the broker and the metadata service may take, in seconds.
REPLY_TIMEOUT_SECONDS = 10.0


@contextlib.asynccontextmanager
async def open_fleet_admin() -> AsyncIterator[Admin]:
    """The administrator of the environment's fleet. Raises `ConfigError`, `BusError`."""
    settings = read_settings(environment())
    url, token = fleet_broker_url(settings), require_admin_token(settings)
    async with connect_admin(url, token, timeout_seconds=REPLY_TIMEOUT_SECONDS) as admin:
        yield admin
