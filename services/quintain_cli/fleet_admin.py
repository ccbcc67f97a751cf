"""The administrator's client of commands that ask about what runs: over the broker, as `quintain status` does."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from quintain.client.admin import Admin
from quintain.client.connect import connect_admin
from quintain.settings import environment, read_settings
from quintain_cli.state import found_admin_token
from quintain_cli.status import broker_url

#: How long the broker and the metadata service may take, in seconds.
ANSWER_SECONDS = 10.0


@contextlib.asynccontextmanager
async def fleet_admin() -> AsyncIterator[Admin]:
    """The administrator of the environment's fleet. Raises `ConfigError`, `BusError`."""
    settings = read_settings(environment())
    url, token = broker_url(settings), found_admin_token(settings)
    async with connect_admin(url, token, timeout_seconds=ANSWER_SECONDS) as admin:
        yield admin
