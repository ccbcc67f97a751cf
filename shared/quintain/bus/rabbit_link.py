"""One connection to RabbitMQ, kept up: generations, back-off, and aio-pika's errors in our words.

A generation is one plain connection from its opening to its end. Whatever breaks ends the generation, and one
supervisor opens the next; nothing relies on the library's own restoring. This module and `rabbit` are the only
ones that speak aio-pika.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Iterator

import aio_pika
from aio_pika.abc import AbstractConnection
from aiormq import exceptions as amqp

from quintain.bus.base import PUBLISH_TIMEOUT_SECONDS
from quintain.bus.broker_url import in_turn, nodes_of, shown
from quintain.bus.rabbit_decoding import tolerate_strangers
from quintain.contracts.token import mask
from quintain.errors import BrokerRefused, BrokerUnavailable, BusError, QueueFull, Unroutable

log = logging.getLogger(__name__)

CONNECT_TIMEOUT_SECONDS = 10.0
#: The pause before a lost consumer begins again, or a publish is repeated.
PAUSE_SECONDS = 0.2

BACKOFF_FIRST_SECONDS = 0.2
BACKOFF_MOST_SECONDS = 10.0

#: aiormq's errors in our words, the first that fits: at this one seam. A refusal is fatal: the next try would
#: be refused too. Everything else of the library's is the connection's end, and the next generation tries again.
TRANSLATION: tuple[tuple[type[BaseException], type[BusError], str], ...] = (
    (amqp.AuthenticationError, BrokerRefused, "the broker refused the user or password: check the URL"),
    (
        amqp.ProbableAuthenticationError,
        BrokerRefused,
        "the broker refused the user or password: check the URL",
    ),
    (
        amqp.ConnectionNotAllowed,
        BrokerRefused,
        "the broker refused the virtual host or the user: check the URL",
    ),
    (amqp.ChannelAccessRefused, BrokerRefused, "this user may not do that: grant it the permission it names"),
    (
        amqp.ChannelPreconditionFailed,
        BrokerRefused,
        "it exists with other arguments: delete it or use a policy",
    ),
    (amqp.PublishError, Unroutable, "nothing is bound there"),
    (amqp.DeliveryError, QueueFull, "the queue is full"),
)


#: What the broker says of a queue that is not to be had: deleted, or on a node that is down, or another's now.
NOT_FOUND = amqp.ChannelNotFoundEntity
GONE = (NOT_FOUND, amqp.ChannelLockedResource)

#: What the library raises when a connection or a channel goes.
LOST = (amqp.AMQPError, ConnectionError, RuntimeError, asyncio.InvalidStateError)


@contextlib.contextmanager
def in_our_words(doing: str) -> Iterator[None]:
    """Whatever the library raises inside becomes a `BusError`.

    A reader that dies cancels what waits for it: a cancellation that nobody asked of this task is a lost
    connection, and must not end the task it leaks into.
    """
    try:
        yield
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise BrokerUnavailable(f"{doing}: the connection was lost") from None
    except LOST as error:
        raise translated(error, doing) from None


def translated(error: BaseException, doing: str) -> BusError:
    """A library's error as one of ours: what was tried, what the broker said, what to do."""
    for kind, ours, mend in TRANSLATION:
        if isinstance(error, kind):
            said = "" if isinstance(error, amqp.DeliveryError) else f" ({mask(str(error))})"
            return ours(f"{doing}: {mend}{said}")
    return BrokerUnavailable(f"{doing}: {type(error).__name__}: {mask(str(error))}")


