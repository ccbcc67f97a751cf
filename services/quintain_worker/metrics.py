"""The worker's Prometheus metrics. Labels are its own targets, codes and outcomes: never anything of a caller's."""

from __future__ import annotations

from functools import cache

from quintain.contracts.invoke import Result
from quintain.contracts.ledger import AttemptOutcome
from quintain.contracts.message import Message
from quintain.errors import Fault
from quintain.observability.metrics import ServiceMetrics

#: The codes of calls without a fault: answered, answered from what the ledger keeps, given back to the queue.
OK, REPLAYED, GIVEN_BACK = "ok", "replayed", "given_back"


class WorkerMetrics(ServiceMetrics):
    """One worker's metrics."""

    def __init__(self) -> None:
        super().__init__("worker")
        calls = self.counter("calls", "Deliveries that ended, by target and code", "target", "code")
        attempts = self.counter("attempts", "Attempts that were settled, by what became of them", "target", "outcome")
        provider_seconds = self.histogram("provider_seconds", "One try at a provider, by how it ended", "target", "end")
        queue_seconds = self.histogram("queue_wait_seconds", "From the publish of a request to its arrival", "target")
        throttled = self.counter("throttled", "Tries that a provider refused for its rate limit", "target")
        # Each target's children are looked up once: their labels are few, and every call counts in several.
        self._calls, self._attempts = cache(calls.labels), cache(attempts.labels)
        self._provider_seconds, self._queue_seconds = cache(provider_seconds.labels), cache(queue_seconds.labels)
        self._throttled = cache(throttled.labels)

    def count_answered(self, target: str, answer: Message | Fault) -> None:
        """Count a delivery that was answered."""
        replayed = isinstance(answer, Result) and answer.replayed
        self._calls(target, answer.code if isinstance(answer, Fault) else REPLAYED if replayed else OK).inc()

    def count_returned(self, target: str) -> None:
        """Count a delivery that was put back into its queue."""
        self._calls(target, GIVEN_BACK).inc()

    def count_settled(self, target: str, outcome: AttemptOutcome) -> None:
        """Count an attempt."""
        self._attempts(target, outcome.value).inc()

    def observe_queue_wait(self, target: str, seconds: float) -> None:
        """Observe a request's time in the queue."""
        self._queue_seconds(target).observe(seconds)

    def observe_try(self, target: str, outcome: str, seconds: float) -> None:
        """Observe one try at a provider: ``outcome`` is ``ok`` or what is known of its bill."""
        self._provider_seconds(target, outcome).observe(seconds)

    def count_throttled(self, target: str) -> None:
        """Count a try that came too early for the provider."""
        self._throttled(target).inc()
