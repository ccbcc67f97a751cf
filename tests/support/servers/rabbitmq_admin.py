"""Stops, starts and inspects a broker that belongs to the test run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from support.servers.amqp_handshake import read_version
from support.servers.kind import Server, wait_for_version

_START_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerAdmin:
    """Runs ``rabbitmqctl`` on one broker. ``control`` takes the command's words and returns what it prints.

    Everything blocks, for a second or more: in a coroutine call it through `asyncio.to_thread`. Everything raises
    `ServerUnavailable` where ``rabbitmqctl`` fails.
    """

    url: str
    control: Callable[[tuple[str, ...]], str]

    def rabbitmqctl(self, *arguments: str) -> str:
        """Return what ``rabbitmqctl`` with these arguments prints."""
        return self.control(arguments)

    def stop_app(self) -> None:
        """Close every connection and stop listening; durable queues and messages stay."""
        self.rabbitmqctl("stop_app")

    def start_app(self) -> None:
        """Listen again, at the same address; returns when the broker answers."""
        self.rabbitmqctl("start_app")
        wait_for_version(lambda: read_version(self.url), timeout_seconds=_START_SECONDS)


BrokerUnderTest = Server[BrokerAdmin]
