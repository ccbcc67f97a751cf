"""The promise of a bus: declare, publish with a confirm, consume with acknowledgements. Two transports keep it, and a
pipe to the one in memory.

What a caller may rely on, over all of them alike (one suite proves it):

- `Bus.publish` returns when the broker has the message, and raises otherwise: `Unroutable` where nothing is
  bound, `QueueFull` where the queue refused it, `BrokerUnavailable` when the timeout passes. While a connection
  is being rebuilt it waits, and tries again: a message may arrive twice, it is never silently lost.
- Handlers run in the bus's own task group and outlive the connection they came by. What a handler leaves
  unsettled is delivered again. Settling a delivery of a lost connection does nothing: it will come again.
- A consumer is restored after a reconnect, and after its queue was deleted. Where messages may have been lost with
  the queue, whoever asked to be told is told.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from quintain.topology import Exchange, Queue, Topology

HeaderValue = str | int | float | bool | None

#: How long a publish may take where the caller names no time, in seconds.
PUBLISH_TIMEOUT_SECONDS = 30.0

#: How long an exchange that only its owner may declare is waited for, in seconds.
OWNER_SECONDS = 30.0

#: How long the deletion of a queue may take where the caller names no time, in seconds.
DELETE_TIMEOUT_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """A message to publish. ``expiration_ms`` only cleans up, late: a queue expires at its head."""

    body: bytes
    type: str
    correlation_id: str | None = None
    reply_to: str | None = None
    headers: Mapping[str, HeaderValue] = field(default_factory=dict)
    expiration_ms: int | None = None
    persistent: bool = True


class Delivery(Protocol):
    """A message that arrived. Exactly one of `ack`, `requeue` and `dead_letter` ends it."""

    @property
    def body(self) -> bytes: ...
    @property
    def type(self) -> str: ...
    @property
    def correlation_id(self) -> str | None: ...
    @property
    def reply_to(self) -> str | None: ...
    @property
    def headers(self) -> Mapping[str, object]: ...
    @property
    def expiration_ms(self) -> int | None: ...
    @property
    def exchange(self) -> str: ...
    @property
    def routing_key(self) -> str: ...
    @property
    def redelivered(self) -> bool: ...

    async def ack(self) -> None:
        """It is done; the broker may forget it."""

    async def requeue(self) -> None:
        """Give it back; it counts as a delivery."""

    async def dead_letter(self) -> None:
        """Nobody here can use it: to the queue's dead-letter exchange, or away where there is none."""


Handler = Callable[[Delivery], Awaitable[None]]

#: Told that messages may have been lost with a queue; it returns at once and raises nothing.
Lost = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Subscription:
    """What a consumer was asked for: see `Bus.consume`."""

    queue: Queue
    handler: Handler
    prefetch: int
    lost: Lost | None = None


class Consumer(Protocol):
    """A queue being consumed."""

    @property
    def live(self) -> bool:
        """Whether the broker delivers to it right now."""

    async def cancel(self) -> None:
        """Take no more; what was taken runs on."""

    async def drain(self, timeout: float) -> bool:
        """Cancel, and wait for the running handlers; False when some were still running, and were cancelled."""


class Bus(Protocol):
    """A connection to a broker, kept up."""

    @property
    def user(self) -> str:
        """The broker's user of this connection, by whom its own queues are named: rights go by that name."""

    @property
    def connected(self) -> bool:
        """Whether the broker can be spoken to right now."""

    @property
    def reconnects(self) -> int:
        """How often a connection was lost and made again."""

    async def declare(self, topology: Topology, *, kept: bool = True) -> None:
        """Make these exist; where they are ``kept``, declared again by itself whenever the connection is rebuilt.

        An exchange that is there already is taken as it is, whoever made it. One that is not, and that this user may
        not declare, is waited for (`BrokerRefused` after `OWNER_SECONDS`): the service that owns it declares it.
        Raises `BrokerRefused`, `BrokerUnavailable`.
        """

    async def publish(
        self,
        exchange: Exchange,
        key: str,
        envelope: Envelope,
        *,
        timeout: float = PUBLISH_TIMEOUT_SECONDS,
    ) -> None:
        """Publish, mandatory and confirmed. Raises `Unroutable`, `QueueFull`, `BrokerUnavailable`."""

    async def consume(self, queue: Queue, handler: Handler, *, prefetch: int, lost: Lost | None = None) -> Consumer:
        """Hand the queue's messages to the handler, at most ``prefetch`` at once; the queue must be declared.

        ``lost`` is called when the queue was found gone (deleted, expired, lost by the broker), or when attaching
        to it again keeps failing although the connection stands. The consumer lives on and goes on trying; it may
        be told more than once, and of nothing before it was attached for the first time.
        """

    async def delete(self, queue: Queue, *, timeout: float = DELETE_TIMEOUT_SECONDS) -> None:
        """Delete a queue with what it holds, and declare it no more; its consumer must be cancelled. One that is
        not there is no error. Raises `BrokerUnavailable` after the timeout (seconds): it is declared no more all
        the same."""

    async def close(self) -> None:
        """Let go: running handlers are cancelled, what they had not settled is delivered again."""
