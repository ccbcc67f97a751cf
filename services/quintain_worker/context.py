"""What the delivery handlers of one worker share."""

from __future__ import annotations

from quintain.bus.base import Bus
from quintain.rpc.server import ReplyGroups
from quintain.runtime.concurrency import ByteBudget, RandomIds, TimeLimits
from quintain.timings import Clock, Timings
from quintain_worker.admissions import AdmissionClient
from quintain_worker.completion import Completion
from quintain_worker.inflight import InflightCalls
from quintain_worker.ledger_port import LedgerPort
from quintain_worker.streaming import EXPIRATION_SECONDS
from quintain_worker.target import WorkerMetrics

#: How many bytes of replies of more than `LARGE_REPLY_BYTES` are settled and sent at a time. Until its message is
#: confirmed, a reply takes several times its size; others wait as bytes.
LARGE_REPLIES_BYTES = 32 * 1024 * 1024


class WorkerContext:
    """Everything that the delivery handlers of one worker share."""

    def __init__(  # noqa: PLR0913 -- everything that they share
        self,
        bus: Bus,
        ledger: LedgerPort,
        clock: Clock,
        incarnation: str,
        metrics: WorkerMetrics,
        timings: Timings,
        *,
        slots: int,
    ) -> None:
        """Create the shared state of a worker that takes up to ``slots`` deliveries at a time."""
        self.bus, self.clock = bus, clock
        self.admission_client = AdmissionClient(ledger, clock, incarnation, timings)
        self.metrics, self.timings = metrics, timings
        self.attempt_ids = RandomIds()
        self.inflight = InflightCalls(bus, slots)
        self.incarnation, self.time_limits = incarnation, TimeLimits()
        self.completion = Completion(bus, ledger, incarnation, timings)
        self.chunk_groups = ReplyGroups(bus, int(EXPIRATION_SECONDS * 1000))
        self.large_replies = ByteBudget(LARGE_REPLIES_BYTES)
