"""The interface of a message bus: declare, publish with confirms, consume with acknowledgements.

All transports guarantee the following; tests/conformance runs one suite against each of them.

- `Bus.publish` returns once the broker has confirmed the message. It raises `Unroutable` if nothing is bound,
  `QueueFull` if the broker nacked it, and `BrokerUnavailable` after the timeout. While the connection is down it
  waits and retries: a message may be delivered twice, but is never lost silently.
- Handlers run in the bus's own tasks and keep running when the connection is lost. A delivery that a handler does not
  settle is redelivered. Settling a delivery of a lost connection has no effect, because it will be redelivered.
- A consumer is restored after a reconnect and after its queue was deleted. If messages may have been lost with the
  queue, the consumer's ``on_queue_lost`` callback is called.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from quintain.bus.failure_log import FailureLog
from quintain.contracts.headers import DELIVERY_COUNT_HEADERS
from quintain.errors import BrokerUnavailable, BusError
from quintain.runtime.concurrency import cancel_and_wait
from quintain.topology import DELIVERY_LIMIT, Exchange, Queue, Topology

HeaderValue = str | int | float | bool | None

#: The content type of a message whose body is JSON.
JSON_CONTENT_TYPE = "application/json"

#: Default timeout of a publish, in seconds.
PUBLISH_TIMEOUT_SECONDS = 30.0

#: The interval of AMQP heartbeats where the URL names none, in seconds.
HEARTBEAT_SECONDS = 15

#: Default timeout of deleting a queue, in seconds.
DELETE_TIMEOUT_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """A message to publish.

    ``expiration_ms`` only cleans up, and late: a queue drops expired messages at its head only.
    """

    body: bytes
    type: str
    correlation_id: str | None = None
    reply_to: str | None = None
    headers: Mapping[str, HeaderValue] = field(default_factory=dict)
    expiration_ms: int | None = None
    persistent: bool = True
    content_type: str = JSON_CONTENT_TYPE
    #: Whether the message says the user of the connection, as `Delivery.user_id`.
    names_user: bool = False


class Delivery(Protocol):
    """A received message; the handler settles it with exactly one of `ack`, `requeue` and `dead_letter`."""

    @property
    def body(self) -> bytes:
        """The message's body."""

    @property
    def type(self) -> str:
        """The AMQP property ``type``, empty if absent."""

    @property
    def correlation_id(self) -> str | None:
        """The AMQP property ``correlation_id``."""

    @property
    def reply_to(self) -> str | None:
        """The AMQP property ``reply_to``: the routing key for the reply."""

    @property
    def user_id(self) -> str | None:
        """The broker's user who published the message, where that says so: the broker has checked it."""

    @property
    def headers(self) -> Mapping[str, object]:
        """The message's headers."""

    @property
    def expiration_ms(self) -> int | None:
        """The message's time to live in milliseconds, None for no limit."""

    @property
    def exchange(self) -> str:
        """The exchange the message was published to."""

    @property
    def routing_key(self) -> str:
        """The routing key the message was published with."""

    @property
    def redelivered(self) -> bool:
        """Whether the message was delivered before."""

    async def ack(self) -> None:
        """Acknowledge the message: the broker removes it."""

    async def requeue(self) -> None:
        """Return the message to the queue. It comes again as one delivered before, up to the consumer's limit."""

    async def dead_letter(self) -> None:
        """Reject the message: it goes to the queue's dead-letter exchange, or is dropped if the queue has none."""


Handler = Callable[[Delivery], Awaitable[None]]

#: Called when messages may have been lost with a queue; it must return at once and must not raise.
OnQueueLost = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Subscription:
    """The arguments of `Bus.consume`."""

    queue: Queue
    handler: Handler
    prefetch: int
    on_queue_lost: OnQueueLost | None = None


class QueueCount(NamedTuple):
    """How many messages wait in a queue, and how many consumers it has."""

    messages: int
    consumers: int


class Consumer(Protocol):
    """A consumer of one queue."""

    @property
    def active(self) -> bool:
        """Whether the broker currently delivers to this consumer."""

    async def cancel(self) -> None:
        """Stop receiving messages; running handlers continue."""

    async def drain(self, timeout_seconds: float) -> bool:
        """Cancel, and wait up to ``timeout_seconds`` for running handlers.

        Returns False if handlers were still running after the timeout; those are cancelled.
        """


