"""The provider worker: consumes the queues of its targets, admits, calls the provider, settles, replies."""

from typing import TYPE_CHECKING

from quintain.lazy import lazy_exports

if TYPE_CHECKING:
    from quintain_worker.handler import Served
    from quintain_worker.metrics import WorkerMetrics
    from quintain_worker.providers.build import Surroundings, build_provider
    from quintain_worker.worker import Worker
else:
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "quintain_worker.handler": ("Served",),
            "quintain_worker.metrics": ("WorkerMetrics",),
            "quintain_worker.providers.build": ("Surroundings", "build_provider"),
            "quintain_worker.worker": ("Worker",),
        },
    )

__all__ = [
    "Served",
    "Surroundings",
    "Worker",
    "WorkerMetrics",
    "build_provider",
]
