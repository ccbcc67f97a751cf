"""The messages of one run, on the controller side: receives the run's output in order and sends event replies.

Output may arrive out of order or repeatedly; it is passed to the application's loop once and in order. Several events
may await their replies at the same time.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable

from quintain.bus.base import Bus, Delivery, Envelope
from quintain.contracts.remote_target import RUN_INPUT_TYPE, EventReply, RunInput, RunItem, RunOutput, WireResponse
from quintain.errors import BadRequest, BusError
from quintain.remote.lease import RemoteLease
from quintain.rpc.private_queues import PrivateQueue
from quintain.rpc.server import AckBatcher
from quintain.target.interface import Inbox
from quintain.topology import HOST, run_topology

log = logging.getLogger(__name__)

PREFETCH = 64
#: Deliveries are acknowledged in batches of this size; redelivered items are dropped by their number.
ACK_BATCH = 16

#: Maximum number of concurrent publishes to the host; input that arrives meanwhile is sent in one message.
MAX_CONCURRENT_SENDS = 2

#: Acknowledgements are sent with responses, or, without responses, after so many items or so many seconds. A host keeps
#: ten times as many.
ACKNOWLEDGE_ITEMS = 1024
ACKNOWLEDGE_SECONDS = 0.25


#: No further response is added to a message of so many characters.
MAX_CHARACTERS_PER_MESSAGE = 1_000_000


class RunOutputQueue:
    """The queue for the output of runs, one run after another."""

    def __init__(self, bus: Bus) -> None:
        self._queue = PrivateQueue(bus, run_topology(secrets.token_urlsafe(24)), PREFETCH)
        self.key = self._queue.key
        self._channel: RunChannel | None = None
        self._ack_batcher = AckBatcher(ACK_BATCH)

    async def open(self, channel: RunChannel) -> None:
        """Pass the output of this run to its channel from now on; the queue is declared unless `prepare` did that."""
        self._channel = channel
        await self._queue.open(self._on_run_output)

    def prepare(self) -> None:
        """Begin to declare and to consume the queue, unless that has been done: a run need not wait for it then."""
        self._queue.prepare()

    async def release(self) -> None:
        """Acknowledge and drop what still comes of the last run."""
        self._channel = None
        await self._ack_batcher.flush()

    async def close(self) -> None:
        """Stop consuming and delete the queue."""
        await self._queue.close()

    async def _on_run_output(self, delivery: Delivery) -> None:
        if self._channel is None:
            # At once: the queue may be idle from now on, and a broker waits for an acknowledgement 30 minutes at most.
            await delivery.ack()
            return
        try:
            output = RunOutput.from_wire(delivery.body)
        except BadRequest as error:
            log.warning("A message with a run's output cannot be decoded: %s", error.message)
            await delivery.dead_letter()
            return
        # Output of an earlier run, sent again by the host, is dropped.
        if self._channel.run_id == output.run_id:
            self._channel.on_output(output)
        await self._ack_batcher.add(delivery)


class RunOutputQueues:
    """The queues for the output of one driver's runs: one that a target has returned serves the next target.

    Only `take` may be called on another thread than that of the connection's loop.
    """

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._idle: list[RunOutputQueue] = []
        self._is_closed = False

    def take(self) -> RunOutputQueue:
        """Return a queue for one target at a time, which need not be declared yet."""
        try:
            return self._idle.pop()
        except IndexError:
            return RunOutputQueue(self._bus)

    async def give_back(self, queue: RunOutputQueue) -> None:
        """Keep a queue for the next target."""
        await queue.release()
        if self._is_closed:
            await queue.close()
        else:
            self._idle.append(queue)

    async def close(self) -> None:
        """Delete the queues, also those that are still to be returned."""
        self._is_closed = True
        idle, self._idle = self._idle, []
        await asyncio.gather(*(queue.close() for queue in idle))


class RunChannel:
    """One run on the connection's loop: receives its output, and sends it responses and acknowledgements."""

    def __init__(self, lease: RemoteLease, on_items: Callable[[list[RunItem]], None]) -> None:
        self._lease, self._on_items = lease, on_items
        self._bus: Bus = lease.bus
        self.run_id = secrets.token_urlsafe(24)
        #: The number of the last item that was processed; set by the application from any thread. Only processed items
        #: are acknowledged, so that a fast target waits for a slow controller.
        self.last_processed = 0
        self._inbox: Inbox[RunItem] = Inbox()
        self._acknowledged = 0
        self._replies: list[EventReply] = []
        self._resend_requested = self._ack_due = self._send_scheduled = False
        self._loop = asyncio.get_running_loop()
        self._send_tasks: set[asyncio.Task[None]] = set()
        self._ack_task = self._loop.create_task(self._ack_periodically())

    async def close(self) -> None:
        """Send the last acknowledgement and stop."""
        ending = (self._ack_task, *self._send_tasks)
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        if not self._lease.ended:
            self._ack_due = True
            await self._send_input()

    def respond(self, responses: list[tuple[int, WireResponse]]) -> None:
        """Send responses to the items of these numbers, together with everything else that is waiting to be sent."""
        self._replies += [EventReply.unchecked(seq=number, response=response) for number, response in responses]
        self._schedule_send()

    @property
    def is_acknowledgement_due(self) -> bool:
        """Whether many items were processed since the last acknowledgement; may be read on any thread."""
        return self.last_processed - self._acknowledged >= ACKNOWLEDGE_ITEMS

    def send_acknowledgement(self) -> None:
        """Acknowledge what was processed."""
        self._ack_due = True
        self._schedule_send()

    def on_output(self, output: RunOutput) -> None:
        """Process a message with output: pass on the items that are in order."""
        self._lease.record_host_activity()
        ready: list[RunItem] = []
        for item in output.items:
            ready += self._inbox.put(item.seq, item)
        if ready:
            self._on_items(ready)
        if not output.items and self._inbox.is_missing(output.said):
            # The heartbeat's number is higher than that of the last item received: items were lost.
            self._resend_requested = True

    def _schedule_send(self) -> None:
        """Send once after the current iteration of the loop, so that everything it produces goes into one message."""
        if not self._send_scheduled and len(self._send_tasks) < MAX_CONCURRENT_SENDS:
            self._send_scheduled = True
            task = self._loop.create_task(self._send_input())
            self._send_tasks.add(task)
            task.add_done_callback(self._on_sent)

    def _on_sent(self, task: asyncio.Task[None]) -> None:
        self._send_tasks.discard(task)
        if self._replies and not task.cancelled():
            self._schedule_send()

    async def _ack_periodically(self) -> None:
        last_sent, beat_seconds = 0.0, self._lease.timings.host_heartbeat_seconds
        while True:
            await asyncio.sleep(ACKNOWLEDGE_SECONDS)
            due = (
                self._acknowledged != self.last_processed
                or self._resend_requested
                or self._loop.time() - last_sent > beat_seconds
            )
            if due or self._replies:
                last_sent = self._loop.time()
                self._ack_due = True
                self._schedule_send()

    def _take_replies(self) -> list[EventReply]:
        """Take what goes into one message, which the broker must not refuse for its size."""
        count = characters = 0
        while count < len(self._replies) and characters < MAX_CHARACTERS_PER_MESSAGE:
            characters += response_size(self._replies[count].response)
            count += 1
        taken, self._replies = self._replies[:count], self._replies[count:]
        return taken

    async def _send_input(self) -> None:
        self._send_scheduled = False
        if not self._replies and not self._ack_due:
            return
        replies = self._take_replies()
        resend, self._resend_requested = self._resend_requested, False
        self._ack_due = False
        acknowledged = self.last_processed
        run_input = RunInput(
            lease_id=self._lease.lease_id, run_id=self.run_id, heard=acknowledged, again=resend, answers=replies
        )
        # Responses are sent once, and must survive a broker restart; acknowledgements are repeated.
        envelope = Envelope(body=run_input.to_wire(), type=RUN_INPUT_TYPE, persistent=bool(replies))
        try:
            timeout = self._lease.timings.host_heartbeat_seconds
            await self._bus.publish(HOST, self._lease.key, envelope, timeout_seconds=timeout)
        except BusError as error:
            # They are sent again by `_ack_periodically`.
            self._replies = replies + self._replies
            log.warning("Input of a run could not be sent to its host yet: %s", error.message)
            return
        self._acknowledged = max(self._acknowledged, acknowledged)


def response_size(response: WireResponse) -> int:
    """Return the approximate size of a response on the wire, in characters."""
    extra = sum(map(len, response.extra.values())) if response.extra else 0
    failure = response.failure
    failed = 0 if failure is None else len(failure.message) + len(failure.traceback) + len(failure.arguments or "")
    return len(response.value or "") + extra + failed
