"""One attempt at a call: asks its provider, again where that helps, and makes the call's response of what came.

Tries end with the deadline, and what may have been billed is tracked. An attempt at a target with a quota is one try:
the ledger decides when the next one may begin. A provider's answer may hold anything: lone
surrogates, numbers that are not finite, more than a message may hold. An answer that cannot be sent becomes a fault of
its own call, and never affects the settles of the same batch.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

from pydantic_core import from_json

from quintain.config.prices import Price
from quintain.contracts.api_request import ApiRequest
from quintain.contracts.invoke import InvokeRequest, OutputMessage, Result, TokenUsage, content_text
from quintain.contracts.ledger import Admission, AttemptOutcome
from quintain.contracts.message import DEFAULT_REPLY_BYTES, MAX_BODY_BYTES
from quintain.contracts.quota import TryOutcome, TryReport
from quintain.contracts.values import replace_surrogates
from quintain.errors import Cancelled, Expired, Fault, InternalFault, ProviderFailed, ReplyTooLarge, Throttled, TimedOut
from quintain_worker.providers.provider import Billing, Delta, Provider, ProviderAnswer, ProviderFailure
from quintain_worker.target import PauseState

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

    With neither, the call returns to its queue for a later attempt: nothing is charged, and no reply is sent. ``tries``
    is how often the provider was called.

    `AttemptOutcome.THROTTLED` has the fault of the try, and the call waits for another attempt: ``unproven`` is whether
    the try may have been billed. ``report`` is how the provider took the try, for the quota of the target.
    """

    tries: int
    answer: ProviderAnswer | None = None
    fault: Fault | None = None
    outcome: AttemptOutcome = AttemptOutcome.RESULT
    unproven: bool = False
    report: TryReport | None = None


