"""A lease's messages at either end: items are numbered, and kept until the other side has processed them.

Each message says which item of the other side was processed last. Where items are missing, or this side's address has
changed, the other side is asked to publish again what came after that one; so items that were lost are sent again, and
no item is passed on twice. Heartbeats reveal a loss, and a side that is silent is lost itself.
"""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from quintain.bus.base import Bus, Delivery, Envelope
from quintain.bus.failure_log import FailureLog
from quintain.contracts.hosting import LEASE_TYPE, DriverMessage, EventReply, HostItem, HostMessage, LeaseRequest
from quintain.errors import BadRequest, BusError, Unroutable
from quintain.runtime.concurrency import cancel_and_wait
from quintain.timings import Timings
from quintain.topology import HOST, Exchange

log = logging.getLogger(__name__)

#: Limits of one message; a larger item has a message of its own. A target that emits without a pause holds its
#: interpreter's lock, and each message needs it several times: few large messages are sent much sooner than many.
MAX_ITEMS_PER_MESSAGE = 1024
MAX_BYTES_PER_MESSAGE = 1_000_000

#: The largest item, as JSON.
MAX_ITEM_BYTES = 8 * 1024 * 1024

#: The number of publishes that run at the same time; what is added meanwhile goes into the next message.
MAX_CONCURRENT_SENDS = 2

#: Limits of what the other side has not processed; at one of them a sender that may wait does: memory is bounded.
MAX_UNPROCESSED_ITEMS = 10_000
MAX_UNPROCESSED_BYTES = 64_000_000

#: An acknowledgement is due after so many items or bytes; with fewer of them it is in the next message or heartbeat.
ACKNOWLEDGED_ITEMS = 1024
ACKNOWLEDGED_BYTES = 8_000_000

#: How often in the time between two heartbeats is looked whether the other side is silent.
LOOKS_PER_HEARTBEAT = 4


def encode_item(item: LeaseRequest | EventReply | HostItem) -> bytes:
    """Return an item as JSON. Raises `ValueError`, naming its size and the limit, where it is too large."""
    body = item.to_wire()
    if len(body) > MAX_ITEM_BYTES:
        raise ValueError(
            f"An item {item.type!r} of a lease has {len(body):,} bytes, and {MAX_ITEM_BYTES:,} is the most that can be "
            "sent: send a reference to it instead"
        )
    return body


