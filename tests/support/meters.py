"""Every metric there is, by service: what the pages, the dashboard and the alerts may name."""

from __future__ import annotations

import re

from quintain.operations.meter import ServiceMeter
from quintain_gateway.meter import Meter
from quintain_host.meter import HostMeter
from quintain_metadata.meter import MetadataMeter
from quintain_worker.meter import WorkerMeter

#: What a series' name ends in, by its metric's kind.
ENDINGS = {"counter": ("_total",), "info": ("_info",), "gauge": ("",), "histogram": ("_bucket", "_count", "_sum")}

#: A word of ours in an expression of Prometheus's.
SERIES = re.compile(r"\bquintain_[a-z_]+\b")


def meters() -> list[ServiceMeter]:
    """One of each service's."""
    return [MetadataMeter(), WorkerMeter(), HostMeter(), Meter()]


def metrics() -> dict[str, str]:
    """The kind of every metric, by its name."""
    return {metric.name: metric.type for meter in meters() for metric in meter.registry.collect()}


def series() -> set[str]:
    """The name of every series."""
    return {f"{name}{ending}" for name, kind in metrics().items() for ending in ENDINGS[kind]}
