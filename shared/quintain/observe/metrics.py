"""The Prometheus metrics that every service has; each adds its own to the same registry."""

from __future__ import annotations

import asyncio
import importlib.metadata
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    Metric,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from quintain.contracts.service_card import ServiceCard

#: Upper bounds in seconds: a call takes from milliseconds to minutes.
CALL_DURATION_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class BrokerState(Protocol):
    """What a `Bus` tells of its connection to the broker."""

    @property
    def connected(self) -> bool:
        """Whether the connection is open."""

    @property
    def reconnects(self) -> int:
        """How often it was lost and opened again."""


class ServiceMetrics:
    """One process's Prometheus metrics in a separate registry; names of added metrics contain the service's name."""

    def __init__(self, service: str) -> None:
        self.service = service
        self.registry = CollectorRegistry()
        self._callbacks: list[_CallbackCollector] = []
        self._broker: BrokerState | None = None
        self._card: Callable[[], ServiceCard] | None = None
        build = Info("quintain_build", "The service and its version", registry=self.registry)
        build.info({"service": service, "version": importlib.metadata.version("quintain")})
        self.add_callback(self._collect_broker)
        self.add_callback(self._collect_card)
        ProcessCollector(namespace="quintain", registry=self.registry)

    def set_broker(self, broker: BrokerState) -> None:
        """Include the state of this connection to the broker."""
        self._broker = broker

    def set_service_card(self, card: Callable[[], ServiceCard]) -> None:
        """Include the values of this service card, which is read at each scrape."""
        self._card = card

    def exposition(self) -> bytes:
        """Return all metrics in Prometheus's text format."""
        return generate_latest(self.registry)

    async def exposition_beside(self) -> bytes:
        """Return the same, written in a thread: the loop only calls the functions, which read what it changes."""
        for each in self._callbacks:
            each.take()
        return await asyncio.to_thread(self.exposition)

    def counter(self, name: str, documentation: str, *labels: str) -> Counter:
        """Create a counter ``quintain_<service>_<name>`` with these labels."""
        return Counter(self.full_name(name), documentation, labels, registry=self.registry)

    def gauge(self, name: str, documentation: str) -> Gauge:
        """Create a gauge ``quintain_<service>_<name>``."""
        return Gauge(self.full_name(name), documentation, registry=self.registry)

    def histogram(
        self, name: str, documentation: str, *labels: str, buckets: Sequence[float] = CALL_DURATION_BUCKETS
    ) -> Histogram:
        """Create a histogram ``quintain_<service>_<name>`` with these labels and upper bounds."""
        return Histogram(self.full_name(name), documentation, labels, buckets=buckets, registry=self.registry)

    def add_callback(self, collect_metrics: Callable[[], Iterable[Metric]]) -> None:
        """Add metrics that this function returns at each scrape."""
        self._callbacks.append(_CallbackCollector(collect_metrics))
        self.registry.register(self._callbacks[-1])

    def full_name(self, name: str) -> str:
        """Return the full name of a metric of this service."""
        return f"quintain_{self.service}_{name}"

    def _collect_broker(self) -> Iterable[Metric]:
        connected = self._broker is not None and self._broker.connected
        reconnects = 0 if self._broker is None else self._broker.reconnects
        yield GaugeMetricFamily("quintain_broker_connected", "Whether the broker is connected", value=int(connected))
        yield CounterMetricFamily(
            "quintain_broker_reconnects", "Connections to the broker that were lost and opened again", value=reconnects
        )

    def _collect_card(self) -> Iterable[Metric]:
        in_flight = GaugeMetricFamily("quintain_service_in_flight", "Calls in flight in this service")
        heartbeat = GaugeMetricFamily("quintain_heartbeat_age_seconds", "How long ago the lease was renewed")
        label_names = ["target", "kind"]
        slots = GaugeMetricFamily(
            "quintain_target_slots", "How many calls this service may run at once", labels=label_names
        )
        in_use = GaugeMetricFamily("quintain_target_in_flight", "Calls that this service runs", labels=label_names)
        card = None if self._card is None else self._card()
        if card is not None:
            in_flight.add_metric([], card.in_flight)
            for target in card.targets:
                slots.add_metric([target.name, target.kind], target.slots)
                in_use.add_metric([target.name, target.kind], target.in_flight)
            if card.heartbeat_age_ms is not None:
                heartbeat.add_metric([], card.heartbeat_age_ms / 1000)
        return in_flight, heartbeat, slots, in_use


class _CallbackCollector(Collector):
    """A Prometheus collector that calls a function."""

    def __init__(self, collect_metrics: Callable[[], Iterable[Metric]]) -> None:
        self._collect_metrics = collect_metrics
        self._taken: list[Metric] | None = None

    def take(self) -> None:
        """Call the function now, for the next `collect`."""
        self._taken = list(self._collect_metrics())

    def collect(self) -> Iterable[Metric]:
        """Return the function's metrics."""
        taken, self._taken = self._taken, None
        return self._collect_metrics() if taken is None else taken
