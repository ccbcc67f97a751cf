"""Every metric there is, by service: what the pages, the dashboard and the alerts may name."""

from __future__ import annotations

import re

from quintain.observe.metrics import ServiceMetrics
from quintain_gateway.metrics import GatewayMetrics
from quintain_host.counters import HostMetrics
from quintain_metadata.metrics import MetadataMetrics
from quintain_worker.target import WorkerMetrics

#: What a series' name ends in, by its metric's kind.
SERIES_SUFFIXES = {
    "counter": ("_total",),
    "info": ("_info",),
    "gauge": ("",),
    "histogram": ("_bucket", "_count", "_sum"),
}

#: A word of ours in an expression of Prometheus's.
SERIES_PATTERN = re.compile(r"\bquintain_[a-z_]+\b")


def service_metrics() -> list[ServiceMetrics]:
    """One of each service's."""
    return [MetadataMetrics(), WorkerMetrics(), HostMetrics(), GatewayMetrics()]


def metric_kinds() -> dict[str, str]:
    """The kind of every metric, by its name."""
    return {metric.name: metric.type for meter in service_metrics() for metric in meter.registry.collect()}


def series_names() -> set[str]:
    """The name of every series."""
    return {f"{name}{ending}" for name, kind in metric_kinds().items() for ending in SERIES_SUFFIXES[kind]}
