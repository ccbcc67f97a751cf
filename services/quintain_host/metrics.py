"""The host's Prometheus metrics: its tally of leases and runs."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily

from quintain.observability.metrics import ServiceMetrics
from quintain_host.counters import RUN_OUTCOMES, HostCounters


class HostMetrics(ServiceMetrics):
    """One host's metrics, those of its slots' processes among them."""

    def __init__(self) -> None:
        super().__init__("host")
        self._counters = HostCounters()
        self.add_callback(self._collect_counters)

    def set_counters(self, counters: HostCounters) -> None:
        """Show this tally from now on."""
        self._counters = counters

    def _collect_counters(self) -> Iterable[Metric]:
        yield CounterMetricFamily(self.full_name("leases"), "Leases given", value=self._counters.leases)
        runs = CounterMetricFamily(self.full_name("runs"), "Runs over, by how they ended", labels=["end"])
        for end in RUN_OUTCOMES:
            runs.add_metric([end], self._counters.runs[end])
        yield runs
