"""A provider, instrumented: each try is timed and counted, and is a span by OpenTelemetry's conventions for GenAI."""

from __future__ import annotations

import time
from functools import partial

from quintain.contracts.invoke import InvokeRequest
from quintain.contracts.ledger import TargetCard
from quintain.contracts.token import SessionToken
from quintain.errors import Throttled
from quintain.telemetry.genai import answer_content, answer_told, question_content, tried
from quintain.telemetry.spans import span
from quintain_worker.metrics import OK, WorkerMetrics
from quintain_worker.port import ActsForCaller, Answer, Billing, Heard, Provider, ProviderFailure, for_caller


class InstrumentedProvider(ActsForCaller):
    """Another provider, instrumented. ``content``: questions and answers are part of the spans."""

    def __init__(self, provider: Provider, card: TargetCard, metrics: WorkerMetrics, *, content: bool = False) -> None:
        self._provider, self._card, self._metrics, self._content = provider, card, metrics, content

    async def answer(self, request: InvokeRequest, *, timeout_seconds: float, heard: Heard | None = None) -> Answer:
        """As `Provider.answer`."""
        began = time.perf_counter()
        # Cut off from outside, or by a defect: what came of it is unknown.
        end: str = Billing.UNKNOWN.value
        try:
            answer = await self._in_span(request, timeout_seconds, heard)
            end = OK
        except ProviderFailure as failure:
            end = failure.billing.value
            if isinstance(failure.fault, Throttled):
                self._metrics.throttled(self._card.name)
            raise
        finally:
            self._metrics.tried(self._card.name, end, time.perf_counter() - began)
        return answer

    def acting_for(self, token: SessionToken) -> InstrumentedProvider:
        """The provider that acts in its caller's name, instrumented likewise."""
        acting = for_caller(self._provider, token)
        if acting is self._provider:
            return self
        return InstrumentedProvider(acting, self._card, self._metrics, content=self._content)

    async def close(self) -> None:
        """As `Provider.close`."""
        await self._provider.close()

    async def _in_span(self, request: InvokeRequest, timeout_seconds: float, heard: Heard | None) -> Answer:
        with span(partial(tried, self._card.name, self._card.provider, self._card.model, request)) as trying:
            if self._content and trying.recorded:
                trying.tell(question_content(request))
            try:
                answer = await self._provider.answer(request, timeout_seconds=timeout_seconds, heard=heard)
            except ProviderFailure as failure:
                trying.tell({"quintain.billing": failure.billing.value})
                raise
            if trying.recorded:
                trying.tell(answer_told(answer.model, answer.finish_reason, answer.token_usage))
                if self._content:
                    trying.tell(answer_content(answer.text, answer.output, answer.finish_reason))
            return answer
