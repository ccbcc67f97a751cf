"""The metadata service's Prometheus metrics: decisions, ledger latency, and gauges of the ledger's contents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily

from quintain.contracts.ledger import Admission, AttemptOutcome
from quintain.observe.metrics import ServiceMetrics
from quintain_metadata.call_counter import CallCounter
from quintain_metadata.rules.gauges import LedgerGauges

#: Histogram buckets of one ledger operation, in seconds.
LEDGER_SECONDS_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)

BATCH_SIZE_BUCKETS = (1, 2, 4, 8, 16, 32, 64)

GRANTED, REPLAYED = "granted", "replayed"


class MetadataMetrics(ServiceMetrics):
    """Prometheus metrics of one metadata service."""

    def __init__(self) -> None:
        super().__init__("metadata")
        #: What the events of the fleet say of calls.
        self.call_counter = CallCounter()
        self._gauges = LedgerGauges()
        self._admits = self.counter("admits", "Admits decided: granted, replayed, or a fault's code", "code")
        self._settles = self.counter("settles", "Settled attempts, by outcome", "outcome")
        self._batches = self.histogram(
            "batch_size", "Admits or settles in one batch", "kind", buckets=BATCH_SIZE_BUCKETS
        )
        self._batches_by_kind = {kind: self._batches.labels(kind) for kind in ("admit", "settle")}
        self._ledger_seconds = self.histogram(
            "ledger_seconds",
            "Seconds of a ledger operation, or of several submitted together, with the commit",
            buckets=LEDGER_SECONDS_BUCKETS,
        )
        self.ledger_reachable = self.gauge("ledger_reachable", "Whether the ledger took its last operation")
        self.add_callback(self._collect_gauges)

    def count_admissions(self, admissions: Iterable[Admission]) -> None:
        """Count the decisions on admits."""
        codes = Counter(
            each.fault.code if each.fault else REPLAYED if each.is_replay else GRANTED
            for each in admissions
            if not each.must_be_alone
        )
        for code, count in codes.items():
            self._admits.labels(code).inc(count)

    def count_settles(self, outcomes: Iterable[AttemptOutcome]) -> None:
        """Count settles by their outcomes."""
        for outcome, count in Counter(map(str, outcomes)).items():
            self._settles.labels(outcome).inc(count)

    def observe_batch(self, kind: str, size: int) -> None:
        """Observe the size of one batch; ``kind`` is admit or settle."""
        self._batches_by_kind[kind].observe(size)

    def observe_ledger_operation(self, seconds: float, *, is_reachable: bool) -> None:
        """Record whether the ledger was reachable, and the seconds of what was submitted together if it was."""
        self.ledger_reachable.set(int(is_reachable))
        if is_reachable:
            self._ledger_seconds.observe(seconds)

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
        running = GaugeMetricFamily(self.full_name("target_running"), "Calls that hold a grant", labels=["target"])
        limit = GaugeMetricFamily(
            self.full_name("target_limit"), "A registered target's calls at once", labels=["target"]
        )
        for target in gauges.targets:
            running.add_metric([target.name], target.running)
            limit.add_metric([target.name], target.max_concurrency)
        yield running
        yield limit
