"""Asking a provider, and asking again: the one owner of retries, inside the deadline, honest about the bill."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_after_attempt, wait_random_exponential
from tenacity.stop import stop_base
from tenacity.wait import wait_base

from quintain.contracts.invoke import InvokeRequest
from quintain.contracts.ledger import Outcome
from quintain.errors import Expired, Fault, InternalFault, ProviderFailed, TimedOut
from quintain_worker.port import Answer, Billing, Provider, ProviderFailure

log = logging.getLogger(__name__)

#: The first pause between tries is at most this long, doubled from try to try, in seconds, with full jitter.
FIRST_PAUSE_SECONDS = 0.5
MOST_PAUSE_SECONDS = 30.0

#: From the least to the most that is owed: the tries of one attempt are billed by the worst of them.
_WORST = (Billing.UNBILLED, Billing.BILLED, Billing.UNKNOWN)

_OUTCOMES = {Billing.UNBILLED: Outcome.REFUND, Billing.BILLED: Outcome.CHARGED, Billing.UNKNOWN: Outcome.DOUBT}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How an attempt ended: an answer, or a fault with what the ledger is to make of it."""

    tries: int
    answer: Answer | None = None
    fault: Fault | None = None
    outcome: Outcome = Outcome.RESULT


@dataclass(frozen=True, slots=True)
class Patience:
    """How often a provider is asked, and until when (the loop's seconds)."""

    most_tries: int
    ends: float


async def attempt(provider: Provider, request: InvokeRequest, patience: Patience) -> Ending:
    """Ask the provider until it answers, refuses for good, or the deadline is too near for another try."""
    if patience.ends <= asyncio.get_running_loop().time():
        # The grant came too late: no provider was called, and nothing is owed.
        late = Expired("The deadline passed before the provider was called")
        return Ending(tries=0, fault=late, outcome=Outcome.REFUND)
    owed = Billing.UNBILLED
    tries = 0
    try:
        async for turn in AsyncRetrying(
            retry=retry_if_exception(lambda error: isinstance(error, ProviderFailure) and error.again),
            wait=_Pause(),
            stop=stop_after_attempt(patience.most_tries) | _NoTimeLeft(patience.ends),
            reraise=True,
        ):
            with turn:
                tries += 1
                try:
                    return Ending(tries=tries, answer=await _ask(provider, request, patience))
                except ProviderFailure as failure:
                    owed = max(owed, failure.billing, key=_WORST.index)
                    raise
    except ProviderFailure as failure:
        fault = as_charged(failure.fault, charged=owed is not Billing.UNBILLED)
        return Ending(tries=tries, fault=fault, outcome=_OUTCOMES[owed])
    except Exception:
        # A defect in a provider's code: what it did before is not known, so it is charged and shown.
        log.exception("A defect in a provider")
        return Ending(tries=tries, fault=InternalFault(charged=True), outcome=Outcome.DOUBT)
    raise AssertionError("the retrying ends with an answer or a failure")


async def _ask(provider: Provider, request: InvokeRequest, patience: Patience) -> Answer:
    left = patience.ends - asyncio.get_running_loop().time()
    try:
        # The provider bounds itself; this one is for a provider that does not.
        async with asyncio.timeout(left):
            return await provider.answer(request, timeout_seconds=left)
    except TimeoutError:
        raise ProviderFailure(TimedOut(), Billing.UNKNOWN) from None
    except asyncio.CancelledError as leaked:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        # Nobody cancelled this call: a provider let a cancellation of its own escape, and must not end the worker's.
        raise RuntimeError("a provider raised CancelledError") from leaked


def as_charged(fault: Fault, *, charged: bool) -> Fault:
    """The fault, saying what the ledger will say of its charge."""
    if fault.charged == charged:
        return fault
    kind = type(fault) if fault.always_charged is None else ProviderFailed
    return kind(f"{fault.message} (an earlier try may have been billed)" if charged else fault.message, charged=charged)


class _Pause(wait_base):
    """What the provider asked for, where it asked; a jittered pause otherwise."""

    def __init__(self) -> None:
        self._jitter = wait_random_exponential(multiplier=FIRST_PAUSE_SECONDS, max=MOST_PAUSE_SECONDS)

    def __call__(self, retry_state: RetryCallState) -> float:
        error = retry_state.outcome.exception() if retry_state.outcome else None
        asked = error.retry_after_seconds if isinstance(error, ProviderFailure) else None
        return self._jitter(retry_state) if asked is None else asked


class _NoTimeLeft(stop_base):
    """Stop where the next try would begin after the deadline."""

    def __init__(self, ends: float) -> None:
        self._ends = ends

    def __call__(self, retry_state: RetryCallState) -> bool:
        return asyncio.get_running_loop().time() + retry_state.upcoming_sleep >= self._ends
