"""From the environment to a client: ``async with quintain.connect() as target``.

A broker is spoken to over the bus, a gateway over HTTP. Nobody who has a broker needs an HTTP library: it is an extra.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import AsyncIterator
from types import ModuleType

from quintain.bus.base import Bus
from quintain.bus.connect import connect_bus
from quintain.bus.memory import MemoryBroker
from quintain.caller import Caller
from quintain.client.admin import Admin
from quintain.client.client import Client
from quintain.client.evaluator import Administrator, Evaluator
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
) -> AsyncIterator[Evaluator]:
    """A session's client, connected and proven.

    ``url`` is a broker's (``amqp(s)://``) or a gateway's (``http(s)://``). It and ``token`` come from
    ``QUINTAIN_BROKER_URL``, else ``QUINTAIN_GATEWAY_URL``, and ``QUINTAIN_SESSION_TOKEN`` where they are not given;
    ``memory`` is the broker of a ``memory://`` fleet in this process. Raises `ConfigError`, `BrokerUnavailable` or
    `GatewayUnavailable`, `BudgetUnavailable` where no metadata service answers in time, and `Unauthorized`.
    """
    settings = read_settings(environment())
    token = token or settings.require_session_token()
    url = url or ("memory://" if memory is not None else settings.require_fleet_url())
    if is_gateway(url):
        async with over_http().connect_http(url, token, traceparent=settings.traceparent) as http_client:
            yield http_client
        return
    async with calling(url, memory=memory, timeout_seconds=timeout_seconds) as caller, proven(caller, token) as client:
        yield client


@contextlib.asynccontextmanager
async def proven(caller: Caller, token: str) -> AsyncIterator[Client]:
    """A session's client over a caller that is shared. Raises `Unauthorized`, `BudgetUnavailable`."""
    clock = Clock()
    client = Client(caller, clock, token)
    # The first word proves the token and tells the metadata service's time, by which deadlines are set.
    clock.learn((await client.get_info()).now)
    try:
        yield client
    finally:
        await client.close()


@contextlib.asynccontextmanager
async def connect_admin(
    url: str, token: str, *, memory: MemoryBroker | None = None, timeout_seconds: float = 30.0
) -> AsyncIterator[Administrator]:
    """The administrator's client, over the bus or HTTP. Raises `BrokerUnavailable`, `BrokerRefused`, `ConfigError`."""
    if is_gateway(url):
        async with over_http().connect_http_admin(url, token, timeout_seconds=timeout_seconds) as http_admin:
            yield http_admin
        return
    async with calling(url, memory=memory, timeout_seconds=timeout_seconds) as caller:
        yield Admin(caller, token, timeout_seconds=timeout_seconds)


def is_gateway(url: str) -> bool:
    """Whether this is the URL of a gateway."""
    return url.lower().startswith(("http://", "https://"))


def over_http() -> ModuleType:
    """The clients that speak HTTP. Raises `ConfigError` where their library is not installed."""
    try:
        return importlib.import_module("quintain.client.http_client")
    except ModuleNotFoundError as missing:
        if missing.name != "httpx2":
            raise
        raise ConfigError("A gateway is spoken to over HTTP, and that needs: pip install 'quintain[http]'") from None


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
