"""One attempt at a call: one try at its provider, and what follows from how that ended.

A try that failed may be repeated: the call then asks the ledger for another attempt, which says when that begins.

A turn of a conversation without a `Continuation.route` may be answered by any worker. One with the route of a worker is
published to that worker's own queue; where it comes to another worker, or is not taken in time, its conversation is
lost.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import math
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

from quintain.contracts.agents import AgentStep, Continuation
from quintain.contracts.api_request import ApiRequest
from quintain.contracts.invoke import FaultReply, InvokeRequest, TokenUsage
from quintain.contracts.ledger import Admission, AttemptOutcome
from quintain.contracts.quota import RateReport, TryFailure, TryOutcome, TryReport
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
from quintain.observe.semconv import (
    input_content,
    output_content,
    provider_span,
    response_attributes,
    shown_value,
    tool_span,
)
from quintain.observe.spans import Span, record_finished_span, span, tracer
from quintain.runtime.concurrency import TimeLimit, TimeLimits
from quintain_worker.providers.api_conversation import answer_in_words
from quintain_worker.providers.provider import (
    ApiProvider,
    Billing,
    CallHolder,
    ConversationHolder,
    ModelUsage,
    OnText,
    ProviderAnswer,
    ProviderFailure,
    SessionScopedProvider,
)
from quintain_worker.target import GRACE_SECONDS, OK, WorkerMetrics, WorkerTarget

log = logging.getLogger(__name__)

#: Backoff between tries, in seconds, with full jitter: the first is at most this long, and each further one twice that.
INITIAL_BACKOFF_SECONDS = 0.5
MAX_BACKOFF_SECONDS = 30.0

_OUTCOME_BY_BILLING: Final = {
    Billing.UNBILLED: AttemptOutcome.REFUND,
    Billing.BILLED: AttemptOutcome.CHARGED,
    Billing.UNKNOWN: AttemptOutcome.IN_DOUBT,
}


class Try(NamedTuple):
    """What an attempt brought: an answer, or a fault with the outcome to settle.

    ``is_sent``: the provider was asked, which took ``seconds``; ``is_unproven``: that failed, and may have been billed,
    at ``failed_usd`` where that is known. ``report`` is how the provider took it. ``models``: `ProviderAnswer`. After
    `AttemptOutcome.RETRY` the call waits for its next try, ``retry_after_seconds`` at least. ``is_counted``: the try
    counts against the target's ``max_tries``, and its time against its ``timeout_seconds``.
    """

    outcome: AttemptOutcome
    report: TryReport | None = None
    answer: ProviderAnswer | None = None
    fault: Fault | None = None
    is_sent: bool = False
    is_unproven: bool = False
    failed_usd: float | None = None
    models: ModelUsage | None = None
    seconds: float = 0.0
    retry_after_seconds: float = 0.0
    is_counted: bool = True


class TryLimits(NamedTuple):
    """Until when a try may run, and until when its call may wait for another one, in the loop's seconds, and how many
    seconds its target has left for it."""

    ends_at: float
    waits_until: float = math.inf
    seconds: float = math.inf

    @classmethod
    def of(cls, target: WorkerTarget, tries: Sequence[Try], ends_at: float, waits_until: float) -> TryLimits:
        """Return the limits of a call's next try: the time of those before counts against the target's own."""
        seconds = math.inf
        if target.timeout_seconds is not None:
            seconds = target.timeout_seconds - sum(each.seconds for each in tries if each.is_counted)
        return cls(ends_at, waits_until, seconds)


@dataclass(slots=True, eq=False)
class Attempt:
    """An attempt that was granted. ``on_text`` is called with each piece of its answer."""

    target: WorkerTarget
    request: InvokeRequest | ApiRequest
    grant: Admission
    holder: CallHolder
    limits: TryLimits
    metrics: WorkerMetrics
    time_limits: TimeLimits
    on_text: OnText | None = None
    _is_sent: bool = False
    #: What is known of its bill.
    _billing: Billing = Billing.UNBILLED

    async def run(self) -> Try:
        """Ask the provider once. Every failure is returned, and none is raised."""
        loop = asyncio.get_running_loop()
        began_at = loop.time()
        seconds = min(self.limits.ends_at - began_at, self.limits.seconds)
        if (refusal := self._refusal(seconds)) is not None:
            # What it says of the charge is that of the attempts before.
            return Try(AttemptOutcome.REFUND, TryReport(outcome=TryOutcome.NOT_SENT), fault=refusal)
        try:
            answer = await self._ask(seconds)
        except ProviderFailure as failure:
            self._billing = failure.billing
            is_free = self.target.price is not None and self.target.price.failed_tries == "free"
            told = await failure.known_bill(failures_are_free=is_free)
            failed = self._failed(failure.fault, _report_of(failure))._replace(
                failed_usd=told[0] if told else None, seconds=loop.time() - began_at
            )
            return self._to_repeat(failure, failed) or failed
        except Exception:
            # A defect in a provider: it is unknown what was sent before, so the call is charged and in doubt.
            log.exception("A defect in a provider")
            return self._failed(InternalFault(charged=True), TryReport(outcome=TryOutcome.UNKNOWN))
        usage = answer.token_usage
        # A provider's answer may hold anything.
        tokens = float(usage.input + usage.output) if isinstance(usage, TokenUsage) else None
        report = TryReport.unchecked(outcome=TryOutcome.ANSWERED, tokens=tokens, rates=answer.rates, failure=None)
        seconds = loop.time() - began_at
        return Try(AttemptOutcome.RESULT, report, answer, is_sent=True, models=answer.models, seconds=seconds)

    def cancelled(self) -> Try:
        """Return what an attempt brought whose `run` was cancelled."""
        report = TryReport(outcome=TryOutcome.UNKNOWN if self._is_sent else TryOutcome.NOT_SENT)
        if self._billing is Billing.UNBILLED:
            return self._failed(Cancelled(), report)
        fault = Cancelled("The caller cancelled the call; it may have been billed", charged=True)
        return self._failed(fault, report)

    def _refusal(self, seconds: float) -> Fault | None:
        """Return why the provider is not called at all, so that this attempt is not charged."""
        if seconds <= 0:  # the grant came too late
            return Expired("The deadline passed before the provider was called")
        if not (self.target.asks_once and self.grant.unproven):
            return None
        provider = self.target.provider
        holds_conversations = isinstance(provider, ConversationHolder) and provider.holds_conversations
        if holds_conversations and isinstance(self.request, InvokeRequest) and self.request.turn is not None:
            return ConversationLost("The worker that held this conversation was lost in the middle of a turn")
        return WorkerLost("The worker that asked this target was lost; it may have acted, and is not asked again")

    async def _ask(self, seconds: float) -> ProviderAnswer:
        """Ask the provider. Raises `ProviderFailure`."""
        self._is_sent, self._billing = True, Billing.UNKNOWN
        try:
            # The provider applies the timeout itself; this limit is for one that does not.
            with TimeLimit(self.time_limits, asyncio.get_running_loop().time() + seconds + GRACE_SECONDS):
                answer = await ask_provider(
                    *(self.target, self.holder, self.metrics, self.request, seconds, self.on_text)
                )
            return await answer.with_bill(self.limits.ends_at)
        except TimeoutError:
            raise ProviderFailure(TimedOut(), Billing.UNKNOWN) from None
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # The provider let a `CancelledError` of its own escape, which must not stop the worker.
            raise RuntimeError("a provider raised CancelledError") from error

    def _failed(self, fault: Fault, report: TryReport) -> Try:
        """Return a try that ends its call with a fault."""
        is_unproven = self._billing is not Billing.UNBILLED
        fault = with_charge(fault, charged=is_unproven)
        outcome = _OUTCOME_BY_BILLING[self._billing]
        return Try(outcome, report, fault=fault, is_sent=self._is_sent, is_unproven=is_unproven)

    def _to_repeat(self, failure: ProviderFailure, failed: Try) -> Try | None:
        """Return a failed try as one that another follows; None where none may.

        What the provider refused for its limits does not count where a quota orders its tries, nor does what failed
        while the provider is out: they say nothing of the call.
        """
        is_throttled = failure.outcome is TryOutcome.THROTTLED and self.target.has_quota
        is_counted = not (is_throttled or self.grant.is_probe)
        tries = self.grant.tries + 1
        if not (failure.retryable or is_throttled) or (is_counted and tries >= self.target.max_tries):
            return None
        wait_seconds = 0.0
        if is_counted:
            wait_seconds = seconds_before_retry(failure.retry_after_seconds, tries)
            if self.target.has_quota:  # whose line has heard what its provider asked for
                wait_seconds = min(wait_seconds, MAX_BACKOFF_SECONDS)
        next_at = asyncio.get_running_loop().time() + wait_seconds
        is_late = next_at >= min(self.limits.ends_at, self.limits.waits_until)
        if is_late or failed.seconds >= self.limits.seconds:
            return None
        return failed._replace(
            outcome=AttemptOutcome.RETRY,
            fault=failure.fault,
            retry_after_seconds=wait_seconds,
            is_counted=is_counted,
        )


def _report_of(failure: ProviderFailure) -> TryReport:
    """Return what the ledger is told of a failed try; of one of which only this call is wrong, no words."""
    rates, words = failure.rates, None
    if rates is None and failure.retry_after_seconds is not None:
        rates = RateReport(retry_after_seconds=failure.retry_after_seconds)
    if failure.outcome is not TryOutcome.ANSWERED or failure.cause is not None:
        words = TryFailure.of(failure.fault.message, failure.cause)
    return TryReport(outcome=failure.outcome, rates=rates, failure=words)


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


def fault_after(tries: Sequence[Try], refusal: FaultReply) -> Fault:
    """Return the fault of a call that was refused: one that waited until its deadline is told why it waited.

    If it was throttled, and nothing was billed, it ends as that.
    """
    fault = refusal.to_fault()
    fault.duration_ms = fault.duration_ms or round(sum(each.seconds for each in tries) * 1000, 3) or None
    last = tries[-1].fault if tries else None
    if last is None or not isinstance(fault, Expired | Throttled | TimedOut):
        return fault
    if isinstance(last, Throttled) and fault.charged is False:
        last.duration_ms = fault.duration_ms
        return last
    fault.message = f"{fault.message}; its last try failed: {last.message}"
    fault.provider_error = last.provider_error
    return fault


#: So many tools of a call have a span.
MAX_TOOL_SPANS = 200


async def ask_provider(
    target: WorkerTarget,
    holder: CallHolder,
    metrics: WorkerMetrics,
    request: InvokeRequest | ApiRequest,
    seconds: float,
    on_text: OnText | None = None,
) -> ProviderAnswer:
    """Ask the provider of a target once, for at most ``seconds``, in the words of the request, and measure it.

    Raises what `Provider.answer` raises.
    """
    if isinstance(request, ApiRequest) and not isinstance(target.provider, ApiProvider):
        return await answer_in_words(partial(ask_provider, target, holder, metrics), request, seconds, on_text)
    started_at = time.perf_counter()
    # Remains UNKNOWN where the try is cancelled or raises anything but `ProviderFailure`.
    end: str = Billing.UNKNOWN.value
    ask = partial(_ask_unless_held, target, holder, request, seconds, on_text)
    card = target.card
    assert card is not None, "the worker has set it"
    try:
        if tracer() is None:
            answer = await ask()
        else:
            with span(partial(provider_span, card.name, card.provider, card.model, request)) as try_span:
                answer = await _ask_traced(target, ask, request, try_span)
        end = OK
    except ProviderFailure as failure:
        end = failure.billing.value
        if isinstance(failure.fault, Throttled):
            metrics.throttled(target.name).inc()
        raise
    finally:
        metrics.provider_seconds(target.name, end).observe(time.perf_counter() - started_at)
    return answer


async def _ask_traced(
    target: WorkerTarget,
    ask: Callable[[], Awaitable[ProviderAnswer]],
    request: InvokeRequest | ApiRequest,
    try_span: Span,
) -> ProviderAnswer:
    """Ask, and record what the answer says of itself; with ``trace_content`` prompts and answers too."""
    if not try_span.is_recording:
        return await ask()
    if target.trace_content:
        try_span.set_attributes(input_content(request))
    asked_at = time.perf_counter()
    try:
        answer = await ask()
    except ProviderFailure as failure:
        try_span.set_attributes({"quintain.billing": failure.billing.value})
        raise
    try_span.set_attributes(response_attributes(answer.model, answer.finish_reason, answer.token_usage))
    for step in answer.steps[:MAX_TOOL_SPANS]:
        _record_tool(step, time.perf_counter() - asked_at)
    if target.trace_content:
        try_span.set_attributes(output_content(answer.text, answer.output, answer.finish_reason, answer.body))
    return answer


def _record_tool(step: AgentStep, seconds: float) -> None:
    """Record the span of a tool that ran in a call of so many seconds, if its step says when, and that may be true."""
    if step.operation != "execute_tool" or step.start_ms is None or step.duration_ms is None:
        return
    ended_seconds_ago = seconds - (step.start_ms + step.duration_ms) / 1000
    if step.start_ms >= 0 and step.duration_ms >= 0 and ended_seconds_ago >= 0:
        record_finished_span(
            tool_span(step.tool or "", step.tool_call_id),
            duration_seconds=step.duration_ms / 1000,
            ended_seconds_ago=ended_seconds_ago,
            error_type=None if step.error_type is None else shown_value(step.error_type),
        )


async def _ask_unless_held(
    target: WorkerTarget,
    holder: CallHolder,
    request: InvokeRequest | ApiRequest,
    seconds: float,
    on_text: OnText | None,
) -> ProviderAnswer:
    """Ask, unless another worker holds the conversation; where this one does, its answer has the route of the turns."""
    turn = None if isinstance(request, ApiRequest) else request.turn
    route = None if turn is None or turn.continuation is None else turn.continuation.route
    if route is not None and (target.turns is None or route != target.turns.key):
        fault = ConversationLost("The worker that held this conversation has ended, or does not take its turns")
        raise ProviderFailure(fault, Billing.UNBILLED, outcome=TryOutcome.NOT_SENT)
    # An `ApiRequest` comes with a provider that takes it.
    asked: Any = request
    options: dict[str, Any] = {"timeout_seconds": seconds, "on_text": on_text}
    if isinstance(target.provider, SessionScopedProvider):
        options["holder"] = holder
    answer = await target.provider.answer(asked, **options)
    if not answer.holds_conversation or target.turns is None or not await target.turns.open_or_log():
        return answer
    continuation = (answer.continuation or Continuation()).with_fields(route=target.turns.key)
    return dataclasses.replace(answer, continuation=continuation)
