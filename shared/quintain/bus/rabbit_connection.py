"""A supervised RabbitMQ connection: reconnects with back-off and translates aio-pika's errors into `BusError`.

aio-pika's robust connections are not used: when a connection ends, the supervisor opens the next one.

Logged is that the connection is lost or refused, that it is back, and nothing of any message: the libraries below log
whole frames and messages, with bodies and tokens, and print a traceback for each lost connection.

A refusal is an error of the first connection. Later it is an outage, which ends when the broker accepts again.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import random
from collections.abc import AsyncIterator, Iterator
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import aio_pika
from aio_pika.abc import AbstractConnection
from aio_pika.connection import make_url
from aiormq import exceptions as amqp

from quintain.bus.base import HEARTBEAT_SECONDS, PUBLISH_TIMEOUT_SECONDS
from quintain.bus.failure_log import FailureLog
from quintain.contracts.credentials import mask_tokens
from quintain.errors import BrokerRefused, BrokerUnavailable, BusError, ConfigError, QueueFull, Unroutable
from quintain.runtime.concurrency import cancel_and_wait
from quintain.settings import all_node_urls, without_password
from quintain.topology import Exchange

CONNECT_TIMEOUT_SECONDS = 10.0
#: Pause before a lost consumer is started again or a publish is repeated, in seconds.
RETRY_SECONDS = 0.2

BACKOFF_INITIAL_SECONDS = 0.2
#: A third of a worker's lease: no lease lapses in the one that follows an outage of the broker, and a worker must have
#: connected and sent its heartbeat by then.
BACKOFF_MAX_SECONDS = 5.0

#: Translation of aiormq's errors to `BusError`; the first match counts. `BrokerRefused` is fatal, because a retry would
#: be refused too. Any error that is not listed means that the connection was lost, and the operation is retried on the
#: next one.
ERROR_TRANSLATIONS: tuple[tuple[type[BaseException], type[BusError], str], ...] = (
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
    (amqp.DeliveryError, QueueFull, "the broker nacked it: the queue is full, ends, or cannot be reached now"),
)


#: Errors for a queue that cannot be used: deleted, on a node that is down, or exclusive to another connection.
QUEUE_NOT_FOUND = amqp.ChannelNotFoundEntity
QUEUE_GONE_ERRORS = (QUEUE_NOT_FOUND, amqp.ChannelLockedResource)

#: What aiormq raises when a connection or a channel is lost.
CONNECTION_ERRORS = (amqp.AMQPError, ConnectionError, RuntimeError, asyncio.InvalidStateError)


#: What `translated` takes: the errors of a lost connection, and a cancellation, which may be one.
TRANSLATED_ERRORS = (asyncio.CancelledError, *CONNECTION_ERRORS)


def translated(error: BaseException, action: str, exchange: Exchange | None = None) -> BaseException:
    """Return what to raise for one of `TRANSLATED_ERRORS`: a `BusError` whose message begins with ``action``.

    ``exchange`` is the one that is published to.

    When aiormq's reader task fails, it cancels tasks that wait for it. Such a cancellation, which was not requested for
    the current task, is a lost connection and must not end the task.
    """
    if is_current_task_cancelled():
        return error if isinstance(error, asyncio.CancelledError) else asyncio.CancelledError()
    if isinstance(error, asyncio.CancelledError):
        return BrokerUnavailable(f"{action}: the connection was lost")
    return to_bus_error(error, action, exchange)


@contextlib.contextmanager
def translate_errors(action: str) -> Iterator[None]:
    """Context manager that raises `translated` errors in the place of aiormq's."""
    try:
        yield
    except TRANSLATED_ERRORS as error:
        raise translated(error, action) from None


