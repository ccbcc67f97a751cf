"""What every service tells Prometheus of itself; each adds its own numbers to the same registry."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Info, Metric, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from quintain.bus.base import Bus
from quintain.contracts.discovery import ServiceCard

#: Upper bounds in seconds: a call takes from milliseconds to minutes.
CALL_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class ServiceMeter:
    """One process's numbers, in a registry of their own."""

    def __init__(self, service: str) -> None:
        self.service = service
        self.registry = CollectorRegistry()
        self._broker, self._cards = _Broker(), _Cards()
        build = Info("quintain_build", "What runs", registry=self.registry)
        build.info({"service": service, "version": importlib.metadata.version("quintain")})
        self.registry.register(self._broker)
        self.registry.register(self._cards)
        ProcessCollector(namespace="quintain", registry=self.registry)

    def watch(self, bus: Bus) -> None:
        """Tell whether this bus is connected from now on."""
        self._broker.bus = bus

    def show(self, card: Callable[[], ServiceCard]) -> None:
        """Tell what this service's card says, too, as it is when it is asked for."""
        self._cards.card = card

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


class _Cards(Collector):
    """What the service's card says, as gauges; nothing before there is one."""

    card: Callable[[], ServiceCard] | None = None

    def collect(self) -> Iterable[Metric]:
        in_flight = GaugeMetricFamily("quintain_service_in_flight", "What the service has in hand")
        heartbeat = GaugeMetricFamily("quintain_heartbeat_age_seconds", "How long ago the lease was renewed")
        of = ["target", "kind"]
        slots = GaugeMetricFamily("quintain_target_slots", "What this service may have in hand at once", labels=of)
        taken = GaugeMetricFamily("quintain_target_in_flight", "What this service has in hand", labels=of)
        paused = GaugeMetricFamily("quintain_target_paused_seconds", "How long nobody may call the target", labels=of)
        # No method: it is what was given to `ServiceMeter.show`.
        card = None if self.card is None else self.card()
        if card is not None:
            in_flight.add_metric([], card.in_flight)
            for target in card.targets:
                slots.add_metric([target.name, target.kind], target.slots)
                taken.add_metric([target.name, target.kind], target.in_flight)
                paused.add_metric([target.name, target.kind], (target.paused_ms or 0) / 1000)
            if card.heartbeat_age_ms is not None:
                heartbeat.add_metric([], card.heartbeat_age_ms / 1000)
        return in_flight, heartbeat, slots, taken, paused
