"""A connection to a broker that is not there ends whenever it is closed."""

from __future__ import annotations

import asyncio
import socket

from quintain.bus.rabbit_connection import RabbitConnection

#: One attempt to connect takes fewer turns of the event loop than this.
TURNS = 25


async def test_closing_ends_the_connection_at_any_moment_of_an_attempt() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        for turns in [*range(TURNS)] * 4:
            connection = RabbitConnection(f"amqp://guest:pw@127.0.0.1:{unused.getsockname()[1]}/", "test")
            connection.start()
            for _ in range(turns):
                await asyncio.sleep(0)
            async with asyncio.timeout(10):
                await connection.close()
