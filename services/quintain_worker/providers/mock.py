"""A target that answers by itself: for demonstrations, for tests, and for measuring everything but a model."""

from __future__ import annotations

import asyncio
import random

from quintain.config import MockTarget
from quintain.contracts.invoke import InvokeRequest, TokenUsage, text_of
from quintain.errors import ProviderFailed, TimedOut
from quintain_worker.port import Answer, Billing, ProviderFailure
from quintain_worker.providers.build import Surroundings


def mock_provider(_name: str, target: MockTarget, _surroundings: Surroundings) -> MockProvider:
    """The mock of this target."""
    return MockProvider(target)


class MockProvider:
    """Answers as its configuration says: echoing or fixed, late, or failing now and then. It takes any setting."""

    def __init__(self, target: MockTarget) -> None:
        self._target = target
        self._random = random.Random()  # noqa: S311 -- which calls fail is no secret

    async def answer(self, request: InvokeRequest, *, timeout_seconds: float) -> Answer:
        """The answer, after the configured delay. Raises `ProviderFailure`."""
        try:
            async with asyncio.timeout(timeout_seconds):
                await asyncio.sleep(self._target.delay_ms / 1000)
        except TimeoutError:
            raise ProviderFailure(TimedOut("mock: the deadline passed"), Billing.UNKNOWN) from None
        if self._random.random() < self._target.fail_rate:
            failure = ProviderFailed("mock: failed, as fail_rate asks for", charged=True)
            raise ProviderFailure(failure, Billing.BILLED, again=True)
        text = _last_user_text(request) if self._target.response is None else self._target.response
        return Answer(text=text, token_usage=self._usage(request, text), model="mock", finish_reason="stop")

    async def close(self) -> None:
        """Nothing is held."""

    def _usage(self, request: InvokeRequest, answer: str) -> TokenUsage:
        if self._target.token_usage is not None:
            return TokenUsage(input=self._target.token_usage.input, output=self._target.token_usage.output)
        asked = sum(len(text_of(message.content).split()) for message in request.conversation())
        return TokenUsage(input=asked, output=len(answer.split()))


def _last_user_text(request: InvokeRequest) -> str:
    texts = [text_of(message.content) for message in request.conversation() if message.role == "user"]
    return texts[-1] if texts else ""