class RetryPolicy(NamedTuple):
    """Limits on the tries of one attempt. ``ends_at`` is the deadline in the loop's seconds.

    ``timeout_seconds`` is the target's own limit on all tries and the waits between them, without the pauses of the
    target. ``unproven``: an earlier attempt may have been billed, so this call must not return to its queue as
    unbilled. ``has_quota``: the attempt is one try, after which the call asks again if it may; ``max_tries`` are those
    that are left. ``is_probe``: a failing try does not count.
    """

    max_tries: int
    ends_at: float
    timeout_seconds: float | None = None
    unproven: bool = False
    has_quota: bool = False
    is_probe: bool = False


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
    ) -> None:
        """Prepare an attempt; `run` starts it.

        ``on_text`` is called with the number of the try and each piece of text as it arrives; a later try voids the
        text of the earlier ones.
        """
        self._provider, self._request, self._on_text = provider, request, on_text
        self._policy, self._pause = retry_policy, pause
        timeout_seconds = math.inf if retry_policy.timeout_seconds is None else retry_policy.timeout_seconds
        self._timeout_ends_at = asyncio.get_running_loop().time() + timeout_seconds
        self._tries = 0
        self._billing = Billing.UNBILLED
        self._failure: ProviderFailure | None = None

    async def run(self) -> AttemptResult:
        """Call the provider until it answers, fails for good, or the deadline leaves no time for another try.

        No try starts while the target is paused. Every failure is returned as an `AttemptResult`, not raised.
        """
        if (remaining_seconds := self._remaining_seconds) <= 0:
            # The grant came too late: the provider was not called, and nothing is charged.
            fault = Expired("The deadline passed before the provider was called")
            return self._result(fault=fault, outcome=AttemptOutcome.REFUND, taken=TryOutcome.NOT_SENT)
        try:
            answer = await self._try_until_answered(remaining_seconds)
        except _CallReturned:
            return self._result(outcome=AttemptOutcome.REFUND, taken=TryOutcome.NOT_SENT)
        except ProviderFailure as failure:
            if self._may_ask_again(failure):
                result = self._result(fault=failure.fault, outcome=AttemptOutcome.THROTTLED, taken=failure.outcome)
                return result._replace(unproven=self._billing is not Billing.UNBILLED)
            return self._failed_result(failure.fault, failure.outcome)
        except Exception:
            # A defect in a provider: it is unknown what was sent before, so the call is charged and in doubt.
            log.exception("A defect in a provider")
            defect = InternalFault(charged=True)
            return self._result(fault=defect, outcome=AttemptOutcome.IN_DOUBT, taken=TryOutcome.UNKNOWN)
        return self._result(answer=answer, taken=TryOutcome.ANSWERED)

    async def _try_until_answered(self, remaining_seconds: float) -> ProviderAnswer:
        """Return the answer of the first try that has one. Raises the last `ProviderFailure`, or `_CallReturned`."""
        if self._pause.remaining_seconds > 0:
            remaining_seconds = await self._wait_before_try(0)
        while True:
            try:
                return await self._try_once(remaining_seconds)
            except ProviderFailure as failure:
                if self._policy.has_quota or not failure.retryable or self._tries >= self._policy.max_tries:
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
        if not self._policy.has_quota or not self._tries or self._remaining_seconds <= 0:
            return False
        if failure.outcome is TryOutcome.THROTTLED:
            return True
        return failure.retryable and (self._policy.is_probe or self._policy.max_tries > 1)

    def _failed_result(self, fault: Fault, taken: TryOutcome) -> AttemptResult:
        charged_fault = with_charge(fault, charged=self._billing is not Billing.UNBILLED)
        return self._result(fault=charged_fault, outcome=_OUTCOME_BY_BILLING[self._billing], taken=taken)

    def _result(
        self,
        *,
        taken: TryOutcome,
        answer: ProviderAnswer | None = None,
        fault: Fault | None = None,
        outcome: AttemptOutcome = AttemptOutcome.RESULT,
    ) -> AttemptResult:
        """Return the result, and with a quota how the provider took the last try."""
        report = None
        if self._policy.has_quota:
            usage = None if answer is None else answer.token_usage
            told = self._failure if answer is None else answer
            report = TryReport(
                outcome=taken,
                tokens=None if usage is None else float(usage.input + usage.output),
                rates=None if told is None else told.rates,
            )
        return AttemptResult(self._tries, answer, fault, outcome, report=report)

    @property
    def _remaining_seconds(self) -> float:
        return min(self._policy.ends_at, self._timeout_ends_at) - asyncio.get_running_loop().time()

    def _record_billing(self, billing: Billing) -> None:
        self._billing = max(self._billing, billing, key=_BILLING_SEVERITY.index)

    async def _try_once(self, remaining_seconds: float) -> ProviderAnswer:
        self._tries += 1
        on_text = None if self._on_text is None else partial(self._on_text, self._tries)
        try:
            # The provider applies the timeout itself; this limit is for one that does not.
            async with asyncio.timeout(remaining_seconds):
                # An `ApiRequest` comes with a provider that takes it.
                request: Any = self._request
                return await self._provider.answer(request, timeout_seconds=remaining_seconds, on_text=on_text)
        except ProviderFailure as failure:
            self._record_billing(failure.billing)
            self._failure = failure
            if failure.retry_after_seconds is not None and not self._policy.has_quota:
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

    async def _wait_before_try(self, seconds: float) -> float:
        """Wait ``seconds`` before a try, and longer while the target is paused; returns the seconds left for the try.

        Raises the last failure where the wait would exceed the deadline, and `_CallReturned` where the call must not be
        held that long or the worker stops. A call that may have been billed cannot be returned and waits to the end.
        """
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + seconds
        while (remaining_seconds := max(ends_at - (now := loop.time()), self._pause.remaining_seconds)) > 0:
            is_paused = self._pause.remaining_seconds > 0
            if remaining_seconds >= (self._policy.ends_at - now if is_paused else self._remaining_seconds):
                raise self._failure or _pause_failure(remaining_seconds)
            is_unbilled = self._billing is Billing.UNBILLED and not self._policy.unproven
            if is_unbilled and (self._pause.stopping or self._pause.holds_no_longer(remaining_seconds)):
                raise _CallReturned
            await self._pause.changed.wait(remaining_seconds)
            if is_paused:
                self._timeout_ends_at += loop.time() - now
        remaining_seconds = self._remaining_seconds
        if self._failure is not None and remaining_seconds <= 0:
            raise self._failure
        return remaining_seconds


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
    return corrected


def seconds_before_retry(retry_after_seconds: float | None, tries: int) -> float:
    """Return the provider's retry-after where it gave one, else a jittered exponential backoff."""
    if retry_after_seconds is not None:
        return retry_after_seconds
    longest_seconds = min(MAX_BACKOFF_SECONDS, INITIAL_BACKOFF_SECONDS * 2 ** (tries - 1))
    return random.uniform(0, longest_seconds)  # noqa: S311 -- jitter, not a secret


