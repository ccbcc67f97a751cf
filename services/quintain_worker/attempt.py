"""One attempt at a call: asks its provider, again where that helps; and the tries of a call.

Tries end with the deadline, and what may have been billed is tracked. An attempt at a target with a quota is one try:
the ledger decides when the next one may begin.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from quintain.contracts.api_request import ApiRequest
from quintain.contracts.invoke import FaultReply, InvokeRequest, TokenUsage
from quintain.contracts.ledger import Admission, AttemptOutcome
from quintain.contracts.quota import TryFailure, TryOutcome, TryReport
from quintain.errors import (
    Cancelled,
    ConversationLost,
    Expired,
    Fault,
    InternalFault,
    ProviderFailed,
    Throttled,
    TimedOut,
    WorkerLost,
)
from quintain.runtime.concurrency import TimeLimit, TimeLimits
from quintain_worker.providers.provider import Billing, Delta, ModelUsage, Provider, ProviderAnswer, ProviderFailure
from quintain_worker.target import GRACE_SECONDS, PauseState, WorkerTarget

log = logging.getLogger(__name__)

#: Backoff between tries, in seconds, with full jitter: the first is at most this long, and each further one twice that.
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

    With neither, the call returns to its queue for a later attempt, uncharged and without a reply. ``tries`` is how
    often the provider was called, and ``unproven`` how many of the tries failed and may have been billed.
    `AttemptOutcome.RETRY` has the fault of the try, and the call waits for another attempt. ``report`` is how the
    provider took the try, for its quota. ``failed_usd``: the bill of a fault's tries. ``models``: `ProviderAnswer`.
    """

    tries: int
    answer: ProviderAnswer | None = None
    fault: Fault | None = None
    outcome: AttemptOutcome = AttemptOutcome.RESULT
    unproven: int = 0
    report: TryReport | None = None
    failed_usd: float | None = None
    models: ModelUsage | None = None

    def settle_fields(self) -> dict[str, Any]:
        """Return what the ledger needs to know of its tries, by the parameters of `IncomingRequest.settle`."""
        return {name: getattr(self, name) for name in ("report", "tries", "unproven", "failed_usd", "models")}


class RetryPolicy(NamedTuple):
    """Limits on the tries of one attempt. ``ends_at`` is the deadline in the loop's seconds.

    ``waits_until`` is until when the call may wait for a provider that is paused or throttles. ``timeout_seconds`` is
    the target's own limit on all tries and the waits between them, without the pauses of the target. ``unproven``: an
    earlier attempt may have been billed, so this call must not return to its queue as unbilled. ``is_one_try``: the
    attempt is one try, after which the call asks again if it may; ``max_tries`` are those that are left. ``has_quota``:
    a throttled try does not count. ``is_probe``: nor does a failing one. ``asks_once``: the target is not asked where
    an earlier attempt may have reached it; where it ``holds_conversations``, a turn is told that its own is lost.
    ``failures_are_free``: the provider does not bill what it answers with an error.
    """

    max_tries: int
    ends_at: float
    timeout_seconds: float = math.inf
    unproven: bool = False
    has_quota: bool = False
    is_one_try: bool = False
    is_probe: bool = False
    asks_once: bool = False
    holds_conversations: bool = False
    waits_until: float = math.inf
    failures_are_free: bool = False


class _CallReturned(Exception):
    """The wait before the next try is too long, and nothing was billed: the call returns to its queue."""


