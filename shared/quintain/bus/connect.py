"""Connects a bus from a URL: ``amqp://`` and ``amqps://`` to RabbitMQ, ``memory://`` to a broker in this process."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from quintain.bus.base import HEARTBEAT_SECONDS, PUBLISH_TIMEOUT_SECONDS, Bus
from quintain.bus.memory import MemoryBroker
from quintain.errors import ConfigError
from quintain.runtime.lazy_module import LazyModule

if TYPE_CHECKING:
    from quintain.bus import rabbit
else:
    rabbit = LazyModule("quintain.bus.rabbit")


async def connect_bus(
    url: str,
    name: str = "client",
    *,
    memory: MemoryBroker | None = None,
    timeout_seconds: float = 30.0,
    declare_seconds: float | None = PUBLISH_TIMEOUT_SECONDS,
    heartbeat_seconds: int = HEARTBEAT_SECONDS,
) -> Bus:
    """Connect a bus to the broker at this URL.

    ``memory`` is the broker of a ``memory://`` URL; ``declare_seconds`` and ``heartbeat_seconds`` are those of
    `RabbitBus`. Raises `ConfigError` for an unknown scheme, `BrokerUnavailable` after the timeout, and `BrokerRefused`.
    """
    if url.startswith("memory://"):
        if memory is None:
            raise ConfigError(
                "memory:// lives inside one process: from another one set QUINTAIN_BROKER_URL to amqp://… or "
                "QUINTAIN_GATEWAY_URL to the address that `quintain up` prints"
            )
        return memory.connect()
    if url.startswith(("amqp://", "amqps://")):
        bus = rabbit.RabbitBus(url, name, declare_seconds=declare_seconds, heartbeat_seconds=heartbeat_seconds)
        await bus.start(timeout_seconds)
        return bus
    raise ConfigError(f"QUINTAIN_BROKER_URL is {url.partition(':')[0]!r}: use amqp://, amqps:// or memory://")


@contextlib.asynccontextmanager
async def open_bus(
    url: str, name: str, memory: MemoryBroker | None = None, *, timeout_seconds: float = 30.0
) -> AsyncIterator[Bus]:
    """Connect to the broker at this URL. ``memory`` is the broker for ``memory://``; ``name`` names the connection.

    ``timeout_seconds`` holds for the connection and for each declaration. Raises `BrokerUnavailable` after it, or
    `BrokerRefused`.
    """
    bus = await connect_bus(url, name, memory=memory, timeout_seconds=timeout_seconds, declare_seconds=timeout_seconds)
    try:
        yield bus
    finally:
        await bus.close()