class RabbitLink:
    """One supervised connection, to whichever of the nodes answers. `connection` waits for the current generation."""

    def __init__(self, url: str, purpose: str) -> None:
        self._url, self._purpose = url, purpose
        self._current: AbstractConnection | None = None
        self._fatal: BrokerRefused | None = None
        self._changed = asyncio.Event()
        self._supervisor: asyncio.Task[None] | None = None
        self._last_error = "not tried yet"
        self._closing: set[asyncio.Future[None]] = set()
        self.reconnects = 0

    def start(self) -> None:
        """Begin connecting."""
        tolerate_strangers()
        self._supervisor = asyncio.get_running_loop().create_task(self._supervise(), name=f"link-{self._purpose}")

    async def close(self) -> None:
        """End the connection for good."""
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.gather(self._supervisor, return_exceptions=True)
        if self._current is not None:
            await self._current.close()

    @property
    def up(self) -> bool:
        """Whether the connection stands right now."""
        return self._current is not None and not is_over(self._current)

    async def connection(self, timeout: float = PUBLISH_TIMEOUT_SECONDS) -> AbstractConnection:
        """The current generation's connection. Raises `BrokerUnavailable` after the timeout, `BrokerRefused`."""
        try:
            async with asyncio.timeout(timeout):
                while self._current is None or is_over(self._current):
                    if self._fatal is not None:
                        raise self._fatal
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise BrokerUnavailable(
                f"No broker at {shown(self._url)} within {timeout:.1f} s ({self._last_error}): start one, or set "
                "QUINTAIN_BROKER_URL to one that runs"
            ) from None
        return self._current

    async def channel(self, timeout: float = PUBLISH_TIMEOUT_SECONDS) -> aio_pika.abc.AbstractChannel:
        """A new channel of the current generation, with confirms and returned messages raised."""
        connection = await self.connection(timeout)
        try:
            async with asyncio.timeout(timeout):
                with in_our_words("opening a channel"):
                    return await connection.channel(publisher_confirms=True, on_return_raises=True)
        except TimeoutError:
            raise BrokerUnavailable(f"No channel within {timeout:.1f} s") from None

    async def let_go(self, channel: aio_pika.abc.AbstractChannel) -> None:
        """Close a channel, to the end, whether or not whoever waits for that is cancelled.

        The library keeps a cancellation in there to itself, and gives the channel's number to the next one before
        the broker has let go of it: that costs the connection.
        """
        closing = asyncio.ensure_future(channel.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
        await asyncio.shield(closing)

    async def _supervise(self) -> None:
        failures = 0
        for node in in_turn(nodes_of(self._url)):
            try:
                connection = await aio_pika.connect(
                    node,
                    timeout=CONNECT_TIMEOUT_SECONDS,
                    client_properties={"connection_name": f"quintain {self._purpose}"},
                )
            except (amqp.AMQPError, OSError, TimeoutError, RuntimeError, ValueError) as error:
                refusal = connecting_failed(error, shown(node))
                self._last_error = mask(str(error)) or type(error).__name__
                if isinstance(refusal, BrokerRefused):
                    self._fatal = refusal
                    self._changed.set()
                    return
                # Full jitter: a broker that comes back is not met by all its clients at once.
                ceiling = min(BACKOFF_MOST_SECONDS, BACKOFF_FIRST_SECONDS * 2**failures)
                failures += 1
                await asyncio.sleep(random.uniform(0, ceiling))  # noqa: S311 -- jitter, not a secret
                continue
            failures = 0
            self.reconnects += self._current is not None
            self._current = connection
            self._changed.set()
            await ended(connection)
            log.warning("The %s connection to the broker was lost; connecting again", self._purpose)


def connecting_failed(error: BaseException, where: str) -> BusError:
    """Why no connection came about. A broker that closes in answer to the virtual host's name refused that name;
    the library only says that it did not expect the frame."""
    if isinstance(error, amqp.InvalidFrameError):
        return BrokerRefused(f"connecting to {where}: the broker refused the virtual host: check the end of the URL")
    return translated(error, f"connecting to {where}")


def is_over(connection: AbstractConnection) -> bool:
    """Whether the connection has ended. The plain connection class knows only of its own `close`: the loss of
    the wire shows on what lies beneath."""
    return connection.transport is None or connection.transport.connection.is_closed


async def ended(connection: AbstractConnection) -> None:
    """Wait for a connection's end, whatever it is."""
    if connection.transport is not None:
        await asyncio.wait([connection.transport.connection.closing])
