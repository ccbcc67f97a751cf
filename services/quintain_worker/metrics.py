"""The worker's Prometheus metrics.

Labels are the worker's own targets, codes and outcomes, never values from callers.
"""

from __future__ import annotations

from functools import cache

from quintain.contracts.invoke import Result
from quintain.contracts.ledger import AttemptOutcome
from quintain.contracts.message import Message
from quintain.errors import Fault
from quintain.observe.metrics import ServiceMetrics

#: The ``code`` label of deliveries without a fault: answered by the provider, answered from the ledger's stored reply,
#: returned to the queue.
OK, REPLAYED, GIVEN_BACK = "ok", "replayed", "given_back"


class WorkerMetrics(ServiceMetrics):
    """Prometheus metrics of one worker."""

    def __init__(self) -> None:
        super().__init__("worker")
        calls = self.counter("calls", "Deliveries that ended, by target and code", "target", "code")
        attempts = self.counter("attempts", "Settled attempts, by outcome", "target", "outcome")
        provider_seconds = self.histogram(
            "provider_seconds", "Seconds of one provider try, by its outcome", "target", "end"
        )
        queue_seconds = self.histogram(
            "queue_wait_seconds", "Seconds from the publish of a request to its receipt", "target"
        )
        throttled = self.counter("throttled", "Tries that a provider refused for its rate limit", "target")
        # `labels()` is cached: the label values are few, and every call updates several metrics.
        self._calls, self._attempts = cache(calls.labels), cache(attempts.labels)
        self._provider_seconds, self._queue_seconds = cache(provider_seconds.labels), cache(queue_seconds.labels)
        self._throttled = cache(throttled.labels)

    def count_answered(self, target: str, answer: Message | Fault) -> None:
        """Count a delivery that was answered with a result or a fault."""
        replayed = isinstance(answer, Result) and answer.replayed
        self._calls(target, answer.code if isinstance(answer, Fault) else REPLAYED if replayed else OK).inc()

    def count_returned(self, target: str) -> None:
        """Count a delivery that was returned to its queue."""
        self._calls(target, GIVEN_BACK).inc()

    def count_settled(self, target: str, outcome: AttemptOutcome) -> None:
        """Count a settled attempt by its outcome."""
        self._attempts(target, outcome.value).inc()

    def observe_queue_wait(self, target: str, seconds: float) -> None:
        """Observe the seconds between the publish of a request and its receipt."""
        self._queue_seconds(target).observe(seconds)

    def observe_try(self, target: str, outcome: str, seconds: float) -> None:
        """Observe the seconds of one provider try; ``outcome`` is ``ok`` or the billing of a failure."""
        self._provider_seconds(target, outcome).observe(seconds)

    def count_throttled(self, target: str) -> None:
        """Count a try that the provider refused for its rate limit."""
        self._throttled(target).inc()