def is_current_task_cancelled() -> bool:
    """Return whether the current task's cancellation was requested.

    aio-pika may raise another error, or return normally, in a task that was cancelled while it waited.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def to_bus_error(error: BaseException, action: str, exchange: Exchange | None = None) -> BusError:
    """Translate an error of aiormq to a `BusError` that names the action, a hint and the broker's message.

    Nothing is bound to an ``exchange`` that does not exist; what else was published on its channel may have arrived.
    """
    if exchange is not None and is_missing(exchange, error):
        return Unroutable(f"{action}: there is no such exchange; `quintain serve metadata` declares the protocol's")
    if exchange is not None and isinstance(error, amqp.ChannelAccessRefused) and f"'{exchange.name}'" not in str(error):
        return BrokerUnavailable(f"{action}: a publish to another exchange was refused on its channel")
    if isinstance(error, amqp.ChannelPreconditionFailed) and "queue limit" in str(error):
        hint = "the virtual host has max-queues queues: `quintain doctor --management URL` names those to delete"
        return BrokerRefused(f"{action}: {hint} ({mask_tokens(str(error))})")
    for kind, bus_error, hint in ERROR_TRANSLATIONS:
        if isinstance(error, kind):
            detail = "" if isinstance(error, amqp.DeliveryError) else f" ({mask_tokens(str(error))})"
            return bus_error(f"{action}: {hint}{detail}")
    return BrokerUnavailable(f"{action}: {type(error).__name__}: {mask_tokens(str(error))}")


def is_missing(exchange: Exchange, error: BaseException) -> bool:
    """Return whether the error of a channel says that this exchange does not exist."""
    return isinstance(error, QUEUE_NOT_FOUND) and f"no exchange '{exchange.name}'" in str(error)


class RabbitConnection:
    """One supervised connection to any node of the cluster; `wait_connection` returns the current one."""

    def __init__(
        self, url: str, purpose: str, outages: FailureLog | None = None, heartbeat_seconds: int = HEARTBEAT_SECONDS
    ) -> None:
        self._url, self._purpose, self._node_urls = url, purpose, node_urls(url, heartbeat_seconds)
        self._outages = outages or outage_log(url, purpose)
        self._current_connection: AbstractConnection | None = None
        self._fatal_error: BrokerRefused | None = None
        self._state_changed = asyncio.Event()
        self._supervisor: asyncio.Task[None] | None = None
        self._last_error = "not tried yet"
        self._closing_channels: set[asyncio.Future[None]] = set()
        self.reconnects = 0

    def start(self) -> None:
        """Start the supervisor task, which connects and reconnects."""
        install_value_filter()
        self._supervisor = asyncio.get_running_loop().create_task(self._supervise(), name=f"connect-{self._purpose}")

    async def close(self) -> None:
        """Close the connection permanently."""
        await cancel_and_wait(self._supervisor)
        if self._current_connection is not None:
            await self._current_connection.close()

    @property
    def is_open(self) -> bool:
        """Whether the connection is currently open."""
        return self._current_connection is not None and not is_closed(self._current_connection)

    async def wait_connection(self, timeout_seconds: float = PUBLISH_TIMEOUT_SECONDS) -> AbstractConnection:
        """Return the current connection, waiting for it up to the timeout (seconds).

        Raises `BrokerUnavailable` after the timeout, and `BrokerRefused`.
        """
        try:
            async with asyncio.timeout(timeout_seconds):
                while self._current_connection is None or is_closed(self._current_connection):
                    if self._fatal_error is not None:
                        raise self._fatal_error
                    self._state_changed.clear()
                    await self._state_changed.wait()
        except TimeoutError:
            raise BrokerUnavailable(
                f"No broker at {without_password(self._url)} within {timeout_seconds:.1f} s ({self._last_error}): "
                "start one, or set QUINTAIN_BROKER_URL to a running one"
            ) from None
        return self._current_connection

    async def open_channel(self, timeout_seconds: float = PUBLISH_TIMEOUT_SECONDS) -> aio_pika.abc.AbstractChannel:
        """Open a channel with publisher confirms, on which returned messages raise an error."""
        connection = await self.wait_connection(timeout_seconds)
        try:
            async with asyncio.timeout(timeout_seconds):
                with translate_errors("opening a channel"):
                    return await connection.channel(publisher_confirms=True, on_return_raises=True)
        except TimeoutError:
            raise BrokerUnavailable(f"No channel within {timeout_seconds:.1f} s") from None

    @contextlib.asynccontextmanager
    async def channel_for(self, action: str, timeout_seconds: float = PUBLISH_TIMEOUT_SECONDS) -> AsyncIterator[Any]:
        """Open a channel for one action, and close it where that has not failed: a failure has closed it."""
        channel = await self.open_channel(timeout_seconds)
        with translate_errors(action):
            underlay = await channel.get_underlay_channel()
            yield underlay
            if not underlay.is_closed:
                await self.close_channel(channel)

    async def close_channel(self, channel: aio_pika.abc.AbstractChannel) -> None:
        """Close a channel and wait for the broker's answer, even if the calling task is cancelled.

        aio-pika would swallow the cancellation and reuse the channel number before the broker has closed the channel,
        which makes the broker close the connection.
        """
        closing = asyncio.ensure_future(channel.close())
        self._closing_channels.add(closing)
        closing.add_done_callback(self._closing_channels.discard)
        await asyncio.shield(closing)

    async def _supervise(self) -> None:
        failures = 0
        for node_url in round_robin(self._node_urls):
            try:
                connection = await connect(node_url, f"quintain {self._purpose}")
            except (amqp.AMQPError, OSError, TimeoutError, RuntimeError, ValueError) as error:
                if is_current_task_cancelled():
                    raise asyncio.CancelledError from None
                refusal = connection_error(error, without_password(node_url))
                self._last_error = mask_tokens(str(error)) or type(error).__name__
                if isinstance(refusal, BrokerRefused):
                    self._last_error = refusal.message
                    if self._current_connection is None:
                        self._fatal_error = refusal
                        self._state_changed.set()
                        return
                # A virtual host that was deleted may be made again, and a permission be given back.
                if self._current_connection is not None:
                    self._outages.failed(refusal, self)
                # Full jitter: when a broker comes back, its clients must not all reconnect at once.
                max_delay_seconds = min(BACKOFF_MAX_SECONDS, BACKOFF_INITIAL_SECONDS * 2**failures)
                failures += 1
                await asyncio.sleep(random.uniform(0, max_delay_seconds))  # noqa: S311 -- jitter, not a secret
                continue
            if is_current_task_cancelled():
                await connection.close()
                raise asyncio.CancelledError
            failures = 0
            self.reconnects += self._current_connection is not None
            self._current_connection = connection
            self._state_changed.set()
            self._outages.worked(self)
            await wait_closed(connection)
            self._outages.failed(BrokerUnavailable("the connection was lost; connecting again"), self)


async def connect(node_url: str, name: str) -> AbstractConnection:
    """Open a connection that the broker lists under this name. Raises what aio-pika raises.

    A connection that failed is closed: one that is not schedules its end when it is deleted, and a process whose loop
    has ended by then prints a warning.
    """
    connection = aio_pika.Connection(make_url(node_url), client_properties={"connection_name": name})
    try:
        await connection.connect(timeout=CONNECT_TIMEOUT_SECONDS)
    except BaseException:
        await connection.close()
        raise
    return connection


def connection_error(error: BaseException, address: str) -> BusError:
    """Translate an error of connecting to a `BusError`.

    If the virtual host is refused, the broker closes the connection instead of answering, and aiormq only reports an
    unexpected frame.
    """
    if isinstance(error, amqp.InvalidFrameError):
        return BrokerRefused(
            f"connecting to {address}: the broker refused the virtual host (check the end of the URL), or its limit of "
            "this user's connections is reached"
        )
    return to_bus_error(error, f"connecting to {address}")


def outage_log(url: str, name: str) -> FailureLog:
    """Return the log of the outages of one bus's connections."""
    begun = f"{name}: no connection to the broker at {without_password(url)}"
    return FailureLog(log, begun, f"{name}: connected to the broker again")


