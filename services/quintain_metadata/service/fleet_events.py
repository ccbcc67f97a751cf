"""Publishes what happens in the fleet on ``quintain.events``, from one task that no call waits for.

Every half second the task publishes what became of calls and what changed in the ledger since its last reading. The
ledger is read so often only while somebody listens, which the broker tells: a message that no queue is bound for comes
back. Events are transient, and one that cannot be published is dropped and counted. Decision 17 has the reasons.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Iterable, Sequence

from quintain.bus.base import Bus, Envelope
from quintain.contracts.fleet import FleetChanged, FleetState
from quintain.errors import BudgetUnavailable, BusError, Fault, Unroutable
from quintain.rpc.server import log_defect
from quintain.topology import EVENTS, FLEET_KEY, target_queue
from quintain_metadata.call_counter import CallCounter
from quintain_metadata.ledger.base import Ledger
from quintain_metadata.rules.fleet import FleetEvent, find_changes, find_events, read_fleet

log = logging.getLogger(__name__)

#: How often events are published, in seconds.
INTERVAL_SECONDS = 0.5

#: How often the ledger is read while nobody listens to the fleet: who listens to single events hears them so late.
UNHEARD_SECONDS = 5.0

#: Readings of the ledger take at most this part of the time. What one takes is the shortest of the last few: a longer
#: one has waited for something else, and a machine with much else to do would make all pages old.
READING_SHARE, LAST_READINGS = 1 / 50, 5

#: How many targets' queues are counted in one interval; the others have their turn in the next ones.
MAX_COUNTED_QUEUES = 50

#: How many events of one interval are published at most, besides the one of the whole fleet.
MAX_EVENTS = 200

#: An event that the broker has not taken after this time is dropped, in seconds.
PUBLISH_SECONDS = 2.0


class FleetEvents:
    """Publishes the events of one metadata service."""

    def __init__(self, bus: Bus, ledger: Ledger, call_counter: CallCounter, service_id: str) -> None:
        self._bus, self._ledger, self._call_counter, self._service_id = bus, ledger, call_counter, service_id
        self._last: FleetState | None = None
        self._published_at = time.monotonic()
        self._is_heard = False
        self._lost_events = 0
        self._next_reading_at = -math.inf
        self._reading_seconds: deque[float] = deque(maxlen=LAST_READINGS)
        self._next_queue = 0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to publish."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="fleet events")

    async def stop(self) -> None:
        """Stop; what was not published is lost."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL_SECONDS)
            try:
                await self._publish_changes()
            except (BudgetUnavailable, BusError, Fault) as error:
                log.debug("No events for now: %s", error.message)
            except Exception as error:
                # Nothing may end the task, or the fleet would look as if nothing happened any more.
                log_defect(error, "publishing events")

    async def _publish_changes(self) -> None:
        before = self._last
        after = await self._read() or before
        changed = FleetChanged(service="", now=0, interval_ms=0)
        if before is not None and after is not None:
            changed = find_changes(before, after)
        self._last = after
        now = time.monotonic()
        event = changed.model_copy(
            update={
                "service": self._service_id,
                "now": await self._ledger.now(),
                "interval_ms": int((now - self._published_at) * 1000),
                "calls": self._call_counter.take(),
                "queued": await self._count_queued(),
                "lost_events": self._lost_events,
            }
        )
        self._published_at = now
        is_heard = await self._publish(FleetEvent(FLEET_KEY, FLEET_KEY, event))
        if is_heard and not self._is_heard:
            self._next_reading_at = -math.inf
        self._is_heard = is_heard
        if before is not None and after is not None:
            events = list(find_events(before, after, changed))
            self._lost_events += max(0, len(events) - MAX_EVENTS)
            await asyncio.gather(*(self._publish(each) for each in events[:MAX_EVENTS]))

    async def _read(self) -> FleetState | None:
        """Read the ledger if it is time to."""
        started_at = time.monotonic()
        if started_at < self._next_reading_at:
            return None
        self._next_reading_at = started_at + UNHEARD_SECONDS
        state = await self._ledger.transact(lambda moment: read_fleet(moment.now))
        ended_at = time.monotonic()
        self._reading_seconds.append(ended_at - started_at)
        self._next_reading_at = ended_at + pause_seconds(self._reading_seconds, is_heard=self._is_heard)
        return state

    async def _count_queued(self) -> dict[str, int]:
        """Return how many messages wait in the queues of the targets whose turn it is; none while nobody listens."""
        targets = [target.name for target in self._last.targets] if self._last is not None and self._is_heard else []
        turn = _turn(targets, self._next_queue)
        self._next_queue += len(turn)
        counts = await self._bus.count([target_queue(name) for name in turn])
        return {name: counts[queue].messages for name in turn if (queue := target_queue(name).name) in counts}

    async def _publish(self, event: FleetEvent) -> bool:
        """Publish an event; returns whether a queue is bound for it."""
        envelope = Envelope(body=event.body.to_wire(), type=event.type, persistent=False)
        try:
            await self._bus.publish(EVENTS, event.key, envelope, timeout_seconds=PUBLISH_SECONDS)
        except Unroutable:
            return False
        except BusError:
            self._lost_events += 1
        return True


def pause_seconds(last_readings: Iterable[float], *, is_heard: bool) -> float:
    """The pause after a reading; what the last ones took is in seconds."""
    return max(min(last_readings) / READING_SHARE, 0 if is_heard else UNHEARD_SECONDS)


def _turn(names: Sequence[str], start: int) -> list[str]:
    """The next names of a list that is read in a circle, at most `MAX_COUNTED_QUEUES`."""
    return [names[(start + offset) % len(names)] for offset in range(min(len(names), MAX_COUNTED_QUEUES))]