class Bus(Protocol):
    """A connection to a message broker that reconnects by itself."""

    @property
    def user(self) -> str:
        """The broker user of this connection; names of its own queues contain it, because permissions match on it."""

    @property
    def connected(self) -> bool:
        """Whether the connection is currently open."""

    @property
    def reconnects(self) -> int:
        """How many times a connection was lost and opened again."""

    async def declare(self, topology: Topology, *, redeclare: bool = True) -> None:
        """Declare exchanges, queues and bindings.

        With ``redeclare`` they are declared again after every reconnect. An exchange that a queue is to be bound to and
        that does not exist is declared; where this user may not, it is waited for, as is a connection that is lost
        meanwhile. Raises `BrokerRefused`, and `BrokerUnavailable` after as long as the bus was told to wait.
        """

    def publish_only_while(self, may_publish: Callable[[], bool]) -> None:
        """Ask ``may_publish`` before each message is sent, also again: while it says no, a publish waits and retries.

        So a process that was stopped says nothing, when it goes on, that is not true any more.
        """

    async def publish(
        self,
        exchange: Exchange,
        key: str,
        envelope: Envelope,
        *,
        timeout_seconds: float = PUBLISH_TIMEOUT_SECONDS,
    ) -> None:
        """Publish with ``mandatory``, and wait for the broker's confirm.

        Raises `Unroutable`, also of an exchange that does not exist, `QueueFull`, and `BrokerUnavailable` after the
        timeout.
        """

    async def publish_all(
        self,
        exchange: Exchange,
        key: str,
        envelopes: Sequence[Envelope],
        *,
        timeout_seconds: float = PUBLISH_TIMEOUT_SECONDS,
    ) -> list[BusError | None]:
        """Publish messages to one place, and wait for all confirms; returns for each the error that `publish` raises.

        It costs a part of publishing each. A publish whose connection is lost is not repeated: it may have arrived.
        """

    async def consume(
        self, queue: Queue, handler: Handler, *, prefetch: int, on_queue_lost: OnQueueLost | None = None
    ) -> Consumer:
        """Call ``handler`` for each message of a declared queue, with at most ``prefetch`` unsettled messages at once.

        ``on_queue_lost`` is called when the queue was deleted, has expired or was lost by the broker, or when consuming
        it keeps failing although the connection is open. The consumer keeps retrying afterwards. The callback may be
        called more than once, but never before the consumer was attached for the first time.
        """

    async def delete(self, queue: Queue, *, timeout_seconds: float = DELETE_TIMEOUT_SECONDS) -> None:
        """Delete a queue with its messages, and stop redeclaring it; its consumer must be cancelled before.

        A queue that does not exist is no error. Raises `BrokerUnavailable` after the timeout (seconds); even then the
        queue is not redeclared.
        """

    async def count(self, queues: Sequence[Queue]) -> dict[str, QueueCount]:
        """Return how many messages wait in each of these queues, and how many consumers it has, by name.

        Messages that were delivered and not settled do not count. A queue that does not exist, and what comes after it,
        is left out. Raises `BrokerUnavailable`.
        """

    async def close(self) -> None:
        """Close the connection: running handlers are cancelled, and their unsettled messages are redelivered."""


log = logging.getLogger(__name__)

#: A message that was delivered so often before, and whose handler fails again, is given up: it is dead-lettered where
#: its queue has an exchange for that, and dropped otherwise.
MAX_EARLIER_DELIVERIES = 2


class HandlerTasks:
    """The running handlers of one consumer; a message of its queue that was delivered so often is given up.

    The broker's own limit of a queue counts less, by its version: since RabbitMQ 4.3 no message that was given back.
    """

    def __init__(self, max_deliveries: int = DELIVERY_LIMIT) -> None:
        self._max_deliveries = max_deliveries
        self._failures = FailureLog(log, "Messages are not handled, and come again", "Messages are handled")
        self._running: set[asyncio.Task[None]] = set()

    def start(self, handler: Handler, delivery: Delivery) -> None:
        """Start a task that runs the handler on this delivery."""
        # An empty context: with the memory transport the publisher's log ids and trace must not leak into the handler.
        task = contextvars.Context().run(
            asyncio.get_running_loop().create_task, run_handler(handler, delivery, self._max_deliveries, self._failures)
        )
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def finish(self, timeout_seconds: float) -> bool:
        """Wait for all running handlers; after the timeout (seconds) cancel the rest and return False."""
        current = asyncio.current_task()
        running = {task for task in self._running if task is not current}
        if not running:
            return True
        _, unfinished = (
            await asyncio.wait(running, timeout=timeout_seconds) if timeout_seconds > 0 else (set(), running)
        )
        await cancel_and_wait(*unfinished)
        return not unfinished


async def run_handler(
    handler: Handler,
    delivery: Delivery,
    max_deliveries: int = DELIVERY_LIMIT,
    failures: FailureLog | None = None,
) -> None:
    """Run the handler on this delivery; one that fails is delivered again, and given up the third time.

    So is a message that was delivered too often for any reason, as one that ends each process that takes it.
    """
    if delivery.redelivered and earlier_deliveries(delivery) >= max_deliveries:
        log.error("A message to %s was delivered %d times, and is given up", delivery.exchange, max_deliveries)
        await delivery.dead_letter()
        return
    try:
        await handler(delivery)
    except asyncio.CancelledError:
        raise
    except BusError as error:  # an answer cannot be sent, as to every other message
        if failures is not None:
            failures.failed(error)
        await (delivery.requeue() if may_be_delivered_again(delivery, error) else delivery.dead_letter())
    except Exception as error:
        # Handlers report errors to their callers themselves, so this is a bug.
        if may_be_delivered_again(delivery, error):
            log.exception("The handler of a message to %s failed; it will be delivered again", delivery.exchange)
            await delivery.requeue()
        else:
            log.exception("The handler of a message to %s failed again; the message is given up", delivery.exchange)
            await delivery.dead_letter()
    else:
        if failures is not None:
            failures.worked()


def earlier_deliveries(delivery: Delivery) -> int:
    """Return how often a message was delivered before; 2 for any number where its queue does not count."""
    if not delivery.redelivered:
        return 0
    counts = (delivery.headers.get(name) for name in DELIVERY_COUNT_HEADERS)
    return max((count for count in counts if isinstance(count, int)), default=MAX_EARLIER_DELIVERIES)


def may_be_delivered_again(delivery: Delivery, error: Exception) -> bool:
    """Return whether a delivery whose handler failed may help the next time: no message goes round for ever."""
    return isinstance(error, BrokerUnavailable) or earlier_deliveries(delivery) < MAX_EARLIER_DELIVERIES
