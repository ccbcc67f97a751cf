"""What the metadata service measures: Prometheus metrics, gauges of the ledger, its operations, and for its card what
became of the calls of the last five minutes.

Callers that retry while the ledger is out of reach log nothing themselves: an outage is logged once when it begins and
once when it ends. The log has the reason; the error that is raised has none, because it becomes a fault, and clients
must not learn the database's address.
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter, defaultdict, deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from operator import attrgetter

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily

from quintain.contracts.fleet import QuotaState, RegisteredTarget
from quintain.contracts.ledger import Admission, Settle
from quintain.contracts.money import to_dollars
from quintain.contracts.service_card import CallCounts, bucket_of
from quintain.contracts.session import SessionState
from quintain.errors import BudgetUnavailable
from quintain.observe.metrics import ServiceMetrics
from quintain.timings import DEFAULT_TIMINGS, Timings
from quintain_metadata.ledger import targets
from quintain_metadata.ledger.lifecycle import CallState
from quintain_metadata.ledger.usage import IS_NOT_COMMITTED
from quintain_metadata.store.base import Ledger, Moment, Operation, Returned, SqlProgram, execute, fetch_one

#: A session that has charged this percentage of its limit counts as nearly spent.
NEAR_LIMIT_PERCENT = 90


@dataclass(frozen=True, slots=True)
class LedgerGauges:
    """Sessions by state; calls in doubt and nearly spent sessions among the open ones; the registered targets."""

    sessions: Mapping[str, int] = field(default_factory=dict)
    in_doubt: int = 0
    near_limit: int = 0
    targets: tuple[RegisteredTarget, ...] = ()
    #: What root sessions that are open have spent, and so on, in US dollars.
    costs: Mapping[str, float] = field(default_factory=dict)
    #: When they were read, in milliseconds since the epoch.
    now: int = 0


#: The amounts of money of sessions.
_AMOUNTS = ("spent", "held", "reserved", "excess")


def read_gauges(moment: Moment) -> SqlProgram[LedgerGauges]:
    """Read the gauges. Calls are counted by the index of open sessions, never by a scan of all calls."""
    state_rows = yield from execute("SELECT state, count(*) FROM session GROUP BY state")
    in_doubt_row = yield from fetch_one(
        "SELECT count(*) FROM session JOIN call ON call.session_id = session.id AND call.state = ?"
        f" WHERE session.state = ? AND {IS_NOT_COMMITTED}",
        *(CallState.IN_DOUBT, SessionState.OPEN),
    )
    near_limit_row = yield from fetch_one(
        "SELECT count(*) FROM session WHERE state = ? AND max_calls > 0 AND used * 100 >= max_calls * ?",
        *(SessionState.OPEN, NEAR_LIMIT_PERCENT),
    )
    cost_row = yield from fetch_one(
        f"SELECT {', '.join(f'coalesce(sum(cost_{name}), 0)' for name in _AMOUNTS)} FROM session"
        " WHERE parent_id IS NULL AND state = ?",
        SessionState.OPEN,
    )
    registered = yield from targets.list_targets(moment.now)
    assert cost_row is not None
    assert in_doubt_row is not None
    assert near_limit_row is not None
    return LedgerGauges(
        {row[0]: row[1] for row in state_rows},
        in_doubt_row[0],
        near_limit_row[0],
        tuple(registered.targets),
        {name: to_dollars(int(amount)) for name, amount in zip(_AMOUNTS, cost_row, strict=True)},
        moment.now,
    )


#: How the decisions on admits are counted that are no fault; the others by their code.
GRANTED, REPLAYED = "granted", "replayed"

#: For how long calls are counted, and how long a slice of that time is, in seconds.
WINDOW_SECONDS, SLICE_SECONDS = 300.0, 10.0

#: The time over which rates are measured, in seconds, and the shortest one that gives a rate.
RATE_SECONDS, MIN_RATE_SECONDS = 60.0, 2.0


@dataclass(slots=True)
class CallSums:
    """The counts of one target over some time."""

    ended: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    wait: Counter[int] = field(default_factory=Counter)
    service: Counter[int] = field(default_factory=Counter)
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float = 0.0

    def add(self, other: CallSums, sign: int = 1) -> None:
        """Add the counts of some time, or with the sign -1 take those of an earlier time away."""
        self.ended += sign * other.ended
        for name in ("faults", "wait", "service"):
            counter: Counter[str | int] = getattr(self, name)
            for key, count in getattr(other, name).items():
                counter[key] += sign * count
                if not counter[key]:
                    del counter[key]
        self.input_tokens += sign * other.input_tokens
        self.output_tokens += sign * other.output_tokens
        # Sums of floats do not come back to 0 by themselves.
        self.cost_usd = max(0.0, self.cost_usd + sign * other.cost_usd) if self.ended else 0.0


class CallWindow:
    """The counts of one target's calls in the last `WINDOW_SECONDS`; times are in seconds of any clock that rises."""

    def __init__(self) -> None:
        self._slices: deque[tuple[float, CallSums]] = deque()
        self._sums = CallSums()

    def add(self, sums: CallSums, at: float) -> None:
        """Add what was counted until this time."""
        if not self._slices or at - self._slices[-1][0] >= SLICE_SECONDS:
            self._slices.append((at, CallSums()))
        self._slices[-1][1].add(sums)
        self._sums.add(sums)

    def counts(self, at: float, counted_seconds: float) -> CallCounts | None:
        """Return the counts of the window, and forget what is older; None if there are none."""
        while self._slices and at - self._slices[0][0] > WINDOW_SECONDS:
            self._sums.add(self._slices.popleft()[1], -1)
        if not self._slices:
            return None
        sums = self._sums
        return CallCounts(
            per_minute=self._per_minute(at, min(RATE_SECONDS, counted_seconds)),
            faults=dict(sums.faults),
            wait=dict(sums.wait),
            service=dict(sums.service),
            input_tokens=sums.input_tokens,
            output_tokens=sums.output_tokens,
            cost_usd=sums.cost_usd,
        )

    def _per_minute(self, at: float, seconds: float) -> float:
        if seconds < MIN_RATE_SECONDS:
            return 0.0
        ended = sum(sums.ended for began_at, sums in self._slices if at - began_at <= seconds + SLICE_SECONDS)
        return round(ended * 60 / seconds, 1)


