"""The interface of a message bus: declare, publish with confirms, consume with acknowledgements.

All transports guarantee the following; tests/conformance runs one suite against each of them.

- `Bus.publish` returns once the broker has confirmed the message. It raises `Unroutable` if nothing is bound,
  `QueueFull` if the queue rejected it, and `BrokerUnavailable` after the timeout. While the connection is down it
  waits and retries: a message may be delivered twice, but is never lost silently.
- Handlers run in the bus's own tasks and keep running when the connection is lost. A delivery that a handler does not
  settle is redelivered. Settling a delivery of a lost connection has no effect, because it will be redelivered.
- A consumer is restored after a reconnect and after its queue was deleted. If messages may have been lost with the
  queue, the consumer's ``on_queue_lost`` callback is called.
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
EXCHANGE_WAIT_SECONDS = 30.0

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
OnQueueLost = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Subscription:
    """What a consumer was asked for: see `Bus.consume`."""

    queue: Queue
    handler: Handler
    prefetch: int
    on_queue_lost: OnQueueLost | None = None


class Consumer(Protocol):
    """A queue being consumed."""

    @property
    def active(self) -> bool:
        """Whether the broker delivers to it right now."""

    async def cancel(self) -> None:
        """Take no more; what was taken runs on."""

    async def drain(self, timeout_seconds: float) -> bool:
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

    async def declare(self, topology: Topology, *, redeclare: bool = True) -> None:
        """Make these exist; where they are ``redeclare``, declared again by itself whenever the connection is rebuilt.

        An exchange that is there already is taken as it is, whoever made it. One that is not, and that this user may
        not declare, is waited for (`BrokerRefused` after `EXCHANGE_WAIT_SECONDS`): the service that owns it declares
        it. Raises `BrokerRefused`, `BrokerUnavailable`.
        """

    async def publish(
        self,
        exchange: Exchange,
        key: str,
        envelope: Envelope,
        *,
        timeout_seconds: float = PUBLISH_TIMEOUT_SECONDS,
    ) -> None:
        """Publish, mandatory and confirmed. Raises `Unroutable`, `QueueFull`, `BrokerUnavailable`."""

    async def consume(
        self, queue: Queue, handler: Handler, *, prefetch: int, on_queue_lost: OnQueueLost | None = None
    ) -> Consumer:
        """Hand the queue's messages to the handler, at most ``prefetch`` at once; the queue must be declared.

        ``on_queue_lost`` is called when the queue was found gone (deleted, expired, lost by the broker), or when
        attaching to it again keeps failing although the connection stands. The consumer lives on and goes on trying;
        it may be told more than once, and of nothing before it was attached for the first time.
        """

    async def delete(self, queue: Queue, *, timeout_seconds: float = DELETE_TIMEOUT_SECONDS) -> None:
        """Delete a queue with what it holds, and declare it no more; its consumer must be cancelled. One that is
        not there is no error. Raises `BrokerUnavailable` after the timeout (seconds): it is declared no more all
        the same."""

    async def close(self) -> None:
        """Let go: running handlers are cancelled, what they had not settled is delivered again."""
