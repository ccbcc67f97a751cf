"""What a metadata service counts for Prometheus, and what it read of the books a moment ago."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import Counter, Gauge, Histogram, Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from quintain.contracts.ledger import Admission, Outcome
from quintain.operations.meter import ServiceMeter
from quintain_metadata.figures import Figures

_PREFIX = "quintain_metadata"

#: Upper bounds in seconds of one operation on the ledger.
LEDGER_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)

BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64)

GRANTED, REPLAYED = "granted", "replayed"


class MetadataMeter(ServiceMeter):
    """One metadata service's numbers."""

    def __init__(self) -> None:
        super().__init__("metadata")
        self._admits = Counter(
            f"{_PREFIX}_admits",
            "Admits decided: granted, replayed, or a fault's code",
            ["code"],
            registry=self.registry,
        )
        self._settles = Counter(
            f"{_PREFIX}_settles", "Attempts settled, by what became of them", ["outcome"], registry=self.registry
        )
        self._batches = Histogram(
            f"{_PREFIX}_batch_size",
            "Admits or settles that came together",
            ["kind"],
            buckets=BATCH_SIZES,
            registry=self.registry,
        )
        self._ledger_seconds = Histogram(
            f"{_PREFIX}_ledger_seconds", "One operation, committed", buckets=LEDGER_SECONDS, registry=self.registry
        )
        self.ledger_reachable = Gauge(
            f"{_PREFIX}_ledger_reachable", "Whether the ledger took its last operation", registry=self.registry
        )
        self._books = _Books()
        self.registry.register(self._books)

    def admitted(self, admission: Admission) -> None:
        """Count what an admit was answered with."""
        fault = admission.fault
        self._admits.labels(fault.code if fault else REPLAYED if admission.replay else GRANTED).inc()

    def settled(self, outcome: Outcome) -> None:
        """Count a settle."""
        self._settles.labels(outcome.value).inc()

    def batch(self, kind: str, size: int) -> None:
        """Observe what came together; ``kind`` is admit or settle."""
        self._batches.labels(kind).observe(size)

    def ledger(self, seconds: float, *, reachable: bool) -> None:
        """Observe one operation on the ledger."""
        self.ledger_reachable.set(int(reachable))
        if reachable:
            self._ledger_seconds.observe(seconds)

    def read(self, figures: Figures) -> None:
        """Show these figures until there are others."""
        self._books.figures = figures


class _Books(Collector):
    """What was last read of the ledger; nothing before that."""

    figures: Figures | None = None

    def collect(self) -> Iterable[Metric]:
        figures = self.figures or Figures()
        sessions = GaugeMetricFamily(f"{_PREFIX}_sessions", "Sessions, by state", labels=["state"])
        for state, count in figures.sessions.items():
            sessions.add_metric([state], count)
        yield sessions
        yield GaugeMetricFamily(
            f"{_PREFIX}_calls_in_doubt", "Calls of open sessions that may have been billed", value=figures.in_doubt
        )
        yield GaugeMetricFamily(
            f"{_PREFIX}_sessions_nearly_spent",
            "Open sessions that have charged nine tenths of their limit",
            value=figures.nearly_spent,
        )
        running = GaugeMetricFamily(f"{_PREFIX}_target_running", "Calls that hold a grant", labels=["target"])
        limit = GaugeMetricFamily(f"{_PREFIX}_target_limit", "A registered target's calls at once", labels=["target"])
        for target in figures.targets:
            running.add_metric([target.name], target.running)
            limit.add_metric([target.name], target.max_concurrency)
        yield running
        yield limit
