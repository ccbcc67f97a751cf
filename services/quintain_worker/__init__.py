"""The provider worker: consumes the queues of its targets, admits, calls the provider, settles, replies."""

from typing import TYPE_CHECKING

from quintain.lazy import lazy_exports

if TYPE_CHECKING:
    from quintain_worker.handler import Served
    from quintain_worker.meter import WorkerMeter
    from quintain_worker.providers.build import Surroundings, build_provider
    from quintain_worker.providers.traced import Traced
    from quintain_worker.worker import Worker
else:
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "quintain_worker.handler": ("Served",),
            "quintain_worker.meter": ("WorkerMeter",),
            "quintain_worker.providers.build": ("Surroundings", "build_provider"),
            "quintain_worker.providers.traced": ("Traced",),
            "quintain_worker.worker": ("Worker",),
        },
    )

__all__ = [
    "Served",
    "Surroundings",
    "Traced",
    "Worker",
    "WorkerMeter",
    "build_provider",
]
