"""A provider whose tries are measured and traced, with the tools that ran in them."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from quintain.contracts.agents import AgentStep
from quintain.contracts.api_request import ApiRequest
from quintain.contracts.invoke import InvokeRequest
from quintain.contracts.ledger import TargetCard
from quintain.errors import Throttled
from quintain.observe.semconv import (
    input_content,
    output_content,
    provider_span,
    response_attributes,
    shown_value,
    tool_span,
)
from quintain.observe.spans import Span, record_finished_span, span, tracer
from quintain_worker.providers.provider import Billing, OnText, Provider, ProviderAnswer, ProviderFailure
from quintain_worker.target import OK, WorkerMetrics

#: So many tools of a call have a span.
MAX_TOOL_SPANS = 200


class InstrumentedProvider:
    """A provider that times and counts each try of the one it wraps, and records it by the conventions for GenAI.

    ``record_content`` adds prompts and answers to the spans.
    """

    def __init__(
        self, provider: Provider, card: TargetCard, metrics: WorkerMetrics, *, record_content: bool = False
    ) -> None:
        self._provider, self._card, self._metrics, self._record_content = provider, card, metrics, record_content

    async def answer(
        self, request: InvokeRequest | ApiRequest, *, timeout_seconds: float, on_text: OnText | None = None
    ) -> ProviderAnswer:
        """Answer like the wrapped provider (`Provider.answer`), with metrics and a span for the try."""
        started_at = time.perf_counter()
        # Remains UNKNOWN where the try is cancelled or raises anything but `ProviderFailure`.
        outcome: str = Billing.UNKNOWN.value
        # An `ApiRequest` comes with a provider that takes it.
        asked: Any = request
        card = self._card
        try:
            if tracer() is None:
                answer = await self._provider.answer(asked, timeout_seconds=timeout_seconds, on_text=on_text)
            else:
                with span(partial(provider_span, card.name, card.provider, card.model, request)) as try_span:
                    ask = partial(self._provider.answer, asked, timeout_seconds=timeout_seconds, on_text=on_text)
                    answer = await self._ask(ask, request, try_span)
            outcome = OK
        except ProviderFailure as failure:
            outcome = failure.billing.value
            if isinstance(failure.fault, Throttled):
                self._metrics.throttled(card.name).inc()
            raise
        finally:
            self._metrics.provider_seconds(card.name, outcome).observe(time.perf_counter() - started_at)
        return answer

    async def _ask(
        self, ask: Callable[[], Awaitable[ProviderAnswer]], request: InvokeRequest | ApiRequest, try_span: Span
    ) -> ProviderAnswer:
        if not try_span.is_recording:
            return await ask()
        if self._record_content:
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
        if self._record_content:
            try_span.set_attributes(output_content(answer.text, answer.output, answer.finish_reason, answer.body))
        return answer

    async def close(self) -> None:
        """Close the wrapped provider."""
        await self._provider.close()


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