class CallCounter:
    """Counts admissions and settles by target; ``began_at`` is the time since when."""

    def __init__(self, began_at: float) -> None:
        self._began_at = began_at
        self._new: defaultdict[str, CallSums] = defaultdict(CallSums)
        self._windows: defaultdict[str, CallWindow] = defaultdict(CallWindow)

    def count_admission(self, target: str, code: str) -> None:
        """Count the refusal of a call by its code; `GRANTED` and `REPLAYED` are none."""
        if code not in {GRANTED, REPLAYED}:
            self._new[target].faults[code] += 1

    def count_settle(self, target: str, item: Settle) -> None:
        """Count how an attempt ended, with the times, tokens and cost that its worker reported."""
        sums = self._new[target]
        sums.ended += 1
        if item.fault is not None:
            sums.faults[item.fault.code] += 1
        if item.queued_ms is not None and item.duration_ms is not None:
            sums.wait[bucket_of(item.queued_ms)] += 1
            sums.service[bucket_of(item.duration_ms)] += 1
            sums.cost_usd += item.cost_usd or 0.0
        if item.token_usage is not None:
            sums.input_tokens += item.token_usage.input
            sums.output_tokens += item.token_usage.output

    def counts(self, at: float) -> dict[str, CallCounts]:
        """Return the counts of the last `WINDOW_SECONDS`, of the targets that had calls."""
        new, self._new = self._new, defaultdict(CallSums)
        for target, sums in new.items():
            self._windows[target].add(sums, at)
        found = {name: window.counts(at, at - self._began_at) for name, window in self._windows.items()}
        for name in [name for name, counts in found.items() if counts is None]:
            del self._windows[name]
        return {name: counts for name, counts in found.items() if counts is not None}


