"""Connects a client from the environment's settings: ``async with quintain.connect() as target``.

A broker is spoken to over AMQP, a gateway over HTTP. Nobody who has a broker needs an HTTP library: it is an extra.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import AsyncIterator

from quintain.bus.base import Bus
from quintain.bus.connect import connect_bus
from quintain.bus.memory import MemoryBroker
from quintain.client.admin import Admin
from quintain.client.amqp_transport import AmqpTransport
from quintain.client.client import Client
from quintain.client.transport import Transport
from quintain.errors import ConfigError
from quintain.rpc.client import RpcClient
from quintain.settings import environment, read_settings


@contextlib.asynccontextmanager
async def connect(
    url: str | None = None,
    token: str | None = None,
    *,
    memory: MemoryBroker | None = None,
    timeout_seconds: float = 30.0,
) -> AsyncIterator[Client]:
    """A session's client, connected, its token proven.

    ``url`` is a broker's (``amqp(s)://``) or a gateway's (``http(s)://``). It and ``token`` come from
    ``QUINTAIN_BROKER_URL``, else ``QUINTAIN_GATEWAY_URL``, and ``QUINTAIN_SESSION_TOKEN`` where they are not given;
    ``memory`` is the broker of a ``memory://`` fleet in this process. ``timeout_seconds`` bounds the connecting.
    Raises `ConfigError`, `BrokerUnavailable` or `GatewayUnavailable`, `BudgetUnavailable` where no metadata service
    answers in time, and `Unauthorized`.

    Example::

        async with quintain.connect() as target:
            result = await target.invoke("What is the capital of France?")
    """
    settings = read_settings(environment())
    token = token or settings.require_session_token()
    url = url or ("memory://" if memory is not None else settings.require_fleet_url())
    transport_context = _open_transport(url, token, memory, timeout_seconds, traceparent=settings.traceparent)
    async with transport_context as transport, verified_client(transport) as client:
        yield client


@contextlib.asynccontextmanager
async def verified_client(transport: Transport) -> AsyncIterator[Client]:
    """A session's client over this transport. Raises `Unauthorized`, `BudgetUnavailable`."""
    client = Client(transport)
    # The first answer proves the token and has the metadata service's time, by which deadlines are set.
    transport.clock.synchronize((await client.get_info()).now)
    try:
        yield client
    finally:
        await client.close()


@contextlib.asynccontextmanager
async def connect_admin(
    url: str, token: str, *, memory: MemoryBroker | None = None, timeout_seconds: float = 30.0
) -> AsyncIterator[Admin]:
    """The administrator's client, over AMQP or HTTP. Raises `BrokerUnavailable`, `BrokerRefused`, `ConfigError`."""
    async with _open_transport(url, token, memory, timeout_seconds) as transport:
        yield Admin(transport, timeout_seconds=timeout_seconds)


@contextlib.asynccontextmanager
async def _open_transport(
    url: str, token: str, memory: MemoryBroker | None, timeout_seconds: float, *, traceparent: str | None = None
) -> AsyncIterator[Transport]:
    """The transport that the URL names, on a connection of its own."""
    if url.lower().startswith(("http://", "https://")):
        try:
            http = importlib.import_module("quintain.client.http_transport")
        except ModuleNotFoundError as error:
            if error.name != "httpx2":
                raise
            raise ConfigError(
                "A gateway is spoken to over HTTP, and that needs: pip install 'quintain[http]'"
            ) from None
        async with http.open_http_transport(url, token, traceparent=traceparent) as transport:
            yield transport
    else:
        async with connect_rpc(url, memory=memory, timeout_seconds=timeout_seconds) as rpc_client:
            yield AmqpTransport(rpc_client, token)


@contextlib.asynccontextmanager
async def connect_rpc(
    url: str, *, memory: MemoryBroker | None = None, timeout_seconds: float = 30.0
) -> AsyncIterator[RpcClient]:
    """A caller on a connection of its own, both closed at the end."""
    bus: Bus = await connect_bus(url, memory=memory, timeout_seconds=timeout_seconds)
    rpc_client = RpcClient(bus)
    try:
        await rpc_client.start()
        yield rpc_client
    finally:
        await rpc_client.close()
        await bus.close()
