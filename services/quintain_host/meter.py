"""A host's tally as Prometheus reads it."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from quintain.operations.meter import ServiceMeter
from quintain_host.tally import ENDS, Tally


class HostMeter(ServiceMeter):
    """One host's numbers, those of its slots' processes among them."""

    def __init__(self) -> None:
        super().__init__("host")
        self._collector = _Told()
        self.registry.register(self._collector)

    def read(self, tally: Tally) -> None:
        """Tell this tally from now on."""
        self._collector.tally = tally


class _Told(Collector):
    tally: Tally | None = None

    def collect(self) -> Iterable[Metric]:
        tally = self.tally or Tally()
        yield CounterMetricFamily("quintain_host_leases", "Leases given", value=tally.leases)
        runs = CounterMetricFamily("quintain_host_runs", "Runs over, by how they ended", labels=["end"])
        for end in ENDS:
            runs.add_metric([end], tally.runs[end])
        yield runs