@dataclass(slots=True, eq=False)
class Attempt:
    """One attempt at a call: tries the provider until it succeeds or the policy ends it, and tracks the billing.

    ``on_text`` is called with the number of the try and each piece of its text, which a later try voids.
    """

    provider: Provider
    request: InvokeRequest | ApiRequest
    policy: RetryPolicy
    pause: PauseState
    on_text: Callable[[int, Delta], None] | None = None
    limits: TimeLimits = field(default_factory=TimeLimits)
    #: When the target's own limit ends it, in the loop's seconds.
    _timeout_ends_at: float = math.inf
    _tries: int = 0
    _unproven: int = 0
    #: What failed tries cost, in US dollars, as far as that is known.
    _told: list[float] = field(default_factory=list)
    _billing: Billing = Billing.UNBILLED
    _failure: ProviderFailure | None = None

    async def run(self) -> AttemptResult:
        """Call the provider until it answers, fails for good, or the deadline leaves no time for another try.

        No try starts while the target is paused. Every failure is returned as an `AttemptResult`, not raised.
        """
        now = asyncio.get_running_loop().time()
        self._timeout_ends_at = now + self.policy.timeout_seconds
        remaining_seconds = min(self.policy.ends_at, self._timeout_ends_at) - now
        if (refusal := self._refusal(remaining_seconds)) is not None:
            return self._result(fault=refusal, outcome=AttemptOutcome.REFUND, taken=TryOutcome.NOT_SENT)
        try:
            answer = await self._try_until_answered(remaining_seconds)
        except _CallReturned:
            return self._result(outcome=AttemptOutcome.REFUND, taken=TryOutcome.NOT_SENT)
        except ProviderFailure as failure:
            if self._may_ask_again(failure):
                return self._result(fault=failure.fault, outcome=AttemptOutcome.RETRY, taken=failure.outcome)
            return self._failed_result(failure.fault, failure.outcome)
        except Exception:
            # A defect in a provider: it is unknown what was sent before, so the call is charged and in doubt.
            log.exception("A defect in a provider")
            defect = InternalFault(charged=True)
            return self._result(fault=defect, outcome=AttemptOutcome.IN_DOUBT, taken=TryOutcome.UNKNOWN)
        return self._result(answer=answer, taken=TryOutcome.ANSWERED)

    def _refusal(self, remaining_seconds: float) -> Fault | None:
        """Return why the provider is not called at all, so that this attempt is not charged."""
        if remaining_seconds <= 0:  # the grant came too late
            return Expired("The deadline passed before the provider was called")
        if not (self.policy.asks_once and self.policy.unproven):
            return None
        if (
            self.policy.holds_conversations
            and isinstance(self.request, InvokeRequest)
            and self.request.turn is not None
        ):
            return ConversationLost("The worker that held this conversation was lost in the middle of a turn")
        return WorkerLost("The worker that asked this target was lost; it may have acted, and is not asked again")

    async def _try_until_answered(self, remaining_seconds: float) -> ProviderAnswer:
        """Return the answer of the first try that has one. Raises the last `ProviderFailure`, or `_CallReturned`."""
        if self.pause.until > -math.inf:
            remaining_seconds = await self._wait_before_try(0)
        while True:
            try:
                return await self._try_once(remaining_seconds)
            except ProviderFailure as failure:
                if self.policy.is_one_try or not failure.retryable or self._tries >= self.policy.max_tries:
                    raise
                seconds = seconds_before_retry(failure.retry_after_seconds, self._tries)
                remaining_seconds = await self._wait_before_try(seconds)

    def cancelled_result(self) -> AttemptResult:
        """Return the result of an attempt whose `run` was cancelled, with the billing of its tries so far."""
        taken = TryOutcome.UNKNOWN if self._tries else TryOutcome.NOT_SENT
        if self._billing is Billing.UNBILLED:
            return self._failed_result(Cancelled(), taken)
        fault = Cancelled("The caller cancelled the call; it may have been billed", charged=True)
        return self._failed_result(fault, taken)

    def _may_ask_again(self, failure: ProviderFailure) -> bool:
        """Whether the call waits for another attempt after this try, the only one of its own."""
        waits_until = min(self.policy.ends_at, self._timeout_ends_at, self.policy.waits_until)
        if not self.policy.is_one_try or not self._tries or waits_until <= asyncio.get_running_loop().time():
            return False
        if failure.outcome is TryOutcome.THROTTLED and self.policy.has_quota:
            return True
        return failure.retryable and (self.policy.is_probe or self.policy.max_tries > 1)

    def _failed_result(self, fault: Fault, taken: TryOutcome) -> AttemptResult:
        fault = with_charge(fault, charged=self._billing is not Billing.UNBILLED)
        return self._result(fault=fault, outcome=_OUTCOME_BY_BILLING[self._billing], taken=taken)

    def _result(
        self,
        *,
        taken: TryOutcome,
        answer: ProviderAnswer | None = None,
        fault: Fault | None = None,
        outcome: AttemptOutcome = AttemptOutcome.RESULT,
    ) -> AttemptResult:
        """Return the result, and how the provider took the last try."""
        usage = None if answer is None else answer.token_usage
        ended = self._failure if answer is None else answer
        report = TryReport(
            outcome=taken,
            # What a provider says may be anything.
            tokens=float(usage.input + usage.output) if isinstance(usage, TokenUsage) else None,
            rates=None if ended is None else ended.rates,
            failure=_reported_failure(ended) if isinstance(ended, ProviderFailure) else None,
        )
        failed_usd = sum(self._told) if answer is None and 0 < self._unproven == len(self._told) else None
        unproven = self._unproven - (0 if answer is None else self._told.count(0.0))
        models = None if answer is None else answer.models
        return AttemptResult(self._tries, answer, fault, outcome, unproven, report, failed_usd, models)

    @property
    def _remaining_seconds(self) -> float:
        return min(self.policy.ends_at, self._timeout_ends_at) - asyncio.get_running_loop().time()

    def _record_billing(self, billing: Billing) -> None:
        self._unproven += billing is not Billing.UNBILLED
        self._billing = max(self._billing, billing, key=_BILLING_SEVERITY.index)

    async def _try_once(self, remaining_seconds: float) -> ProviderAnswer:
        self._tries += 1
        on_text = None if self.on_text is None else partial(self.on_text, self._tries)
        try:
            # The provider applies the timeout itself; this limit is for one that does not.
            with TimeLimit(self.limits, asyncio.get_running_loop().time() + remaining_seconds + GRACE_SECONDS):
                # An `ApiRequest` comes with a provider that takes it.
                request: Any = self.request
                answer = await self.provider.answer(request, timeout_seconds=remaining_seconds, on_text=on_text)
            return await answer.with_bill(self.policy.ends_at)
        except ProviderFailure as failure:
            self._record_billing(failure.billing)
            self._failure = failure
            if failure.retry_after_seconds is not None and not self.policy.has_quota:
                self.pause.pause_for(failure.retry_after_seconds)
            self._told += await failure.known_bill(failures_are_free=self.policy.failures_are_free)
            raise
        except TimeoutError:
            self._record_billing(Billing.UNKNOWN)
            self._failure = ProviderFailure(TimedOut(), Billing.UNKNOWN)
            raise self._failure from None
        except Exception:
            self._record_billing(Billing.UNKNOWN)
            raise
        except asyncio.CancelledError as error:
            self._record_billing(Billing.UNKNOWN)
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # The provider let a `CancelledError` of its own escape, which must not stop the worker.
            raise RuntimeError("a provider raised CancelledError") from error

    async def _wait_before_try(self, seconds: float) -> float:
        """Wait ``seconds`` before a try, and longer while the target is paused; returns the seconds left for the try.

        Raises the last failure where the wait would exceed the deadline, and `_CallReturned` where the call must not be
        held that long or the worker stops. A call that may have been billed cannot be returned, and waits to the end.
        It is left to another worker where this one stops before that.
        """
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + seconds
        while (remaining_seconds := max(ends_at - (now := loop.time()), self.pause.remaining_seconds)) > 0:
            is_paused = self.pause.remaining_seconds > 0
            limit = self.policy.ends_at if is_paused else min(self.policy.ends_at, self._timeout_ends_at)
            if is_paused or (self._failure is not None and self._failure.outcome is TryOutcome.THROTTLED):
                limit = min(limit, self.policy.waits_until)
            if remaining_seconds >= limit - now:
                raise self._failure or _pause_failure(remaining_seconds)
            is_unbilled = self._billing is Billing.UNBILLED and not self.policy.unproven
            if is_unbilled and (self.pause.stopping or self.pause.holds_no_longer(remaining_seconds)):
                raise _CallReturned
            if now + remaining_seconds >= self.pause.stops_at:
                # Its worker will not be there: another one takes the call over.
                raise asyncio.CancelledError
            await self.pause.changed.wait(remaining_seconds)
            if is_paused:
                self._timeout_ends_at += loop.time() - now
        remaining_seconds = self._remaining_seconds
        if self._failure is not None and remaining_seconds <= 0:
            raise self._failure
        return remaining_seconds


