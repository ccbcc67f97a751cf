"""What every service tells Prometheus of itself; each adds its own numbers to the same registry."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Info, Metric, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from quintain.bus.base import Bus

#: Upper bounds in seconds: a call takes from milliseconds to minutes.
CALL_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class ServiceMeter:
    """One process's numbers, in a registry of their own."""

    def __init__(self, service: str) -> None:
        self.service = service
        self.registry = CollectorRegistry()
        self._broker = _Broker()
        build = Info("quintain_build", "What runs", registry=self.registry)
        build.info({"service": service, "version": importlib.metadata.version("quintain")})
        self.registry.register(self._broker)
        ProcessCollector(namespace="quintain", registry=self.registry)

    def watch(self, bus: Bus) -> None:
        """Tell whether this bus is connected from now on."""
        self._broker.bus = bus

    def exposition(self) -> bytes:
        """Everything, in Prometheus's text format."""
        return generate_latest(self.registry)


class _Broker(Collector):
    """The connection to the broker, as it is when it is asked for; none before there is a bus."""

    bus: Bus | None = None

    def collect(self) -> Iterable[Metric]:
        connected = self.bus is not None and self.bus.connected
        reconnects = 0 if self.bus is None else self.bus.reconnects
        yield GaugeMetricFamily("quintain_broker_connected", "Whether the broker is connected", value=int(connected))
        yield CounterMetricFamily(
            "quintain_broker_reconnects", "Connections to the broker that were lost and made again", value=reconnects
        )
