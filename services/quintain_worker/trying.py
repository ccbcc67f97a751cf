"""Asking a provider, and asking again: the one owner of retries, inside the deadline, honest about the bill."""

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
from quintain.contracts.ledger import Outcome
from quintain.errors import Cancelled, Expired, Fault, InternalFault, ProviderFailed, Throttled, TimedOut
from quintain_worker.pause import Pause
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
    """How an attempt ended: an answer, or a fault with what the ledger is to make of it; neither of them where the
    call is given back, for a later attempt of anybody's."""

    tries: int
    answer: Answer | None = None
    fault: Fault | None = None
    outcome: Outcome = Outcome.RESULT

    @property
    def given_back(self) -> bool:
        """Whether the call goes on elsewhere: nothing is owed for it, and nobody is answered."""
        return self.answer is None and self.fault is None


@dataclass(frozen=True, slots=True)
class Patience:
    """How often a provider is asked, and until when (the loop's seconds).

    ``timeout_seconds`` is the target's own bound on all its tries and the waits between them, the pauses of the
    target apart. ``unproven``: an earlier attempt may have been billed, so that this call cannot be given back as if
    nothing had happened.
    """

    most_tries: int
    ends: float
    timeout_seconds: float | None = None
    unproven: bool = False


class _GivenBack(Exception):
    """The call would wait for too long, and owes nothing."""


class Attempt:
    """One attempt at a provider: as many tries as it takes, and what they have come to so far."""

    def __init__(
        self,
        provider: Provider,
        request: InvokeRequest,
        patience: Patience,
        pause: Pause,
        heard: Callable[[int, str], None] | None = None,
    ) -> None:
        """``heard`` is told each piece of the answer's text as it comes, with the number of its try: a later try voids
        the pieces before it."""
        self._provider, self._request, self._heard = provider, request, heard
        self._patience, self._pause = patience, pause
        timeout = math.inf if patience.timeout_seconds is None else patience.timeout_seconds
        self._timeout_ends = asyncio.get_running_loop().time() + timeout
        self._tries = 0
        self._owed = Billing.UNBILLED
        self._failure: ProviderFailure | None = None

    async def run(self) -> Ending:
        """Ask the provider until it answers, refuses for good, or the deadline is too near for another try. Nobody is
        asked while the target is paused."""
        if self._left <= 0:
            # The grant came too late: no provider was called, and nothing is owed.
            late = Expired("The deadline passed before the provider was called")
            return Ending(tries=0, fault=late, outcome=Outcome.REFUND)
        try:
            await self._rest(0)
            answer = await self._answer()
            return Ending(tries=self._tries, answer=answer)
        except _GivenBack:
            return Ending(tries=self._tries, outcome=Outcome.REFUND)
        except ProviderFailure as failure:
            return self._ended_by(failure.fault)
        except Exception:
            # A defect in a provider's code: what it did before is not known, so it is charged and shown.
            log.exception("A defect in a provider")
            return Ending(tries=self._tries, fault=InternalFault(charged=True), outcome=Outcome.DOUBT)

    async def _answer(self) -> Answer:
        try:
            return await self._ask()
        except ProviderFailure as failure:
            missed = [failure]

        async def ask() -> Answer:
            if missed:
                raise missed.pop()
            return await self._ask()

        # Most calls are answered at once, without all this: it begins with the failure that it missed.
        retrying = AsyncRetrying(
            retry=retry_if_exception(lambda error: isinstance(error, ProviderFailure) and error.again),
            wait=_Wait(),
            stop=stop_after_attempt(self._patience.most_tries),
            sleep=self._rest,
            reraise=True,
        )
        return await retrying(ask)

    def taken_back(self) -> Ending:
        """How an attempt whose `run` was cancelled ends: by what is owed for it so far."""
        if self._owed is Billing.UNBILLED:
            return self._ended_by(Cancelled())
        return self._ended_by(Cancelled("The caller took the call back; it may have been billed", charged=True))

    def _ended_by(self, fault: Fault) -> Ending:
        told = as_charged(fault, charged=self._owed is not Billing.UNBILLED)
        return Ending(tries=self._tries, fault=told, outcome=_OUTCOMES[self._owed])

    @property
    def _left(self) -> float:
        return min(self._patience.ends, self._timeout_ends) - asyncio.get_running_loop().time()

    def _owe(self, billing: Billing) -> None:
        self._owed = max(self._owed, billing, key=_WORST.index)

    async def _ask(self) -> Answer:
        self._tries += 1
        left = self._left
        heard = None if self._heard is None else partial(self._heard, self._tries)
        try:
            # The provider bounds itself; this one is for a provider that does not.
            async with asyncio.timeout(left):
                return await self._provider.answer(self._request, timeout_seconds=left, heard=heard)
        except ProviderFailure as failure:
            self._owe(failure.billing)
            self._failure = failure
            if failure.retry_after_seconds is not None:
                self._pause.ask(failure.retry_after_seconds)
            raise
        except TimeoutError:
            self._owe(Billing.UNKNOWN)
            raise ProviderFailure(TimedOut(), Billing.UNKNOWN) from None
        except asyncio.CancelledError as leaked:
            self._owe(Billing.UNKNOWN)
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # Nobody cancelled this call: a provider let a cancellation of its own escape, and must not end the
            # worker's.
            raise RuntimeError("a provider raised CancelledError") from leaked

    async def _rest(self, seconds: float) -> None:
        """Wait before a try: for this long, and for as long as the target is paused.

        Raises the last failure where that would outlast the deadline, and `_GivenBack` where it would be held for
        too long, or the worker stops. What may have been billed cannot be given back: it waits to the end.
        """
        loop = asyncio.get_running_loop()
        ends = loop.time() + seconds
        while (left := max(ends - (now := loop.time()), self._pause.left)) > 0:
            paused = self._pause.left > 0
            if left >= (self._patience.ends - now if paused else self._left):
                raise self._failure or _paused(left)
            owes_nothing = self._owed is Billing.UNBILLED and not self._patience.unproven
            if owes_nothing and (self._pause.stopping or self._pause.holds_no_longer(left)):
                raise _GivenBack
            await self._pause.news.wait(left)
            if paused:
                self._timeout_ends += loop.time() - now
        if self._failure is not None and self._left <= 0:
            raise self._failure


def _paused(seconds: float) -> ProviderFailure:
    fault = Throttled("The target is paused until after the deadline", retry_after_ms=round(seconds * 1000))
    return ProviderFailure(fault, Billing.UNBILLED)


def as_charged(fault: Fault, *, charged: bool) -> Fault:
    """The fault, saying what the ledger will say of its charge."""
    if fault.charged == charged:
        return fault
    kind = type(fault) if fault.always_charged is None else ProviderFailed
    return kind(f"{fault.message} (an earlier try may have been billed)" if charged else fault.message, charged=charged)


class _Wait(wait_base):
    """What the provider asked for, where it asked; a jittered pause otherwise."""

    def __init__(self) -> None:
        self._jitter = wait_random_exponential(multiplier=FIRST_PAUSE_SECONDS, max=MOST_PAUSE_SECONDS)

    def __call__(self, retry_state: RetryCallState) -> float:
        error = retry_state.outcome.exception() if retry_state.outcome else None
        asked = error.retry_after_seconds if isinstance(error, ProviderFailure) else None
        return self._jitter(retry_state) if asked is None else asked
