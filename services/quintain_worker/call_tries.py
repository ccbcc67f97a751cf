"""The tries of a call whose target has a quota: each is an attempt of its own, which asks for admission again."""

from __future__ import annotations

from quintain.contracts.invoke import FaultReply
from quintain.contracts.ledger import Admission, AttemptOutcome
from quintain.contracts.quota import TryOutcome
from quintain.errors import Expired, Fault, Throttled
from quintain_worker.attempt import MAX_BACKOFF_SECONDS, AttemptResult, RetryPolicy, seconds_before_retry
from quintain_worker.target import WorkerTarget


class CallTries:
    """What the attempts of one delivery have used so far of what its target allows.

    The time between them counts neither against ``timeout_seconds`` nor against ``max_tries``. Nor does a try that was
    throttled, or one that failed while the provider is out: they say nothing of the call.
    """

    def __init__(self) -> None:
        #: How often the provider was called.
        self.count = 0
        self._counted, self._seconds = 0, 0.0
        self._throttled: Throttled | None = None

    def policy(self, target: WorkerTarget, grant: Admission, ends_at: float) -> RetryPolicy:
        """Return what is left for an attempt."""
        timeout_seconds = target.timeout_seconds
        return RetryPolicy(
            max_tries=target.max_tries - self._counted,
            ends_at=ends_at,
            timeout_seconds=None if timeout_seconds is None else timeout_seconds - self._seconds,
            unproven=grant.unproven,
            has_quota=target.has_quota,
            is_probe=bool(grant.is_probe),
        )

    def add(self, result: AttemptResult, seconds: float, *, is_probe: bool) -> float:
        """Add an attempt, which took so many seconds; returns how long the call waits before it asks for the next one.

        What was throttled asks at once: the ledger knows when its turn is.
        """
        self.count += result.tries
        if result.outcome is not AttemptOutcome.THROTTLED or result.report is None:
            return 0.0
        if result.report.outcome is TryOutcome.THROTTLED:
            self._throttled = result.fault if isinstance(result.fault, Throttled) else None
            return 0.0
        self._throttled = None
        self._seconds += seconds
        if is_probe:
            return 0.0
        self._counted += 1
        rates = result.report.rates
        asked = None if rates is None else rates.retry_after_seconds
        return min(MAX_BACKOFF_SECONDS, seconds_before_retry(asked, self._counted))

    def fault_of(self, refusal: FaultReply) -> Fault:
        """Return the fault of a call that was refused; one that waited until its deadline ends as it was throttled."""
        fault = refusal.to_fault()
        is_uncharged = isinstance(fault, Expired) and fault.charged is False
        return self._throttled if is_uncharged and self._throttled is not None else fault
