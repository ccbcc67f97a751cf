"""Calls a provider with retries, within the deadline, and tracks what may have been billed."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_after_attempt, wait_random_exponential
from tenacity.wait import wait_base

from quintain.contracts.invoke import InvokeRequest
from quintain.contracts.ledger import AttemptOutcome
from quintain.errors import Cancelled, Expired, Fault, InternalFault, ProviderFailed, Throttled, TimedOut
from quintain_worker.delivery.pause import PauseState
from quintain_worker.providers.provider import Billing, Provider, ProviderAnswer, ProviderFailure

log = logging.getLogger(__name__)

#: The first pause between tries is at most this long, doubled from try to try, in seconds, with full jitter.
INITIAL_BACKOFF_SECONDS = 0.5
MAX_BACKOFF_SECONDS = 30.0

#: From the least to the most that is owed: the tries of one attempt are billed by the worst of them.
_BILLING_SEVERITY = (Billing.UNBILLED, Billing.BILLED, Billing.UNKNOWN)

_OUTCOME_BY_BILLING = {
    Billing.UNBILLED: AttemptOutcome.REFUND,
    Billing.BILLED: AttemptOutcome.CHARGED,
    Billing.UNKNOWN: AttemptOutcome.IN_DOUBT,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptResult:
    """How an attempt ended: an answer, or a fault with what the ledger is to make of it; neither of them where the
    call is given back, for a later attempt of anybody's."""

    tries: int
    answer: ProviderAnswer | None = None
    fault: Fault | None = None
    outcome: AttemptOutcome = AttemptOutcome.RESULT

    @property
    def is_returned(self) -> bool:
        """Whether the call goes on elsewhere: nothing is owed for it, and nobody is answered."""
        return self.answer is None and self.fault is None


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often a provider is asked, and until when (the loop's seconds).

    ``timeout_seconds`` is the target's own bound on all its tries and the waits between them, the pauses of the
    target apart. ``unproven``: an earlier attempt may have been billed, so that this call cannot be given back as if
    nothing had happened.
    """

    max_tries: int
    ends_at: float
    timeout_seconds: float | None = None
    unproven: bool = False


class _CallReturned(Exception):
    """The call would wait for too long, and owes nothing."""


class Attempt:
    """One attempt at a provider: as many tries as it takes, and what they have come to so far."""

    def __init__(
        self,
        provider: Provider,
        request: InvokeRequest,
        retry_policy: RetryPolicy,
        pause: PauseState,
        on_text: Callable[[int, str], None] | None = None,
    ) -> None:
        """``on_text`` is told each piece of the answer's text as it comes, with the number of its try: a later try
        voids the pieces before it."""
        self._provider, self._request, self._on_text = provider, request, on_text
        self._retry_policy, self._pause = retry_policy, pause
        timeout_seconds = math.inf if retry_policy.timeout_seconds is None else retry_policy.timeout_seconds
        self._timeout_ends_at = asyncio.get_running_loop().time() + timeout_seconds
        self._tries = 0
        self._billing = Billing.UNBILLED
        self._failure: ProviderFailure | None = None

    async def run(self) -> AttemptResult:
        """Ask the provider until it answers, refuses for good, or the deadline is too near for another try. Nobody is
        asked while the target is paused."""
        if self._remaining_seconds <= 0:
            # The grant came too late: no provider was called, and nothing is owed.
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
            # A defect in a provider's code: what it did before is not known, so it is charged and shown.
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

        # Most calls are answered at once, without all this: it begins with the failure that it missed.
        retrying = AsyncRetrying(
            retry=retry_if_exception(lambda error: isinstance(error, ProviderFailure) and error.retryable),
            wait=_RetryAfterOrBackoff(),
            stop=stop_after_attempt(self._retry_policy.max_tries),
            sleep=self._wait_before_try,
            reraise=True,
        )
        return await retrying(try_again)

    def cancelled_result(self) -> AttemptResult:
        """How an attempt whose `run` was cancelled ends: by what is owed for it so far."""
        if self._billing is Billing.UNBILLED:
            return self._failed_result(Cancelled())
        return self._failed_result(Cancelled("The caller took the call back; it may have been billed", charged=True))

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
            # The provider bounds itself; this one is for a provider that does not.
            async with asyncio.timeout(remaining_seconds):
                return await self._provider.answer(self._request, timeout_seconds=remaining_seconds, on_text=on_text)
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
            # Nobody cancelled this call: a provider let a cancellation of its own escape, and must not end the
            # worker's.
            raise RuntimeError("a provider raised CancelledError") from error

    async def _wait_before_try(self, seconds: float) -> None:
        """Wait before a try: for this long, and for as long as the target is paused.

        Raises the last failure where that would outlast the deadline, and `_CallReturned` where it would be held for
        too long, or the worker stops. What may have been billed cannot be given back: it waits to the end.
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
    """The fault, saying what the ledger will say of its charge."""
    if fault.charged == charged:
        return fault
    fault_class = type(fault) if fault.always_charged is None else ProviderFailed
    return fault_class(
        f"{fault.message} (an earlier try may have been billed)" if charged else fault.message, charged=charged
    )


class _RetryAfterOrBackoff(wait_base):
    """What the provider asked for, where it asked; a jittered pause otherwise."""

    def __init__(self) -> None:
        self._backoff = wait_random_exponential(multiplier=INITIAL_BACKOFF_SECONDS, max=MAX_BACKOFF_SECONDS)

    def __call__(self, retry_state: RetryCallState) -> float:
        error = retry_state.outcome.exception() if retry_state.outcome else None
        retry_after_seconds = error.retry_after_seconds if isinstance(error, ProviderFailure) else None
        return self._backoff(retry_state) if retry_after_seconds is None else retry_after_seconds
