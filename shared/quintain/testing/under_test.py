"""What a test is given: a broker's address, where it came from, and a hand on its switch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from quintain.testing.handshake import Address, wait_for_version


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerAdmin:
    """The switch of a broker that is ours alone, for the tests of faults.

    It blocks, for a second or more: in a coroutine call it through `asyncio.to_thread`. Everything raises
    `BrokerUnavailable` where the broker's own tool fails.
    """

    address: Address
    control: Callable[[tuple[str, ...]], str]

    def rabbitmqctl(self, *arguments: str) -> str:
        """What ``rabbitmqctl`` with these arguments prints."""
        return self.control(arguments)

    def stop_app(self) -> None:
        """Close every connection and stop listening; what is durable stays."""
        self.rabbitmqctl("stop_app")

    def start_app(self) -> None:
        """Listen again, at the same address; returns when it answers."""
        self.rabbitmqctl("start_app")
        wait_for_version(self.address, timeout_seconds=60)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerUnderTest:
    """A real RabbitMQ. ``how`` says in one line which one; ``admin`` is None where it is not ours to stop."""

    url: str
    how: str
    admin: BrokerAdmin | None
