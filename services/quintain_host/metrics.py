"""The host's Prometheus metrics: leases given and runs by outcome."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily

from quintain.observability.metrics import ServiceMetrics
from quintain_host.counters import RUN_OUTCOMES, HostCounters


class HostMetrics(ServiceMetrics):
    """Prometheus metrics of one host, including those of its slots' child processes."""

    def __init__(self) -> None:
        super().__init__("host")
        self._counters = HostCounters()
        self.add_callback(self._collect_counters)

    def set_counters(self, counters: HostCounters) -> None:
        """Export the values of these counters from now on."""
        self._counters = counters

    def _collect_counters(self) -> Iterable[Metric]:
        yield CounterMetricFamily(self.full_name("leases"), "Leases given", value=self._counters.leases)
        runs = CounterMetricFamily(self.full_name("runs"), "Ended runs, by outcome", labels=["end"])
        for outcome in RUN_OUTCOMES:
            runs.add_metric([outcome], self._counters.runs[outcome])
        yield runs
