"""The provider worker: consumes its targets' queues, admits calls, calls the providers, settles and replies.

| word | what it is here | module |
| --- | --- | --- |
| delivery | one message of a target's queue, or one call of a group's message, until it is acknowledged | `delivery` |
| request | what a delivery says: credential, request id, deadline, question; parsed once | `request` |
| call | what session and request id name; duplicates of one that is in flight here wait for it | `inflight` |
| attempt | one grant of a call to this worker: its tries at the provider, and what they were billed | `attempt` |
| completion | the end of a delivery: its settle confirmed, then its reply, then its acknowledgement | `completion` |
"""

from typing import TYPE_CHECKING

from quintain.lazy import lazy_exports

if TYPE_CHECKING:
    from quintain_worker.providers.factory import build_provider, check_program, check_provider
    from quintain_worker.providers.provider import ProviderContext
    from quintain_worker.target import WorkerMetrics, WorkerTarget
    from quintain_worker.worker import Worker
else:
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "quintain_worker.target": ("WorkerMetrics", "WorkerTarget"),
            "quintain_worker.providers.factory": ("build_provider", "check_program", "check_provider"),
            "quintain_worker.providers.provider": ("ProviderContext",),
            "quintain_worker.worker": ("Worker",),
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