#: The JSON around a result in a settle batch. A settle that cannot be parsed would lose the whole batch.
SETTLE_ENVELOPE = (b'{"items":[{"reply":', b"}]}")


class CallResponse(NamedTuple):
    """The reply to the caller, a result also as its bytes on the wire, and the outcome for the ledger."""

    answer: Result | Fault
    outcome: AttemptOutcome
    wire: bytes = b""


class CallTiming(NamedTuple):
    """The target of a call, its fingerprint and price, and the milliseconds spent in the provider and in the queue."""

    target: str
    duration_ms: float
    queued_ms: float
    fingerprint: str | None = None
    price: Price | None = None


def response_of(attempt_result: AttemptResult, grant: Admission, timing: CallTiming) -> CallResponse:
    """Convert the result of an attempt into the call's response."""
    if attempt_result.fault is not None:
        # This attempt was not billed, but an earlier one may have been: the ledger keeps the call in doubt, so the
        # fault must say that it is charged.
        fault = with_charge(attempt_result.fault, charged=True) if grant.unproven else attempt_result.fault
        return CallResponse(fault, attempt_result.outcome)
    assert attempt_result.answer is not None, "an attempt result has an answer or a fault"
    try:
        result = _result(attempt_result.answer, attempt_result.tries, grant, timing)
        wire = result.to_wire()
        if attempt_result.answer.output is not None or attempt_result.answer.body is not None:
            # JSON that can be written may still be nested too deeply to be parsed; plain text has no nesting.
            from_json(SETTLE_ENVELOPE[0] + wire + SETTLE_ENVELOPE[1])
    except Exception:
        # The provider answered, but its answer cannot be encoded: the call ends, charged.
        log.exception("An answer of target %s cannot be encoded as a reply", timing.target)
        return CallResponse(
            ProviderFailed("The provider's answer cannot be encoded as a reply", charged=True), AttemptOutcome.CHARGED
        )
    # A reply is one message, however large the session's requests may be.
    max_bytes = min(max(grant.max_body_bytes or 0, DEFAULT_REPLY_BYTES), MAX_BODY_BYTES)
    if len(wire) > max_bytes:
        too_large = ReplyTooLarge(f"The answer has {len(wire)} bytes; the limit of this session is {max_bytes}")
        return CallResponse(too_large, AttemptOutcome.CHARGED)
    return CallResponse(result, AttemptOutcome.RESULT, wire)


#: The fields of a message that is nothing but text.
_PLAIN: Final = {"role": "assistant", "tool_calls": None, "reasoning": None, "refusal": None, "logprobs": None}


def _result(answer: ProviderAnswer, tries: int, grant: Admission, timing: CallTiming) -> Result:
    text = replace_surrogates(answer.text)
    # What is plain text is not validated again: its types are known here.
    is_plain = not answer.output and answer.body is None and not answer.ignored and _has_plain_fields(answer)
    make_result = Result.unchecked if is_plain else Result
    return make_result(
        output=[OutputMessage.unchecked(content=text, **_PLAIN)] if is_plain else _output(answer, text),
        token_usage=answer.token_usage,
        cost_usd=None if timing.price is None else timing.price.of_call(answer.token_usage),
        target=timing.target,
        model=answer.model,
        finish_reason=answer.finish_reason,
        attempts=grant.attempt - 1 + tries,
        cached=False,
        replayed=False,
        duration_ms=round(float(timing.duration_ms), 3),
        queued_ms=float(timing.queued_ms),
        call_count=grant.call_count,
        max_calls=grant.max_calls,
        target_fingerprint=timing.fingerprint,
        ignored=list(answer.ignored) or None,
        body=answer.body,
    )


def _output(answer: ProviderAnswer, text: str) -> list[OutputMessage]:
    """Return the answer's messages, the last of which has its text; an answer in the words of an API has none."""
    if answer.body is not None:
        return []
    messages = answer.output or []
    if messages and (not text or content_text(messages[-1].content) == text):
        return messages
    return [*messages, OutputMessage(content=text)]


def _has_plain_fields(answer: ProviderAnswer) -> bool:
    return (
        type(answer.text) is str
        and (answer.model is None or type(answer.model) is str)
        and (answer.finish_reason is None or type(answer.finish_reason) is str)
        and (answer.token_usage is None or type(answer.token_usage) is TokenUsage)
    )
