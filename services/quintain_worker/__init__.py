"""The provider worker: consumes its targets' queues, admits calls, calls the providers, settles and replies."""

from typing import TYPE_CHECKING

from quintain.lazy import lazy_exports

if TYPE_CHECKING:
    from quintain_worker.delivery.worker_target import WorkerTarget
    from quintain_worker.metrics import WorkerMetrics
    from quintain_worker.providers.factory import build_provider, check_program, check_provider
    from quintain_worker.providers.provider import ProviderContext
    from quintain_worker.service.worker import Worker
else:
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "quintain_worker.delivery.worker_target": ("WorkerTarget",),
            "quintain_worker.metrics": ("WorkerMetrics",),
            "quintain_worker.providers.factory": ("build_provider", "check_program", "check_provider"),
            "quintain_worker.providers.provider": ("ProviderContext",),
            "quintain_worker.service.worker": ("Worker",),
        },
    )

__all__ = [
    "ProviderContext",
    "Worker",
    "WorkerMetrics",
    "WorkerTarget",
    "build_provider",
    "check_program",
    "check_provider",
]
