"""What one run says, on its way to the controller: numbered, batched, kept until it was heard, sent again when lost.

Items may be put in from any thread; everything else happens on the host's loop.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Literal

from quintain.bus.base import Bus, Envelope
from quintain.contracts.hosted import (
    RUN_SAYS,
    LogLine,
    RemoteFailure,
    RunSays,
    Said,
    WireEvent,
)
from quintain.errors import BusError
from quintain.target.sequence import Outbox
from quintain.timings import DEFAULT_TIMINGS, Timings
from quintain.topology import RUN

log = logging.getLogger(__name__)

#: One message carries so many items at most, or so many characters, and so many messages are under way at once.
MOST_ITEMS = 128
MOST_CHARACTERS = 1_000_000
LANES = 4

#: So much may wait to be heard, in items and in characters; whoever says more waits too, so that a fast target
#: cannot fill the memory, here or at its controller.
MOST_UNHEARD = 10_000
MOST_UNHEARD_CHARACTERS = 64_000_000

#: No single event may be larger, in characters: the broker refuses a message of 16 MiB.
MOST_EVENT_CHARACTERS = 4_000_000

#: What a target is told that speaks after its run.
OVER = "Cannot emit to a closed trajectory: the run is over"


class Telling:
    """One run's way out."""

    def __init__(self, bus: Bus, run_id: str, run_key: str, timings: Timings = DEFAULT_TIMINGS) -> None:
        self._bus, self._run_id, self._run_key, self._timings = bus, run_id, run_key, timings
        self._loop = asyncio.get_running_loop()
        # Whoever says something wakes this loop in this context, not in the target's: what the host logs then is
        # not the target's to tell.
        self._context = contextvars.copy_context()
        self._outbox: Outbox[Said] = Outbox()
        self._characters = 0
        self._room = threading.Condition()
        self._woken = self._over = False
        self._sending: set[asyncio.Task[None]] = set()
        self._heard_at = self._loop.time()
        self._quiet = asyncio.Event()
        self._beating = self._loop.create_task(self._beat())

    def say(
        self,
        what: Literal["emit", "send", "log"],
        *,
        event: WireEvent | None = None,
        line: LogLine | None = None,
        numbered: Callable[[int], None] | None = None,
    ) -> None:
        """Take an item in, from any thread but the host's own; waits where too much is unheard.

        ``numbered`` hears the item's number before anybody else can. Raises `RuntimeError` once the run is over, and
        `ValueError` for an event that is too large to be sent.
        """
        weight = characters(event)
        if weight > MOST_EVENT_CHARACTERS:
            raise ValueError(
                f"{event.kind if event else what} has {weight:,} characters, and {MOST_EVENT_CHARACTERS:,} is the most "
                "that crosses: say where it is instead"
            )
        with self._room:
            self._room.wait_for(self._has_room)
            if self._over:
                raise RuntimeError(OVER)
            number = self._outbox.put(Said(seq=self._outbox.last + 1, what=what, event=event, log=line))
            self._characters += weight
            if numbered is not None:
                numbered(number)
            self._wake()

    def end(self, failure: RemoteFailure | None) -> None:
        """Say that the run is over, on the host's loop; that never waits."""
        with self._room:
            self._outbox.put(Said(seq=self._outbox.last + 1, what="end", failure=failure))
            self._wake()

    def hear(self, number: int, *, again: bool) -> None:
        """The controller has everything up to this number; ``again``: and misses what follows."""
        self._heard_at = self._loop.time()
        with self._room:
            self._characters -= sum(characters(said.event) for said in self._outbox.heard(number))
            if again:
                self._outbox.again()
            self._room.notify_all()
        self._flush()
        if self._outbox.unheard == 0:
            self._quiet.set()

    async def ended(self) -> None:
        """Wait until everything said was heard."""
        while self._outbox.unheard:
            self._quiet.clear()
            await self._quiet.wait()

    def stop(self) -> None:
        """Take nothing in any more, and let those who wait for room go."""
        with self._room:
            self._over = True
            self._room.notify_all()

    async def close(self) -> None:
        """Say no more."""
        self.stop()
        ending = (self._beating, *self._sending)
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)

    def _has_room(self) -> bool:
        room = self._outbox.unheard < MOST_UNHEARD and self._characters < MOST_UNHEARD_CHARACTERS
        return room or self._over

    def _wake(self) -> None:
        """Have the host's loop send what there is: once, however much is said until it does. The lock is held."""
        if not self._woken and not self._over:
            self._woken = True
            self._loop.call_soon_threadsafe(self._flush, context=self._context)

    def _flush(self) -> None:
        while len(self._sending) < LANES and (batch := self._take()):
            task = self._loop.create_task(self._send(batch))
            self._sending.add(task)
            task.add_done_callback(self._sent)

    def _take(self) -> list[Said]:
        with self._room:
            self._woken = False
            taken: list[Said] = []
            weight = 0
            while not self._over and len(taken) < MOST_ITEMS and weight < MOST_CHARACTERS:
                item = self._outbox.take(1)
                if not item:
                    break
                taken.append(item[0][1])
                weight += characters(item[0][1].event)
            return taken

    def _sent(self, task: asyncio.Task[None]) -> None:
        self._sending.discard(task)
        if self._outbox.waiting:
            self._flush()

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._timings.host_heartbeat_seconds)
            await self._send([])
            silent_seconds = self._loop.time() - self._heard_at
            if self._outbox.unheard and silent_seconds > self._timings.host_resend_seconds:
                with self._room:
                    self._outbox.again()
                self._flush()

    async def _send(self, items: Sequence[Said]) -> None:
        body = RunSays(run_id=self._run_id, said=self._outbox.sent, items=list(items)).to_wire()
        # Not persistent: no run survives its host, and what a broker loses is sent again.
        envelope = Envelope(body=body, type=RUN_SAYS, persistent=False)
        try:
            await self._bus.publish(RUN, self._run_key, envelope, timeout=self._timings.host_lost_seconds)
        except BusError as error:
            # It is kept, and goes again: the controller's queue may come back, or the lease ends.
            log.warning("What a run says could not be sent yet: %s", error.message)


def characters(event: WireEvent | None) -> int:
    """About how much an event holds."""
    if event is None:
        return 0
    extra = sum(map(len, event.extra.values())) if event.extra else 0
    return len(event.content or "") + len(event.request or "") + len(event.answer or "") + extra
