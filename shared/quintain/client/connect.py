"""From the environment to a client: ``async with quintain.connect() as target``."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from quintain.bus.base import Bus
from quintain.bus.connect import connect_bus
from quintain.bus.memory import MemoryBroker
from quintain.caller import Caller
from quintain.client.admin import Admin
from quintain.client.client import Client
from quintain.clock import Clock
from quintain.errors import ConfigError
from quintain.settings import environment, read_settings


@contextlib.asynccontextmanager
async def connect(
    url: str | None = None,
    token: str | None = None,
    *,
    memory: MemoryBroker | None = None,
    timeout_seconds: float = 30.0,
) -> AsyncIterator[Client]:
    """A session's client, connected and proven.

    ``url`` and ``token`` come from ``QUINTAIN_BROKER_URL`` and ``QUINTAIN_SESSION_TOKEN`` where they are not given;
    ``memory`` is the broker of a ``memory://`` fleet in this process. Raises `ConfigError`, `BrokerUnavailable`,
    `NoAnswer` where no metadata service answers in time, and `Unauthorized`.
    """
    settings = read_settings(environment())
    token = token or settings.session_token
    if token is None:
        raise ConfigError(
            "QUINTAIN_SESSION_TOKEN is not set: open a session with `quintain session open --default-target NAME`"
        )
    url = url or ("memory://" if memory is not None else settings.require_broker_url())
    async with calling(url, memory=memory, timeout_seconds=timeout_seconds) as caller:
        clock = Clock()
        client = Client(caller, clock, token)
        # The first word proves the token and tells the metadata service's time, by which deadlines are set.
        clock.learn((await client.get_info()).now)
        yield client


@contextlib.asynccontextmanager
async def connect_admin(
    url: str, token: str, *, memory: MemoryBroker | None = None, timeout_seconds: float = 30.0
) -> AsyncIterator[Admin]:
    """The administrator's client. Raises `BrokerUnavailable`, `BrokerRefused`, `ConfigError`."""
    async with calling(url, memory=memory, timeout_seconds=timeout_seconds) as caller:
        yield Admin(caller, token, timeout_seconds=timeout_seconds)


@contextlib.asynccontextmanager
async def calling(
    url: str, *, memory: MemoryBroker | None = None, timeout_seconds: float = 30.0
) -> AsyncIterator[Caller]:
    """A caller on a connection of its own, both closed at the end."""
    bus: Bus = await connect_bus(url, memory=memory, timeout_seconds=timeout_seconds)
    caller = Caller(bus)
    try:
        await caller.start()
        yield caller
    finally:
        await caller.close()
        await bus.close()
