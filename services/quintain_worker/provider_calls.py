"""Calls a provider, with metrics and spans, and keeps the turns of a conversation with the worker that holds it.

A turn without a `Continuation.route` may be answered by any worker. One with the route of a worker is published to that
worker's own queue; where it comes to another worker, or is not taken in time, its conversation is lost.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from quintain.contracts.agents import AgentStep, Continuation
from quintain.contracts.api_request import ApiRequest
from quintain.contracts.invoke import InvokeRequest
from quintain.contracts.quota import TryOutcome
from quintain.errors import ConversationLost, Throttled
from quintain.observe.semconv import (
    input_content,
    output_content,
    provider_span,
    response_attributes,
    shown_value,
    tool_span,
)
from quintain.observe.spans import Span, record_finished_span, span, tracer
from quintain_worker.providers.api_conversation import answer_in_words
from quintain_worker.providers.provider import (
    ApiProvider,
    Billing,
    CallHolder,
    OnText,
    ProviderAnswer,
    ProviderFailure,
    SessionScopedProvider,
)
from quintain_worker.target import OK, WorkerMetrics, WorkerTarget

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
    """Ask the provider of a target once, for at most ``seconds``, in the words of the request.

    Raises what `Provider.answer` raises.
    """
    ask = partial(_ask_measured, target, holder, metrics)
    if isinstance(request, ApiRequest) and not isinstance(target.provider, ApiProvider):
        return await answer_in_words(ask, request, seconds, on_text)
    return await ask(request, seconds, on_text)


async def _ask_measured(
    target: WorkerTarget,
    holder: CallHolder,
    metrics: WorkerMetrics,
    request: InvokeRequest | ApiRequest,
    seconds: float,
    on_text: OnText | None,
) -> ProviderAnswer:
    """Ask, and record the time and the end of it, by the conventions for GenAI."""
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
