"""The page of metrics, from the services' registries."""

from __future__ import annotations

from generate.markdown import code, from_docstring, table
from quintain.observe.metrics import ServiceMetrics
from quintain_gateway.metrics import GatewayMetrics
from quintain_host.counters import HostMetrics
from quintain_metadata.metrics import MetadataMetrics
from quintain_worker.target import WorkerMetrics

#: What a metric's series are called, by its kind.
_SUFFIXES = {"counter": "_total", "info": "_info"}

Row = tuple[str, str, str, str]


def page() -> str:
    """Return the page: first the metrics of every service, then those of one."""
    services = [MetadataMetrics(), WorkerMetrics(), HostMetrics(), GatewayMetrics()]
    rows = {metrics.service: _rows(metrics) for metrics in services}
    common = [row for row in rows[services[0].service] if all(row in one for one in rows.values())]
    sections = [("Every service", common)]
    sections += [(f"The {name}", [row for row in one if row not in common]) for name, one in rows.items()]
    text = "# Metrics\n\nServed as `GET /metrics` of a service's [port for health](../operate.md#health).\n\n"
    heads = ["metric", "kind", "labels", "meaning"]
    return text + "".join(f"## {title}\n\n{table(heads, one)}" for title, one in sections if one)


def _rows(metrics: ServiceMetrics) -> list[Row]:
    found: list[Row] = []
    for collector in metrics.registry._collector_to_names:  # noqa: SLF001 -- labels are not in what `collect` gives
        for metric in collector.collect():
            labels: tuple[str, ...] = getattr(collector, "_labelnames", ()) or getattr(metric, "_labelnames", ())
            name = metric.name + _SUFFIXES.get(metric.type, "")
            found.append((code(name), metric.type, ", ".join(map(code, labels)), from_docstring(metric.documentation)))
    return sorted(found)
