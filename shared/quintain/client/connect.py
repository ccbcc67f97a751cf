"""Connects a client with the environment's settings: ``async with quintain.connect() as target``.

A broker is reached over AMQP, a gateway over HTTP.
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
    """Connect a session's client and verify its token.

    - ``url``: a broker (``amqp://``, ``amqps://``) or a gateway (``http://``, ``https://``); by default
      ``QUINTAIN_BROKER_URL``, else ``QUINTAIN_GATEWAY_URL``.
    - ``token``: the session's token; by default ``QUINTAIN_SESSION_TOKEN``.
    - ``memory``: the in-memory broker of a fleet in this process, used with ``memory://``.
    - ``timeout_seconds``: time limit for connecting.

    Raises `ConfigError`, `BrokerUnavailable` or `GatewayUnavailable`, `Unauthorized`, and `BudgetUnavailable` if no
    metadata service answers in time.

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
    """Create a client over this transport and verify its token. Raises `Unauthorized`, `BudgetUnavailable`."""
    client = Client(transport)
    # The first reply verifies the token, and carries the metadata service's time, to which deadlines refer.
    transport.clock.synchronize((await client.get_info()).now)
    try:
        yield client
    finally:
        await client.close()


@contextlib.asynccontextmanager
async def connect_admin(
    url: str, token: str, *, memory: MemoryBroker | None = None, timeout_seconds: float = 30.0
) -> AsyncIterator[Admin]:
    """Connect the administration client, over AMQP or HTTP.

    Raises `BrokerUnavailable`, `BrokerRefused`, `ConfigError`.

    Example::

        async with connect_admin("amqp://guest:guest@127.0.0.1:5672/", admin_token) as admin:
            print(await admin.targets())
    """
    async with _open_transport(url, token, memory, timeout_seconds) as transport:
        yield Admin(transport, timeout_seconds=timeout_seconds)


@contextlib.asynccontextmanager
async def _open_transport(
    url: str, token: str, memory: MemoryBroker | None, timeout_seconds: float, *, traceparent: str | None = None
) -> AsyncIterator[Transport]:
    """Open the transport for this URL, on a connection of its own."""
    if url.lower().startswith(("http://", "https://")):
        # Imported on demand: the HTTP library takes a third of the time of `import quintain`.
        http = importlib.import_module("quintain.client.http_transport")
        async with http.open_http_transport(url, token, traceparent=traceparent) as transport:
            yield transport
    else:
        async with connect_rpc(url, memory=memory, timeout_seconds=timeout_seconds) as rpc_client:
            yield AmqpTransport(rpc_client, token)


@contextlib.asynccontextmanager
async def connect_rpc(
    url: str, *, memory: MemoryBroker | None = None, timeout_seconds: float = 30.0
) -> AsyncIterator[RpcClient]:
    """Open an RPC client on a connection of its own; both are closed at the end."""
    bus: Bus = await connect_bus(url, memory=memory, timeout_seconds=timeout_seconds)
    rpc_client = RpcClient(bus)
    try:
        await rpc_client.start()
        yield rpc_client
    finally:
        await rpc_client.close()
        await bus.close()
