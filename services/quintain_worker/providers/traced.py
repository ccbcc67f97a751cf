"""A provider whose every try is a span, told by the conventions for GenAI; what was said only where somebody asked."""

from __future__ import annotations

from functools import partial

from quintain.contracts.invoke import InvokeRequest
from quintain.contracts.ledger import TargetCard
from quintain.contracts.token import SessionToken
from quintain.telemetry.genai import answer_content, answer_told, question_content, tried
from quintain.telemetry.spans import span
from quintain_worker.port import ActsForCaller, Answer, Heard, Provider, ProviderFailure, for_caller


class Traced(ActsForCaller):
    """Another provider, watched. ``content``: questions and answers are part of the spans."""

    def __init__(self, provider: Provider, card: TargetCard, *, content: bool) -> None:
        self._provider, self._card, self._content = provider, card, content

    async def answer(self, request: InvokeRequest, *, timeout_seconds: float, heard: Heard | None = None) -> Answer:
        """As the provider answers. Raises `ProviderFailure`."""
        opening = partial(tried, self._card.name, self._card.provider, self._card.model, request)
        with span(opening) as trying:
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

    def acting_for(self, token: SessionToken) -> Traced:
        """As watched where the provider acts in its caller's name."""
        acting = for_caller(self._provider, token)
        return self if acting is self._provider else Traced(acting, self._card, content=self._content)

    async def close(self) -> None:
        """Close the provider."""
        await self._provider.close()