class UsageRate:
    """How fast a counter rose in the last minute."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()

    def note(self, value: int, at: float) -> None:
        """Note the counter's value at this time."""
        self._samples.append((at, value))
        # The last sample before the minute stays: the minute begins with its value.
        while len(self._samples) > 1 and at - self._samples[1][0] >= RATE_SECONDS:
            self._samples.popleft()

    def per_minute(self, at: float) -> float:
        """Return the rise per minute, 0 while it was watched for too short a time."""
        began_at, first = self._samples[0]
        seconds = at - began_at
        return 0.0 if seconds < MIN_RATE_SECONDS else max(0, self._samples[-1][1] - first) * 60 / seconds


#: Histogram buckets of one ledger operation, in seconds.
LEDGER_SECONDS_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)

BATCH_SIZE_BUCKETS = (1, 2, 4, 8, 16, 32, 64)


#: How many quotas the metrics name at most: those of a key's models have names that no administrator chose.
MAX_QUOTAS = 500

#: The gauges of a quota, by the field of its state.
_QUOTA_GAUGES = {
    "limit": "A quota's calls at once, as found or set",
    "in_flight": "Calls that hold a place of the quota",
    "waiting": "Calls that wait for a place of the quota",
    "throttled": "Answers that asked to slow down since this service started",
}


class MetadataMetrics(ServiceMetrics):
    """Prometheus metrics of one metadata service."""

    def __init__(self) -> None:
        super().__init__("metadata")
        #: What the service's card says of calls.
        self.call_counter = CallCounter(time.monotonic())
        self._gauges = LedgerGauges()
        #: Returns what the quotas do at present.
        self.read_quotas: Callable[[], Iterable[QuotaState]] = tuple
        # `labels()` is cached: the label values are few, and every call updates several metrics.
        self._admits = cache(
            self.counter("admits", "Admits decided: granted, replayed, or a fault's code", "code").labels
        )
        self._settles = cache(self.counter("settles", "Settled attempts, by outcome", "outcome").labels)
        self._batches = cache(
            self.histogram("batch_size", "Admits or settles in one batch", "kind", buckets=BATCH_SIZE_BUCKETS).labels
        )
        self.ledger_seconds = self.histogram(
            "ledger_seconds",
            "Seconds of a ledger operation, or of several submitted together, with the commit",
            buckets=LEDGER_SECONDS_BUCKETS,
        )
        self.ledger_reachable = self.gauge("ledger_reachable", "Whether the ledger took its last operation")
        self.add_callback(self._collect_gauges)

    def count_admission(self, target: str, admission: Admission) -> None:
        """Count a decision on an admit."""
        code = admission.fault.code if admission.fault else REPLAYED if admission.is_replay else GRANTED
        self._admits(code).inc()
        self.call_counter.count_admission(target, code)

    def observe_admits(self, size: int) -> None:
        """Observe the size of a worker's batch of admits."""
        self._batches("admit").observe(size)

    def count_settles(self, items: Sequence[Settle]) -> None:
        """Count a worker's batch of settles, by their outcomes."""
        self._batches("settle").observe(len(items))
        for outcome, count in Counter(map(attrgetter("outcome"), items)).items():
            self._settles(outcome.value).inc(count)

    def set_gauges(self, gauges: LedgerGauges) -> None:
        """Export these values of the ledger until the next call."""
        self._gauges = gauges

    def _collect_gauges(self) -> Iterable[Metric]:
        gauges = self._gauges
        sessions = GaugeMetricFamily(self.full_name("sessions"), "Sessions, by state", labels=["state"])
        for state, count in gauges.sessions.items():
            sessions.add_metric([state], count)
        yield sessions
        yield GaugeMetricFamily(
            self.full_name("calls_in_doubt"), "Calls of open sessions that may have been billed", value=gauges.in_doubt
        )
        yield GaugeMetricFamily(
            self.full_name("sessions_nearly_spent"),
            "Open sessions that have charged nine tenths of their limit",
            value=gauges.near_limit,
        )
        costs = GaugeMetricFamily(self.full_name("cost_usd"), "US dollars of the open root sessions", labels=["amount"])
        for name, usd in gauges.costs.items():
            costs.add_metric([name], usd)
        yield costs
        running = GaugeMetricFamily(self.full_name("target_running"), "Calls that hold a grant", labels=["target"])
        limit = GaugeMetricFamily(
            self.full_name("target_limit"), "A registered target's calls at once", labels=["target"]
        )
        paused = GaugeMetricFamily(
            self.full_name("target_paused_seconds"), "Remaining time of the target's pause", labels=["target"]
        )
        for target in gauges.targets:
            running.add_metric([target.name], target.running)
            limit.add_metric([target.name], target.max_concurrency)
            paused.add_metric([target.name], max(0, (target.paused_until or 0) - gauges.now) / 1000)
        yield from (running, limit, paused)
        yield from self._collect_quotas()

    def _collect_quotas(self) -> Iterable[Metric]:
        """Return the figures of the quotas by their names, of `MAX_QUOTAS` at most."""
        figures = {state.name: state for state in islice(self.read_quotas(), MAX_QUOTAS)}
        for name, documentation in _QUOTA_GAUGES.items():
            family = GaugeMetricFamily(self.full_name(f"quota_{name}"), documentation, labels=["quota"])
            for quota, state in figures.items():
                family.add_metric([quota], getattr(state, name))
            yield family


