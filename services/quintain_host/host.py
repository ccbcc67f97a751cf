"""The host: a fixed number of lease slots for one target on one bus, and what a lease leaves behind in its process."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import secrets
import socket
import threading
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from quintain.bus.base import Bus
from quintain.contracts.hosting import HostDescribed
from quintain.contracts.service_card import ServedTarget, ServiceCard
from quintain.fleet.beats import ServiceIdentity, send_beats
from quintain.programs.processes import ProcessMark
from quintain.runtime.concurrency import cancel_and_wait
from quintain.timings import DEFAULT_TIMINGS, Timings
from quintain.topology import host_topology
from quintain_host.counters import HostCounters
from quintain_host.instances import InstanceFactory
from quintain_host.run import RunLogHandler
from quintain_host.slot import BOOT_SECONDS, LeaseSlot

log = logging.getLogger(__name__)


def host_card(identity: ServiceIdentity, bus: Bus, name: str, *, slots: int, in_flight: int) -> ServiceCard:
    """Build the card of a host: ``in_flight`` of its ``slots`` are leased out."""
    served = ServedTarget(name=name, kind="leased", slots=slots, in_flight=in_flight)
    return identity.card(targets=[served], slots=slots, in_flight=in_flight, broker_reconnects=bus.reconnects)


class Host:
    """Serves leases of one target: each of its slots holds at most one leased instance at a time.

    ``fingerprint`` is that of the factory (`factory_fingerprint`), or None if it is not known. ``boot_seconds`` is how
    long the factory may take. ``after_lease`` is called after each lease and returns whether this process must end.
    """

    def __init__(  # noqa: PLR0913 -- a composition root
        self,
        bus: Bus,
        name: str,
        factory: InstanceFactory,
        slots: int,
        counters: HostCounters | None = None,
        *,
        fingerprint: str | None = None,
        boot_seconds: float = BOOT_SECONDS,
        after_lease: Callable[[], Awaitable[bool]] | None = None,
        timings: Timings = DEFAULT_TIMINGS,
    ) -> None:
        self._bus, self._name, self._timings = bus, name, timings
        self.host_id = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        self._identity = ServiceIdentity("host", self.host_id)
        #: Set once a target blocked its thread beyond the end of its lease, or ``after_lease`` said so. In the first
        #: case the slot goes on with a new thread; a process that runs a single slot can exit and be started again.
        self.must_end = asyncio.Event()
        self.counters = HostCounters() if counters is None else counters
        description = HostDescribed(host_id=self.host_id, fingerprint=fingerprint)
        self._slots = [
            LeaseSlot(
                *(bus, name, factory, description, self.must_end.set, self.counters),
                boot_seconds=boot_seconds,
                after_lease=after_lease,
                timings=timings,
            )
            for _ in range(slots)
        ]
        self._slot_tasks: list[asyncio.Task[None]] = []
        self._beat_task: asyncio.Task[None] | None = None
        self._log_handler = RunLogHandler()

    async def start(self) -> None:
        """Declare the topology and start consuming lease requests in every slot."""
        await self._bus.declare(host_topology(self._name))
        logging.getLogger().addHandler(self._log_handler)
        loop = asyncio.get_running_loop()
        self._slot_tasks = [
            loop.create_task(slot.serve(), name=f"slot {number}") for number, slot in enumerate(self._slots)
        ]
        self._beat_task = loop.create_task(send_beats(self._bus, self.card, self._timings), name="heartbeats")

    def card(self) -> ServiceCard:
        """Return the card that the host sends in its heartbeats."""
        leased = sum(slot.lease is not None for slot in self._slots)
        return host_card(self._identity, self._bus, self._name, slots=len(self._slots), in_flight=leased)

    async def check(self) -> str | None:
        """Return why the host is not ready, or None: a slot must either consume lease requests or serve one."""
        closed = sum(not slot.is_open for slot in self._slots)
        return f"{closed} of {len(self._slots)} slots do not consume lease requests" if closed else None

    async def stop(self, grace_seconds: float = 30.0) -> None:
        """Take no more leases, and wait up to ``grace_seconds`` for the active ones to end.

        Instances whose leases have not ended by then are torn down.
        """
        for slot, task in zip(self._slots, self._slot_tasks, strict=True):
            if not slot.drain():
                task.cancel()
        running = sum(slot.lease is not None for slot in self._slots)
        if running and grace_seconds:
            log.warning("Stopping: %d active leases may go on for %.0f s", running, grace_seconds)
        if self._slot_tasks:
            _, unfinished = await asyncio.wait(self._slot_tasks, timeout=grace_seconds)
            for task in unfinished:
                # Cancel only once: a second cancellation would interrupt the teardown.
                if not task.cancelling():
                    task.cancel()
        await asyncio.gather(*self._slot_tasks, return_exceptions=True)
        await asyncio.gather(*(slot.wait_closed() for slot in self._slots))
        await cancel_and_wait(self._beat_task)
        logging.getLogger().removeHandler(self._log_handler)


#: By how much a process may have grown since it was ready, in bytes of resident memory.
MAX_GROWTH_BYTES = 256 * 1024 * 1024

#: How long the threads of a target may take to end after its teardown, in seconds.
THREAD_SECONDS = 1.0
_POLL_SECONDS = 0.01

#: The names of the threads of an event loop's own pool begin so. The loop keeps them, a few at most, for the next
#: lookup of a host's name or the next ``asyncio.to_thread``; they hold nothing of a lease.
LOOP_POOL_PREFIX = "asyncio_"

#: How many threads or processes are named.
MAX_NAMED = 5


class Leftovers:
    """Finds what is there beyond what was there when this was created; ``env`` is the environment of this process."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._mark = ProcessMark(env, inherited=True)
        self._processes = self._mark.find()
        self._threads = set(threading.enumerate())
        self._memory_bytes = resident_bytes()

    async def end(self) -> bool:
        """End the processes that are left, and log what else is. Returns whether anything was left."""
        # Those that were started here since, also those of another session.
        left = [_named("processes, which were killed", self._mark.kill(self._processes))]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(THREAD_SECONDS):
                while self._new_threads():  # noqa: ASYNC110 -- a thread's end is no event of this loop
                    await asyncio.sleep(_POLL_SECONDS)
        left.append(_named("threads", self._new_threads()))
        if self._growth_bytes() > MAX_GROWTH_BYTES:
            gc.collect()
            if (growth := self._growth_bytes()) > MAX_GROWTH_BYTES:
                left.append(f"{growth / 1024**2:.0f} MiB of memory")
        words = "; ".join(filter(None, left))
        if words:
            log.warning("The target left this behind at the end of its lease: %s. Its process is replaced", words)
        return bool(words)

    def _new_threads(self) -> list[str]:
        names = (thread.name for thread in set(threading.enumerate()) - self._threads)
        return sorted(name for name in names if not name.startswith(LOOP_POOL_PREFIX))

    def _growth_bytes(self) -> int:
        return resident_bytes() - self._memory_bytes


def resident_bytes() -> int:
    """Return the resident memory of this process; 0 where the system does not tell it below ``/proc``."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def _named(kind: str, names: list[str]) -> str:
    further = ", and others" if len(names) > MAX_NAMED else ""
    return f"{len(names)} {kind} ({', '.join(names[:MAX_NAMED])}{further})" if names else ""