class LeaseStream:
    """One side of a lease. All methods but `send` and `wake` are called on the loop of its bus.

    ``get_own_key`` returns the routing key under which this side receives, and ``key`` is that of the other side, which
    is in each of its messages. ``on_items`` is called with the number of the first of some new items, and these; with
    0 for items beside the numbering. ``on_broken`` is called with the reason where the lease cannot go on. ``ended`` is
    done at the end of the lease.
    """

    def __init__(  # noqa: PLR0913 -- what one end of a conversation has
        self,
        bus: Bus,
        exchange: Exchange,
        lease_id: str,
        on_items: Callable[[int, Sequence[Any]], None],
        *,
        get_own_key: Callable[[], str],
        on_unroutable: Callable[[int, Unroutable], None] = lambda number, error: None,
        on_broken: Callable[[str], None],
        ended: asyncio.Future[None],
        timings: Timings,
    ) -> None:
        self._bus, self._exchange, self._ended, self._timings = bus, exchange, ended, timings
        self.lease_id, self.key, self._get_own_key = lease_id, "", get_own_key
        self._message_type = HostMessage if exchange is HOST else DriverMessage
        self._on_items, self._on_unroutable, self._on_broken = on_items, on_unroutable, on_broken
        lease = f"Messages of lease {lease_id[:8]} are"
        self._not_sent = FailureLog(log, f"{lease} not sent, and will be asked for", f"{lease} sent", bus)
        self._loop = asyncio.get_running_loop()
        # `send` may run in a target's context: what is published must not be taken for the target's own.
        self._context = contextvars.copy_context()
        self._room = threading.Condition()
        #: Items as JSON, in order: those that were published and not processed yet, then those to be published.
        self._sent: deque[bytes] = deque()
        self._unsent: deque[bytes] = deque()
        self._last_number = self._bytes = 0
        self._is_flush_scheduled = self._is_closed = False
        self._publishing: set[asyncio.Task[None]] = set()
        #: The number of the last item that was received.
        self.received = 0
        #: The last received item that the application still has to process, and the last one that it has processed.
        self.held = self.released = 0
        #: The last item that the other side knows as processed, and how much has come since then.
        self._acknowledged = self._unacknowledged_bytes = 0
        #: What was received when the other side was asked for more; a heartbeat later it is asked again.
        self._asked_after = -1
        self._heard_at = self._loop.time()
        self._beating: asyncio.Task[None] | None = None

    @property
    def processed(self) -> int:
        """The number of the last item that was processed here, with all before it."""
        return self.received if self.released >= self.held else self.released

    @property
    def is_acknowledgement_due(self) -> bool:
        """Whether the other side may soon wait to hear what was processed; may be read on any thread."""
        count = self.processed - self._acknowledged
        return count >= ACKNOWLEDGED_ITEMS or (count > 0 and self._unacknowledged_bytes >= ACKNOWLEDGED_BYTES)

    # Sending.

    def send(
        self,
        *items: bytes,
        on_numbered: Callable[[int], None] = lambda number: None,
        is_given_up: Callable[[], bool] | None = None,
    ) -> int:
        """Add items as JSON, from any thread, and return the number of the last one.

        ``on_numbered`` is called with that before it can be answered; what it raises, such as for a run that is over,
        leaves the items out. With ``is_given_up`` the caller waits while the other side has too much to process, until
        that returns True.
        """
        with self._room:
            if is_given_up is not None:
                self._room.wait_for(lambda: self._has_room() or is_given_up())
            on_numbered(self._last_number + len(items))
            self._last_number += len(items)
            self._bytes += sum(map(len, items))
            self._unsent.extend(items)
            if not self._is_flush_scheduled and not self._is_closed:
                self._is_flush_scheduled = True
                self._loop.call_soon_threadsafe(self._flush, context=self._context)
            return self._last_number

    def wake(self) -> None:
        """Let senders that wait look again whether they give up."""
        with self._room:
            self._room.notify_all()

    async def send_now(self, item: LeaseRequest | HostItem, key: str = "", expiration_ms: int | None = None) -> None:
        """Publish one item before any other one; with ``key`` to this address, where no message has come yet.

        Raises what `encode_item` and `Bus.publish` raise.
        """
        body = encode_item(item)
        self._last_number += 1
        self._sent.append(body)
        self._bytes += len(body)
        envelope = self._envelope(self._last_number, [body], expiration_ms=expiration_ms)
        await self._bus.publish(self._exchange, key or self.key, envelope)

    def ask_again(self) -> None:
        """Ask for everything that was not processed here: it may have been lost with this side's old address."""
        if self.received:
            self._send_nothing(again=True)

    def acknowledge(self) -> None:
        """Say what was processed, unless that was said meanwhile."""
        if self.is_acknowledgement_due:
            self._send_nothing()

    def start_beating(self) -> None:
        """Send heartbeats from now on, until the lease has ended, which is broken by a silence of the other side."""
        self._beating = self._loop.create_task(self._beat(), context=contextvars.Context())

    async def close(self, seconds: float = 0) -> None:
        """Send nothing new, after waiting so long for what was to be sent."""
        self._flush()
        ends = self._loop.time() + seconds
        while self._publishing and (left := ends - self._loop.time()) > 0:
            # Each publish that ends begins the next one.
            await asyncio.wait(self._publishing, timeout=left)
        self._is_closed = True
        await cancel_and_wait(*self._publishing, self._beating)

    def _has_room(self) -> bool:
        return len(self._sent) + len(self._unsent) < MAX_UNPROCESSED_ITEMS and self._bytes < MAX_UNPROCESSED_BYTES

    def _flush(self) -> None:
        self._is_flush_scheduled = False
        while self._unsent and self.key and len(self._publishing) < MAX_CONCURRENT_SENDS and not self._is_closed:
            with self._room:
                number = self._next_number
                items, size = [self._unsent.popleft()], 0
                while self._unsent and len(items) < MAX_ITEMS_PER_MESSAGE:
                    size += len(items[-1])
                    if size + len(self._unsent[0]) > MAX_BYTES_PER_MESSAGE:
                        break
                    items.append(self._unsent.popleft())
                self._sent.extend(items)
            self._start_publish(number, items)

    def _send_nothing(self, *, again: bool = False) -> None:
        """Publish a message without items: a heartbeat."""
        if not self._is_closed:
            with self._room:
                number = self._next_number
            self._start_publish(number, [], again=again)

    def _start_publish(self, number: int, items: list[bytes], *, again: bool = False) -> None:
        task = self._loop.create_task(self._publish(number, items, again=again), context=self._context)
        self._publishing.add(task)
        task.add_done_callback(self._on_published)

    def _on_published(self, task: asyncio.Task[None]) -> None:
        self._publishing.discard(task)
        if self._unsent:
            self._flush()

    @property
    def _next_number(self) -> int:
        """The number of the next item to be published; read under the lock, as `send` may be at work."""
        return self._last_number - len(self._unsent) + 1

    def _envelope(
        self, number: int, items: list[bytes], *, again: bool = False, expiration_ms: int | None = None
    ) -> Envelope:
        self._acknowledged = self.processed
        if self._acknowledged == self.received:
            self._unacknowledged_bytes = 0
        asking, joined = b',"again":true' if again else b"", b",".join(items)
        return Envelope(
            body=b'{"number":%d,"processed":%d%b,"items":[%b]}' % (number, self._acknowledged, asking, joined),
            type=LEASE_TYPE,
            correlation_id=self.lease_id,
            reply_to=self._get_own_key(),
            expiration_ms=expiration_ms,
            # What the broker loses is sent again; a request that waits for a slot is kept.
            persistent=expiration_ms is not None,
        )

    async def _publish(self, number: int, items: list[bytes], *, again: bool) -> None:
        envelope, seconds = self._envelope(number, items, again=again), self._timings.host_lost_seconds
        try:
            await self._bus.publish(self._exchange, self.key, envelope, timeout_seconds=seconds)
        except Unroutable as error:
            self._on_unroutable(number if items else number + 1, error)
        except BusError as error:
            self._not_sent.failed(error)
        else:
            self._not_sent.worked()

    async def _beat(self) -> None:
        interval = self._timings.host_heartbeat_seconds / LOOKS_PER_HEARTBEAT
        for look in itertools.count(1):
            slept_at = self._loop.time()
            if (await asyncio.wait([self._ended], timeout=interval))[0]:
                return
            now = self._loop.time()
            # Time in which this process itself did not run is no silence: it has messages waiting that it has not read.
            stalled = now - slept_at - interval
            self._heard_at += stalled if stalled > interval else 0.0
            if (silent := now - self._heard_at) >= self._timings.host_lost_seconds:
                self._on_broken(f"nothing was heard of it for {silent:.3g} s")
                return
            if look % LOOKS_PER_HEARTBEAT == 0:
                self._asked_after = -1
                if len(self._publishing) <= MAX_CONCURRENT_SENDS:
                    self._send_nothing()

    # Receiving.

    def on_delivery(self, delivery: Delivery) -> None:
        """Process a message of the other side: its items that are new, in order."""
        try:
            message = self._message_type.from_wire(delivery.body)
        except BadRequest as error:
            self._on_broken(f"a message cannot be read ({error.message})")
            return
        self._heard_at = self._loop.time()
        self._unacknowledged_bytes += len(delivery.body)
        if message.number == 0:
            self._on_items(0, message.items)
            return
        self.key = delivery.reply_to or self.key
        self._forget_processed(message.processed, again=message.again)
        known = self.received + 1 - message.number
        if known < 0 and self._asked_after != self.received:
            self._asked_after = self.received
            self._send_nothing(again=True)
        if known >= 0 and (new := message.items[known:]):
            first = self.received + 1
            self.received += len(new)
            self._on_items(first, new)
            self.acknowledge()
        self._flush()

    def _forget_processed(self, number: int, *, again: bool) -> None:
        with self._room:
            oldest = self._next_number - len(self._sent)
            for _ in range(min(number - oldest + 1, len(self._sent))):
                self._bytes -= len(self._sent.popleft())
            if again:
                self._unsent.extendleft(reversed(self._sent))
                self._sent.clear()
            self._room.notify_all()