def _reported_failure(failure: ProviderFailure) -> TryFailure | None:
    """Return what a report says of a failed try; None where the provider answered, and only this call is wrong."""
    if failure.outcome is TryOutcome.ANSWERED and failure.cause is None:
        return None
    return TryFailure.of(failure.fault.message, failure.cause)


def _pause_failure(seconds: float) -> ProviderFailure:
    fault = Throttled("The target is paused until after the deadline", retry_after_ms=round(seconds * 1000))
    return ProviderFailure(fault, Billing.UNBILLED, outcome=TryOutcome.NOT_SENT)


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
    corrected.steps, corrected.steps_cut, corrected.cost_usd = fault.steps, fault.steps_cut, fault.cost_usd
    return corrected


def seconds_before_retry(retry_after_seconds: float | None, tries: int) -> float:
    """Return the provider's retry-after where it gave one, else a jittered exponential backoff."""
    if retry_after_seconds is not None:
        return retry_after_seconds
    longest_seconds = min(MAX_BACKOFF_SECONDS, INITIAL_BACKOFF_SECONDS * 2 ** (tries - 1))
    return random.uniform(0, longest_seconds)  # noqa: S311 -- jitter, not a secret


@dataclass(slots=True, eq=False)
class CallTries:
    """What the attempts of one delivery have used so far of what its target allows.

    The time between them counts neither against ``timeout_seconds`` nor against ``max_tries``. Nor does a try that was
    throttled, or one that failed while the provider is out: they say nothing of the call.
    """

    #: How often the provider was called.
    count: int = 0
    #: How long all of them took, in milliseconds.
    took_ms: float = 0.0
    _seconds: float = 0.0
    #: The fault of the last try, after which the call asked for another one.
    _last: Fault | None = None
    _has_quota: bool = False

    def policy(
        self, target: WorkerTarget, grant: Admission, ends_at: float, waits_until: float = math.inf
    ) -> RetryPolicy:
        """Return what is left for an attempt."""
        self._has_quota = target.has_quota
        return RetryPolicy(
            max_tries=target.max_tries - grant.tries,
            ends_at=ends_at,
            timeout_seconds=(target.timeout_seconds or math.inf) - self._seconds,
            unproven=grant.unproven,
            has_quota=target.has_quota,
            is_one_try=target.has_quota or bool(grant.is_one_try),
            is_probe=bool(grant.is_probe),
            asks_once=target.asks_once,
            holds_conversations=target.holds_conversations,
            waits_until=waits_until,
            failures_are_free=target.price is not None and target.price.failed_tries == "free",
        )

    def add(self, result: AttemptResult, seconds: float, grant: Admission) -> float | None:
        """Add one that failed, and took so many seconds; returns how long the next one waits, None where the try does
        not count.
        """
        self.count += result.tries
        self.took_ms += seconds * 1000
        assert result.report is not None, "a try was sent"
        self._last = result.fault
        if result.report.outcome is TryOutcome.THROTTLED and self._has_quota:
            return None
        self._seconds += seconds
        if grant.is_probe:
            return None
        rates = result.report.rates
        asked = None if rates is None else rates.retry_after_seconds
        return min(MAX_BACKOFF_SECONDS, seconds_before_retry(asked, grant.tries + 1))

    def fault_of(self, refusal: FaultReply) -> Fault:
        """Return the fault of a call that was refused: one that waited until its deadline is told why it waited.

        If it was throttled, and nothing was billed, it ends as that.
        """
        fault, last = refusal.to_fault(), self._last
        fault.duration_ms = fault.duration_ms or round(self.took_ms, 3) or None
        if last is None or not isinstance(fault, Expired | Throttled | TimedOut):
            return fault
        if isinstance(last, Throttled) and fault.charged is False:
            last.duration_ms = fault.duration_ms
            return last
        fault.message = f"{fault.message}; its last try failed: {last.message}"
        fault.provider_error = last.provider_error
        return fault
