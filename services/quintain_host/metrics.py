"""The host's Prometheus metrics: its tally of leases and runs."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily

from quintain.operations.metrics import ServiceMetrics
from quintain_host.tally import ENDS, Tally


class HostMetrics(ServiceMetrics):
    """One host's metrics, those of its slots' processes among them."""

    def __init__(self) -> None:
        super().__init__("host")
        self._tally = Tally()
        self.collect(self._collect_tally)

    def read(self, tally: Tally) -> None:
        """Show this tally from now on."""
        self._tally = tally

    def _collect_tally(self) -> Iterable[Metric]:
        yield CounterMetricFamily(self.named("leases"), "Leases given", value=self._tally.leases)
        runs = CounterMetricFamily(self.named("runs"), "Runs over, by how they ended", labels=["end"])
        for end in ENDS:
            runs.add_metric([end], self._tally.runs[end])
        yield runs
