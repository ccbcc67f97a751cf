"""Calls a provider with retries, within the deadline, and tracks what may have been billed."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_after_attempt, wait_random_exponential
from tenacity.wait import wait_base

from quintain.contracts.api_request import ApiRequest
from quintain.contracts.invoke import InvokeRequest
from quintain.contracts.ledger import AttemptOutcome
from quintain.errors import Cancelled, Expired, Fault, InternalFault, ProviderFailed, Throttled, TimedOut
from quintain.runtime.timeouts import Timeouts
from quintain_worker.delivery.pause import PauseState
from quintain_worker.providers.provider import Billing, Delta, Provider, ProviderAnswer, ProviderFailure

log = logging.getLogger(__name__)

#: Backoff between tries, in seconds, with full jitter: the first is at most this long, and the limit doubles with each
#: try.
INITIAL_BACKOFF_SECONDS = 0.5
MAX_BACKOFF_SECONDS = 30.0

#: From least to most severe: an attempt is billed like the worst of its tries.
_BILLING_SEVERITY = (Billing.UNBILLED, Billing.BILLED, Billing.UNKNOWN)

_OUTCOME_BY_BILLING = {
    Billing.UNBILLED: AttemptOutcome.REFUND,
    Billing.BILLED: AttemptOutcome.CHARGED,
    Billing.UNKNOWN: AttemptOutcome.IN_DOUBT,
}


class AttemptResult(NamedTuple):
    """The result of an attempt: an answer, or a fault with the outcome to settle, or neither.

    With neither, the call returns to its queue for a later attempt. ``tries`` is how often the provider was called.
    """

    tries: int
    answer: ProviderAnswer | None = None
    fault: Fault | None = None
    outcome: AttemptOutcome = AttemptOutcome.RESULT

    @property
    def is_returned(self) -> bool:
        """Whether the call returns to its queue: nothing is charged, and no reply is sent."""
        return self.answer is None and self.fault is None


class RetryPolicy(NamedTuple):
    """Limits on the tries of one attempt. ``ends_at`` is the deadline in the loop's seconds.

    ``timeout_seconds`` is the target's own limit on all tries and the waits between them, without the pauses of the
    target. ``unproven``: an earlier attempt may have been billed, so this call must not return to its queue as
    unbilled.
    """

    max_tries: int
    ends_at: float
    timeout_seconds: float | None = None
    unproven: bool = False


class _CallReturned(Exception):
    """The wait before the next try is too long, and nothing was billed: the call returns to its queue."""


class Attempt:
    """One attempt at a call: tries the provider until it succeeds or the policy ends it, and tracks the billing."""

    def __init__(
        self,
        provider: Provider,
        request: InvokeRequest | ApiRequest,
        retry_policy: RetryPolicy,
        pause: PauseState,
        on_text: Callable[[int, Delta], None] | None = None,
        *,
        timeouts: Timeouts | None = None,
    ) -> None:
        """Prepare an attempt; `run` starts it. ``timeouts`` may be shared with other attempts.

        ``on_text`` is called with the number of the try and each piece of text as it arrives; a later try voids the
        text of the earlier ones.
        """
        self._provider, self._request, self._on_text = provider, request, on_text
        self._retry_policy, self._pause, self._timeouts = retry_policy, pause, timeouts or Timeouts()
        timeout_seconds = math.inf if retry_policy.timeout_seconds is None else retry_policy.timeout_seconds
        self._timeout_ends_at = asyncio.get_running_loop().time() + timeout_seconds
        self._tries = 0
        self._billing = Billing.UNBILLED
        self._failure: ProviderFailure | None = None

    async def run(self) -> AttemptResult:
        """Call the provider until it answers, fails for good, or the deadline leaves no time for another try.

        No try starts while the target is paused. Every failure is returned as an `AttemptResult`, not raised.
        """
        if self._remaining_seconds <= 0:
            # The grant came too late: the provider was not called, and nothing is charged.
            fault = Expired("The deadline passed before the provider was called")
            return AttemptResult(tries=0, fault=fault, outcome=AttemptOutcome.REFUND)
        try:
            await self._wait_before_try(0)
            answer = await self._answer_with_retries()
            return AttemptResult(tries=self._tries, answer=answer)
        except _CallReturned:
            return AttemptResult(tries=self._tries, outcome=AttemptOutcome.REFUND)
        except ProviderFailure as failure:
            return self._failed_result(failure.fault)
        except Exception:
            # A defect in a provider: it is unknown what was sent before, so the call is charged and in doubt.
            log.exception("A defect in a provider")
            return AttemptResult(tries=self._tries, fault=InternalFault(charged=True), outcome=AttemptOutcome.IN_DOUBT)

    async def _answer_with_retries(self) -> ProviderAnswer:
        try:
            return await self._try_once()
        except ProviderFailure as failure:
            first_failure = [failure]

        async def try_again() -> ProviderAnswer:
            if first_failure:
                raise first_failure.pop()
            return await self._try_once()

        # Most calls succeed on the first try and skip the cost of the retry machinery; it starts from the first
        # failure.
        retrying = AsyncRetrying(
            retry=retry_if_exception(lambda error: isinstance(error, ProviderFailure) and error.retryable),
            wait=_RetryAfterOrBackoff(),
            stop=stop_after_attempt(self._retry_policy.max_tries),
            sleep=self._wait_before_try,
            reraise=True,
        )
        return await retrying(try_again)

    def cancelled_result(self) -> AttemptResult:
        """Return the result of an attempt whose `run` was cancelled, with the billing of its tries so far."""
        if self._billing is Billing.UNBILLED:
            return self._failed_result(Cancelled())
        return self._failed_result(Cancelled("The caller cancelled the call; it may have been billed", charged=True))

    def _failed_result(self, fault: Fault) -> AttemptResult:
        charged_fault = with_charge(fault, charged=self._billing is not Billing.UNBILLED)
        return AttemptResult(tries=self._tries, fault=charged_fault, outcome=_OUTCOME_BY_BILLING[self._billing])

    @property
    def _remaining_seconds(self) -> float:
        return min(self._retry_policy.ends_at, self._timeout_ends_at) - asyncio.get_running_loop().time()

    def _record_billing(self, billing: Billing) -> None:
        self._billing = max(self._billing, billing, key=_BILLING_SEVERITY.index)

    async def _try_once(self) -> ProviderAnswer:
        self._tries += 1
        remaining_seconds = self._remaining_seconds
        on_text = None if self._on_text is None else partial(self._on_text, self._tries)
        try:
            # The provider applies the timeout itself; this limit is for one that does not.
            with self._timeouts.limit(remaining_seconds):
                # An `ApiRequest` comes with a provider that takes it.
                request: Any = self._request
                return await self._provider.answer(request, timeout_seconds=remaining_seconds, on_text=on_text)
        except ProviderFailure as failure:
            self._record_billing(failure.billing)
            self._failure = failure
            if failure.retry_after_seconds is not None:
                self._pause.pause_for(failure.retry_after_seconds)
            raise
        except TimeoutError:
            self._record_billing(Billing.UNKNOWN)
            raise ProviderFailure(TimedOut(), Billing.UNKNOWN) from None
        except asyncio.CancelledError as error:
            self._record_billing(Billing.UNKNOWN)
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # This task was not cancelled: the provider let a `CancelledError` of its own escape, which must not stop
            # the worker.
            raise RuntimeError("a provider raised CancelledError") from error

    async def _wait_before_try(self, seconds: float) -> None:
        """Wait ``seconds`` before a try, and longer while the target is paused.

        Raises the last failure where the wait would exceed the deadline, and `_CallReturned` where the call must not be
        held that long or the worker stops. A call that may have been billed cannot be returned and waits to the end.
        """
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + seconds
        while (remaining_seconds := max(ends_at - (now := loop.time()), self._pause.remaining_seconds)) > 0:
            is_paused = self._pause.remaining_seconds > 0
            if remaining_seconds >= (self._retry_policy.ends_at - now if is_paused else self._remaining_seconds):
                raise self._failure or _pause_failure(remaining_seconds)
            is_unbilled = self._billing is Billing.UNBILLED and not self._retry_policy.unproven
            if is_unbilled and (self._pause.stopping or self._pause.holds_no_longer(remaining_seconds)):
                raise _CallReturned
            await self._pause.changed.wait(remaining_seconds)
            if is_paused:
                self._timeout_ends_at += loop.time() - now
        if self._failure is not None and self._remaining_seconds <= 0:
            raise self._failure


def _pause_failure(seconds: float) -> ProviderFailure:
    fault = Throttled("The target is paused until after the deadline", retry_after_ms=round(seconds * 1000))
    return ProviderFailure(fault, Billing.UNBILLED)


def with_charge(fault: Fault, *, charged: bool) -> Fault:
    """Return the fault with this charge, as the ledger will record it."""
    if fault.charged == charged:
        return fault
    fault_class = type(fault) if fault.always_charged is None or not charged else ProviderFailed
    corrected = fault_class(
        f"{fault.message} (an earlier try may have been billed)" if charged else fault.message, charged=charged
    )
    corrected.charged = charged
    corrected.parameter, corrected.provider_error = fault.parameter, fault.provider_error
    return corrected


class _RetryAfterOrBackoff(wait_base):
    """Waits the provider's retry-after where it gave one, and a jittered exponential backoff otherwise."""

    def __init__(self) -> None:
        self._backoff = wait_random_exponential(multiplier=INITIAL_BACKOFF_SECONDS, max=MAX_BACKOFF_SECONDS)

    def __call__(self, retry_state: RetryCallState) -> float:
        error = retry_state.outcome.exception() if retry_state.outcome else None
        retry_after_seconds = error.retry_after_seconds if isinstance(error, ProviderFailure) else None
        return self._backoff(retry_state) if retry_after_seconds is None else retry_after_seconds