log = logging.getLogger(__name__)

OUTAGE_MESSAGE = "The ledger is out of reach, try again; the metadata service's log has the reason"


class InstrumentedLedger:
    """A ledger that measures and logs the operations of the ledger it wraps.

    An outage is over when an operation succeeds and none has failed for `Timings.ledger_quiet_seconds`: with a full
    disk, operations that write nothing succeed while all others fail.
    """

    def __init__(
        self, ledger: Ledger, metrics: MetadataMetrics | None = None, timings: Timings = DEFAULT_TIMINGS
    ) -> None:
        self._ledger, self._metrics, self._timings = ledger, metrics or MetadataMetrics(), timings
        self._failed_at: float | None = None
        self._metrics.ledger_reachable.set(1)
        self.kind, self.leadership = ledger.kind, ledger.leadership
        self.lease_expiry, self.close = ledger.lease_expiry, ledger.close

    async def transact(self, operation: Operation[Returned]) -> Returned:
        """Run one operation (`Ledger.transact`)."""
        return await self._run(self._ledger.transact, operation)

    async def read(self, operation: Operation[Returned]) -> Returned:
        """Run one operation that only reads (`Ledger.read`)."""
        return await self._run(self._ledger.read, operation)

    async def _run(
        self, run: Callable[[Operation[Returned]], Awaitable[Returned]], operation: Operation[Returned]
    ) -> Returned:
        started_at = time.perf_counter()
        try:
            return await run(operation)
        except BudgetUnavailable as unavailable:
            started_at = math.inf
            raise self._note_failure(unavailable) from None
        finally:
            if started_at < math.inf:
                self._metrics.ledger_seconds.observe(time.perf_counter() - started_at)
                if self._failed_at is not None:
                    self._note_success(self._failed_at)

    async def now(self) -> int:
        """Return the store's clock (`Ledger.now`)."""
        try:
            return await self._ledger.now()
        except BudgetUnavailable as unavailable:
            raise self._note_failure(unavailable) from None

    def _note_failure(self, unavailable: BudgetUnavailable) -> BudgetUnavailable:
        """Log the first failure of an outage; return the error for clients."""
        self._metrics.ledger_reachable.set(0)
        if self._failed_at is None:
            log.error("The ledger is out of reach; requests wait for it: %s", unavailable.message)
        self._failed_at = time.monotonic()
        return BudgetUnavailable(OUTAGE_MESSAGE)

    def _note_success(self, failed_at: float) -> None:
        self._metrics.ledger_reachable.set(1)
        if time.monotonic() - failed_at >= self._timings.ledger_quiet_seconds:
            self._failed_at = None
            log.warning("The ledger answers again")
