"""Sends a run's events to the controller: numbered, batched, kept until acknowledged, and resent when lost.

Events may be added from any thread; everything else runs on the host's event loop.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Literal

from quintain.bus.base import Bus, Envelope
from quintain.contracts.remote_target import RUN_OUTPUT_TYPE, LogLine, RemoteFailure, RunItem, RunOutput, WireEvent
from quintain.errors import BusError
from quintain.target.ordering import Outbox
from quintain.target.serialization import require_item_size
from quintain.timings import DEFAULT_TIMINGS, Timings
from quintain.topology import RUN

log = logging.getLogger(__name__)

#: Limits of one message, in items and in characters. A target that emits without a pause holds its interpreter's lock,
#: and each message needs it several times: few large messages are sent much sooner than many small ones.
MAX_ITEMS_PER_MESSAGE = 1024
MAX_CHARACTERS_PER_MESSAGE = 1_000_000

#: The number of publishes that run at the same time; what is added meanwhile goes into the next message.
MAX_CONCURRENT_SENDS = 2

#: Limits of what the controller has not acknowledged yet, in items and in characters. At either limit
#: `EventSender.send` blocks, so that a fast target cannot fill the memory of the host or of the controller.
MAX_UNACKNOWLEDGED_ITEMS = 10_000
MAX_UNACKNOWLEDGED_CHARACTERS = 64_000_000

#: Message of the `RuntimeError` that a target gets when it emits after the end of its run.
RUN_OVER_MESSAGE = "Cannot emit to a closed trajectory: the run is over"


class EventSender:
    """Ordered, reliable stream of one run's events to its controller.

    Items are numbered from 1. The controller acknowledges the highest number up to which it has everything; items that
    stay unacknowledged for `Timings.host_resend_seconds` are sent again.
    """

    def __init__(self, bus: Bus, run_id: str, run_key: str, timings: Timings = DEFAULT_TIMINGS) -> None:
        self._bus, self._run_id, self._run_key, self._timings = bus, run_id, run_key, timings
        self._loop = asyncio.get_running_loop()
        # `send` runs in the target's context (trace, log context). The flush must run in the host's context instead, so
        # that the host's own log records are not taken for the target's.
        self._context = contextvars.copy_context()
        self._outbox: Outbox[RunItem] = Outbox()
        self._characters = 0
        self._room_available = threading.Condition()
        self._flush_scheduled = self._is_stopped = False
        self._send_tasks: set[asyncio.Task[None]] = set()
        self._acknowledged_at = self._loop.time()
        self._all_acknowledged = asyncio.Event()
        self._heartbeat_task = self._loop.create_task(self._send_heartbeats())

    def send(
        self,
        kind: Literal["emit", "send", "log"],
        *,
        event: WireEvent | None = None,
        line: LogLine | None = None,
        on_numbered: Callable[[int], None] | None = None,
    ) -> None:
        """Add an item to the stream, from any thread except the host's own; block while too much is unacknowledged.

        ``event`` is set for the kinds ``emit`` and ``send``, ``line`` for ``log``. ``on_numbered`` is called with the
        item's number before the item can be sent. Raises `RuntimeError` once the run is over, and `ValueError` for an
        event of more than `MAX_RUN_ITEM_BYTES`.
        """
        size = event_size(event)
        if event is not None:
            require_item_size(event, size, event.kind)
        with self._room_available:
            self._room_available.wait_for(self._has_room)
            if self._is_stopped:
                raise RuntimeError(RUN_OVER_MESSAGE)
            number = self._outbox.last_number + 1
            self._outbox.put(RunItem.unchecked(seq=number, what=kind, event=event, log=line, failure=None))
            self._characters += size
            if on_numbered is not None:
                on_numbered(number)
            self._schedule_flush()

    def send_end(self, failure: RemoteFailure | None) -> None:
        """Add the item that ends the run; called on the host's loop, never blocks.

        ``failure`` is the target's exception, None where the run succeeded.
        """
        with self._room_available:
            self._outbox.put(RunItem(seq=self._outbox.last_number + 1, what="end", failure=failure))
            self._schedule_flush()

    def acknowledge(self, sequence_number: int, *, resend: bool) -> None:
        """Drop all items up to this number, which the controller has received.

        With ``resend``, send all later items again.
        """
        self._acknowledged_at = self._loop.time()
        with self._room_available:
            self._characters -= sum(event_size(item.event) for item in self._outbox.acknowledge(sequence_number))
            if resend:
                self._outbox.requeue_unacknowledged()
            self._room_available.notify_all()
        self._flush()
        if self._outbox.unacknowledged_count == 0:
            self._all_acknowledged.set()

    async def wait_acknowledged(self) -> None:
        """Wait until the controller has acknowledged every item."""
        while self._outbox.unacknowledged_count:
            self._all_acknowledged.clear()
            await self._all_acknowledged.wait()

    def stop(self) -> None:
        """Refuse further items and wake the threads that are blocked in `send`; these raise `RuntimeError`."""
        with self._room_available:
            self._is_stopped = True
            self._room_available.notify_all()

    async def close(self) -> None:
        """Stop, and cancel the heartbeats and the publishes that still run."""
        self.stop()
        tasks = (self._heartbeat_task, *self._send_tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _has_room(self) -> bool:
        has_space = (
            self._outbox.unacknowledged_count < MAX_UNACKNOWLEDGED_ITEMS
            and self._characters < MAX_UNACKNOWLEDGED_CHARACTERS
        )
        return has_space or self._is_stopped

    def _schedule_flush(self) -> None:
        """Schedule one flush on the host's loop, unless one is scheduled already. The caller holds the lock."""
        if not self._flush_scheduled and not self._is_stopped:
            self._flush_scheduled = True
            self._loop.call_soon_threadsafe(self._flush, context=self._context)

    def _flush(self) -> None:
        while len(self._send_tasks) < MAX_CONCURRENT_SENDS and (batch := self._take_batch()):
            task = self._loop.create_task(self._publish(batch))
            self._send_tasks.add(task)
            task.add_done_callback(self._on_sent)

    def _take_batch(self) -> list[RunItem]:
        with self._room_available:
            self._flush_scheduled = False
            batch: list[RunItem] = []
            size = 0
            while not self._is_stopped and len(batch) < MAX_ITEMS_PER_MESSAGE and size < MAX_CHARACTERS_PER_MESSAGE:
                item = self._outbox.take(1)
                if not item:
                    break
                batch.append(item[0][1])
                size += event_size(item[0][1].event)
            return batch

    def _on_sent(self, task: asyncio.Task[None]) -> None:
        self._send_tasks.discard(task)
        if self._outbox.has_unsent:
            self._flush()

    async def _send_heartbeats(self) -> None:
        while True:
            await asyncio.sleep(self._timings.host_heartbeat_seconds)
            await self._publish([])
            silent_seconds = self._loop.time() - self._acknowledged_at
            if self._outbox.unacknowledged_count and silent_seconds > self._timings.host_resend_seconds:
                with self._room_available:
                    self._outbox.requeue_unacknowledged()
                self._flush()

    async def _publish(self, items: Sequence[RunItem]) -> None:
        body = RunOutput(run_id=self._run_id, said=self._outbox.last_sent, items=list(items)).to_wire()
        # Not persistent: a run ends with its host, and items that the broker loses are resent.
        envelope = Envelope(body=body, type=RUN_OUTPUT_TYPE, persistent=False)
        try:
            await self._bus.publish(RUN, self._run_key, envelope, timeout_seconds=self._timings.host_lost_seconds)
        except BusError as error:
            # The items stay in the outbox and are resent: either the controller's queue comes back or the lease ends.
            log.warning("The events of a run could not be sent and will be resent: %s", error.message)


def event_size(event: WireEvent | None) -> int:
    """Return the approximate size of an event on the wire, in characters; 0 for None."""
    if event is None:
        return 0
    extra = sum(map(len, event.extra.values())) if event.extra else 0
    return len(event.content or "") + len(event.request or "") + len(event.answer or "") + extra
