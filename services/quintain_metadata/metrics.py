"""The metadata service's Prometheus metrics: what it decided, how long the ledger took, and the ledger's figures."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily

from quintain.contracts.ledger import Admission, Outcome
from quintain.operations.metrics import ServiceMetrics
from quintain_metadata.figures import Figures

#: Upper bounds in seconds of one operation on the ledger.
LEDGER_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)

BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64)

GRANTED, REPLAYED = "granted", "replayed"


class MetadataMetrics(ServiceMetrics):
    """One metadata service's metrics."""

    def __init__(self) -> None:
        super().__init__("metadata")
        self._figures = Figures()
        self._admits = self.counter("admits", "Admits decided: granted, replayed, or a fault's code", "code")
        self._settles = self.counter("settles", "Attempts settled, by what became of them", "outcome")
        self._batches = self.histogram(
            "batch_size", "Admits or settles that came together", "kind", buckets=BATCH_SIZES
        )
        self._ledger_seconds = self.histogram("ledger_seconds", "One operation, committed", buckets=LEDGER_SECONDS)
        self.ledger_reachable = self.gauge("ledger_reachable", "Whether the ledger took its last operation")
        self.collect(self._collect_figures)

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
        """Show these figures of the ledger until there are others."""
        self._figures = figures

    def _collect_figures(self) -> Iterable[Metric]:
        figures = self._figures
        sessions = GaugeMetricFamily(self.named("sessions"), "Sessions, by state", labels=["state"])
        for state, count in figures.sessions.items():
            sessions.add_metric([state], count)
        yield sessions
        yield GaugeMetricFamily(
            self.named("calls_in_doubt"), "Calls of open sessions that may have been billed", value=figures.in_doubt
        )
        yield GaugeMetricFamily(
            self.named("sessions_nearly_spent"),
            "Open sessions that have charged nine tenths of their limit",
            value=figures.nearly_spent,
        )
        running = GaugeMetricFamily(self.named("target_running"), "Calls that hold a grant", labels=["target"])
        limit = GaugeMetricFamily(self.named("target_limit"), "A registered target's calls at once", labels=["target"])
        for target in figures.targets:
            running.add_metric([target.name], target.running)
            limit.add_metric([target.name], target.max_concurrency)
        yield running
        yield limit
