"""The transports under one harness: what the suite needs beside the bus's own promise."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Protocol
from urllib.parse import urlsplit

import aio_pika
import aiormq

from quintain.bus.base import Bus
from quintain.bus.memory import MemoryBroker, MemoryBus
from quintain.bus.rabbit import RabbitBus
from support.tcp_proxy import TcpProxy, open_tcp_proxy


class Transport(Protocol):
    """One broker, and the faults the suite produces at it."""

    async def connect(self) -> Bus: ...

    async def drop_connection(self, bus: Bus) -> None:
        """Lose this bus's connection without a word."""

    async def delete_queue(self, name: str) -> None:
        """Delete a queue under whoever consumes it."""

    async def lose_queue(self, bus: Bus, name: str) -> None:
        """Lose this bus's connection, and the queue while it is away."""

    async def default_delivery_limit(self) -> int | None:
        """After how many returns the broker drops a message of a quorum queue that names no limit; none if never."""


class MemoryTransport:
    def __init__(self) -> None:
        self._broker = MemoryBroker()
        self._buses: list[MemoryBus] = []

    async def connect(self) -> Bus:
        self._buses.append(self._broker.connect())
        return self._buses[-1]

    async def drop_connection(self, bus: Bus) -> None:
        assert isinstance(bus, MemoryBus)
        bus.drop_connection()

    async def delete_queue(self, name: str) -> None:
        self._broker.delete_queue(name)

    async def lose_queue(self, bus: Bus, name: str) -> None:
        await self.drop_connection(bus)
        await self.delete_queue(name)

    async def default_delivery_limit(self) -> None:
        return None

    async def close(self) -> None:
        for bus in self._buses:
            await bus.close()
        self._broker.close()


class RabbitTransport:
    def __init__(self, url: str) -> None:
        self._url = urlsplit(url)
        self._stack = contextlib.AsyncExitStack()
        self._proxies: dict[int, TcpProxy] = {}

    async def connect(self) -> Bus:
        proxy = await self._stack.enter_async_context(
            open_tcp_proxy(self._url.hostname or "127.0.0.1", self._url.port or 5672)
        )
        netloc = f"{self._url.username or 'guest'}:{self._url.password or 'guest'}@127.0.0.1:{proxy.port}"
        bus = RabbitBus(self._url._replace(netloc=netloc).geturl(), "conformance")
        await bus.start()
        self._stack.push_async_callback(bus.close)
        self._proxies[id(bus)] = proxy
        return bus

    async def drop_connection(self, bus: Bus) -> None:
        self._proxies[id(bus)].drop_connections()

    async def delete_queue(self, name: str) -> None:
        async with await aio_pika.connect(self._url.geturl()) as connection:
            channel = await connection.channel()
            await channel.queue_delete(name)

    async def lose_queue(self, bus: Bus, name: str) -> None:
        proxy = self._proxies[id(bus)]
        proxy.refusing = True
        proxy.drop_connections()
        await self.delete_queue(name)
        proxy.refusing = False

    async def default_delivery_limit(self) -> int | None:
        connection = await aiormq.connect(self._url.geturl())
        major, minor = map(int, str(connection.server_properties["version"]).split(".")[:2])
        await connection.close()
        # Since 4.3 what is given back does not count.
        return 20 if (4, 0) <= (major, minor) < (4, 3) else None

    async def close(self) -> None:
        await self._stack.aclose()


@contextlib.asynccontextmanager
async def open_transport(kind: str, broker_url: str) -> AsyncIterator[Transport]:
    """The transport of this kind, closed at the end."""
    transport = RabbitTransport(broker_url) if kind == "rabbit" else MemoryTransport()
    try:
        yield transport
    finally:
        await transport.close()