def is_closed(connection: AbstractConnection) -> bool:
    """Return whether the connection has ended.

    aio-pika's plain connection class only knows about its own `close`; the loss of the socket shows in aiormq's object.
    """
    return connection.transport is None or connection.transport.connection.is_closed


async def wait_closed(connection: AbstractConnection) -> None:
    """Wait until the connection ends for any reason."""
    if connection.transport is not None:
        await asyncio.wait([connection.transport.connection.closing])


log = logging.getLogger(__name__)

#: The loggers of the libraries, with all loggers below them.
LIBRARY_LOGGERS = ("aio_pika", "aiormq", "pamqp")

#: A logger that the library creates only when it uses it.
_LATE_LOGGER = "aiormq.connection.marshall"

#: Messages of the libraries that keep their level, and their text without values.
_KEPT_MESSAGES = {
    "Connection %r was blocked by: %r": "The broker has blocked publishing: it is short of memory or disk",
    "Connection %r was unblocked": "The broker accepts messages again",
}


class _ValueFilter(logging.Filter):
    """Takes the values and the traceback out of each record, and lowers its level to DEBUG."""

    def filter(self, record: logging.LogRecord) -> bool:
        kept_text = _KEPT_MESSAGES.get(str(record.msg))
        if kept_text is None:
            record.levelno, record.levelname = logging.DEBUG, logging.getLevelName(logging.DEBUG)
        record.msg = str(record.msg) if kept_text is None else kept_text
        record.args, record.exc_info, record.exc_text, record.stack_info = (), None, None, None
        return logging.getLogger(record.name).isEnabledFor(record.levelno)


_VALUE_FILTER = _ValueFilter()


def install_value_filter() -> None:
    """Keep values, and with them bodies and tokens, out of what the libraries log at any level.

    Only the constant text of a record is left, at DEBUG level. This affects the whole process; calling it again has no
    effect but on loggers that are new.
    """
    prefixes = tuple(f"{name}." for name in LIBRARY_LOGGERS)
    children = [name for name in logging.root.manager.loggerDict if name.startswith(prefixes)]
    for name in {*LIBRARY_LOGGERS, _LATE_LOGGER, *children}:
        logging.getLogger(name).addFilter(_VALUE_FILTER)


def node_urls(urls: str, heartbeat_seconds: int = HEARTBEAT_SECONDS) -> tuple[str, ...]:
    """Return the URL of each node, with this heartbeat added where the URL names none.

    Raises `ConfigError` where a parameter switches off the verification of the broker's certificate.
    """
    return tuple(_with_heartbeat(url, heartbeat_seconds) for url in all_node_urls(urls))


def round_robin(nodes: tuple[str, ...]) -> Iterator[str]:
    """Iterate over the nodes for ever, starting at a random one so that clients spread over the cluster."""
    first = random.randrange(len(nodes))  # noqa: S311 -- spread, not a secret
    return itertools.cycle(nodes[first:] + nodes[:first])


def _with_heartbeat(url: str, heartbeat_seconds: int) -> str:
    options = parse_qsl(urlsplit(url).query, keep_blank_values=True)
    if any(name == "no_verify_ssl" and value != "0" for name, value in options):
        raise ConfigError(
            f"The broker's URL {without_password(url)} switches off the verification of its certificate: leave "
            "no_verify_ssl out, and name your own CA's certificate as cafile=/path/to/ca.pem"
        )
    if "heartbeat=" in url:
        return url
    return f"{url}{'&' if '?' in url else '?'}heartbeat={heartbeat_seconds}"
