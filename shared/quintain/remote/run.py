"""One run of a leased instance, from its controller's side: what goes over the line.

What the run says arrives on the line, in whatever order and as often as the connection makes of it, and is handed to
the application's loop once and in order. A response goes back when it is there; several may be asked for at once.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable

from quintain.bus.base import Bus, Consumer, Delivery, Envelope
from quintain.contracts.hosted import RUN_HEARS, Answered, RunHears, RunSays, Said, WireResponse
from quintain.errors import BadRequest, BusError
from quintain.remote.lease import RemoteLease
from quintain.service import Settled, forgotten
from quintain.target.sequence import Inbox
from quintain.topology import HOST, run_topology

log = logging.getLogger(__name__)

PREFETCH = 64
#: So many deliveries are acknowledged to the broker at a time: what comes twice is dropped by its number.
ACK_ITEMS = 16

#: So many messages to the host are under way at once; what is to be said meanwhile travels together.
LANES = 4

#: How far a run was heard is said together with responses; where there are none, after so many items or so many
#: seconds.
ACKNOWLEDGE_ITEMS = 64
ACKNOWLEDGE_SECONDS = 0.25


class Ear:
    """The queue that a lease's runs speak into, one run after another."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._topology = run_topology(secrets.token_urlsafe(24))
        self.key = self._topology.bindings[0].key
        self._consumer: Consumer | None = None
        self._listening: Listening | None = None
        self._settled = Settled(ACK_ITEMS)

    async def open(self, listening: Listening) -> None:
        """Hear this run from now on, and no other; the queue is made for the first."""
        self._listening = listening
        if self._consumer is None:
            await self._bus.declare(self._topology)
            self._consumer = await self._bus.consume(self._topology.queues[0], self._on_says, prefetch=PREFETCH)

    async def close(self) -> None:
        """Hear no more."""
        if self._consumer is not None:
            await self._consumer.drain(0)
            await forgotten(self._bus, self._topology)

    async def _on_says(self, delivery: Delivery) -> None:
        try:
            says = RunSays.from_wire(delivery.body)
        except BadRequest as unreadable:
            log.warning("A run said what cannot be read: %s", unreadable.message)
            await delivery.dead_letter()
            return
        # What an earlier run still says, sent again, is of no use to anybody.
        if self._listening is not None and self._listening.run_id == says.run_id:
            self._listening.take(says)
        await self._settled.add(delivery)


class Listening:
    """The line's side of one run: what it says comes in, what it is to hear goes out."""

    def __init__(self, lease: RemoteLease, arrived: Callable[[list[Said]], None]) -> None:
        self._lease, self._arrived = lease, arrived
        self._bus: Bus = lease.bus
        self.run_id = secrets.token_urlsafe(24)
        #: The last item that was dealt with; whoever deals with them says so here, from any thread. Only that much
        #: is acknowledged, so that a fast target waits for a slow controller.
        self.dealt_with = 0
        self._inbox: Inbox[Said] = Inbox()
        self._acknowledged = 0
        self._answers: list[Answered] = []
        self._again = self._due = self._woken = False
        self._loop = asyncio.get_running_loop()
        self._hearing: set[asyncio.Task[None]] = set()
        self._ticking = self._loop.create_task(self._tick())

    async def close(self) -> None:
        """Say the last that is to be heard."""
        ending = (self._ticking, *self._hearing)
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        if not self._lease.gone:
            self._due = True
            await self._hear()

    def respond(self, number: int, response: WireResponse) -> None:
        """Send a response, with whatever else is ready to go."""
        self._answers.append(Answered(seq=number, response=response))
        self._wake()

    def take(self, says: RunSays) -> None:
        """Take in what the run says."""
        self._lease.heard()
        ready: list[Said] = []
        for said in says.items:
            ready += self._inbox.put(said.seq, said)
        if ready:
            self._arrived(ready)
        if not says.items and self._inbox.lacks(says.said):
            # A heartbeat tells of more than has come: it was lost on the way.
            self._again = True
        if self.dealt_with - self._acknowledged >= ACKNOWLEDGE_ITEMS:
            self._due = True
            self._wake()

    def _wake(self) -> None:
        """Say what there is to say, once this turn of the loop has made it."""
        if not self._woken and len(self._hearing) < LANES:
            self._woken = True
            task = self._loop.create_task(self._hear())
            self._hearing.add(task)
            task.add_done_callback(self._heard)

    def _heard(self, task: asyncio.Task[None]) -> None:
        self._hearing.discard(task)
        if self._answers and not task.cancelled():
            self._wake()

    async def _tick(self) -> None:
        last, beat_seconds = 0.0, self._lease.timings.host_heartbeat_seconds
        while True:
            await asyncio.sleep(ACKNOWLEDGE_SECONDS)
            due = self._acknowledged != self.dealt_with or self._again or self._loop.time() - last > beat_seconds
            if due or self._answers:
                last = self._loop.time()
                self._due = True
                self._wake()

    async def _hear(self) -> None:
        self._woken = False
        if not self._answers and not self._due:
            return
        answers, self._answers = self._answers, []
        again, self._again = self._again, False
        self._due = False
        heard = self.dealt_with
        said = RunHears(lease_id=self._lease.lease_id, run_id=self.run_id, heard=heard, again=again, answers=answers)
        # A response is said once, and must survive the broker; how far a run was heard is said again and again.
        envelope = Envelope(body=said.to_wire(), type=RUN_HEARS, persistent=bool(answers))
        try:
            timeout = self._lease.timings.host_heartbeat_seconds
            await self._bus.publish(HOST, self._lease.key, envelope, timeout=timeout)
        except BusError as error:
            # They go again with the next tick.
            self._answers = answers + self._answers
            log.warning("A run's host could not be told yet: %s", error.message)
            return
        self._acknowledged = max(self._acknowledged, heard)
