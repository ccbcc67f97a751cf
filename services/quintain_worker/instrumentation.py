"""Wraps a provider: times and counts each try, and records it as a span by OpenTelemetry's conventions for GenAI."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from quintain.contracts.api_request import ApiRequest
from quintain.contracts.invoke import InvokeRequest
from quintain.contracts.ledger import TargetCard
from quintain.errors import Throttled
from quintain.observe.semconv import input_content, output_content, provider_span, response_attributes
from quintain.observe.spans import span
from quintain_worker.metrics import OK, WorkerMetrics
from quintain_worker.providers.provider import (
    Billing,
    CallHolder,
    OnText,
    Provider,
    ProviderAnswer,
    ProviderFailure,
    SessionScopedProvider,
    provider_for_call,
)


class InstrumentedProvider(SessionScopedProvider):
    """A provider that measures and traces the provider it wraps.

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
        try:
            answer = await self._in_span(request, timeout_seconds, on_text)
            outcome = OK
        except ProviderFailure as failure:
            outcome = failure.billing.value
            if isinstance(failure.fault, Throttled):
                self._metrics.count_throttled(self._card.name)
            raise
        finally:
            self._metrics.observe_try(self._card.name, outcome, time.perf_counter() - started_at)
        return answer

    def for_call(self, holder: CallHolder) -> InstrumentedProvider:
        """Return the wrapped provider for this call, with the same instrumentation."""
        provider = provider_for_call(self._provider, holder)
        if provider is self._provider:
            return self
        return InstrumentedProvider(provider, self._card, self._metrics, record_content=self._record_content)

    async def close(self) -> None:
        """Close the wrapped provider."""
        await self._provider.close()

    async def _in_span(
        self, request: InvokeRequest | ApiRequest, timeout_seconds: float, on_text: OnText | None
    ) -> ProviderAnswer:
        with span(partial(provider_span, self._card.name, self._card.provider, self._card.model, request)) as try_span:
            if self._record_content and try_span.is_recording:
                try_span.set_attributes(input_content(request))
            try:
                # An `ApiRequest` comes with a provider that takes it.
                asked: Any = request
                answer = await self._provider.answer(asked, timeout_seconds=timeout_seconds, on_text=on_text)
            except ProviderFailure as failure:
                try_span.set_attributes({"quintain.billing": failure.billing.value})
                raise
            if try_span.is_recording:
                try_span.set_attributes(response_attributes(answer.model, answer.finish_reason, answer.token_usage))
                if self._record_content:
                    try_span.set_attributes(
                        output_content(answer.text, answer.output, answer.finish_reason, answer.body)
                    )
            return answer
