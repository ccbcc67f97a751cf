"""A target that answers by itself: for demonstrations, for tests, and for measuring everything but a model."""

from __future__ import annotations

import asyncio
import random
import re

from quintain.config import MockTarget
from quintain.contracts.invoke import InvokeRequest, TokenUsage, text_of
from quintain.errors import ProviderFailed, TimedOut
from quintain_worker.port import Answer, Billing, Heard, ProviderFailure
from quintain_worker.providers.build import Surroundings

#: A word with the white space around it: joined, words are the text they came from.
_WORD = re.compile(r"\s*\S+\s*|\s+")


def mock_provider(_name: str, target: MockTarget, _surroundings: Surroundings) -> MockProvider:
    """The mock of this target."""
    return MockProvider(target)


class MockProvider:
    """Answers as its configuration says: echoing or fixed, late, or failing now and then. It takes any setting."""

    def __init__(self, target: MockTarget) -> None:
        self._target = target
        self._random = random.Random()  # noqa: S311 -- which calls fail is no secret

    async def answer(self, request: InvokeRequest, *, timeout_seconds: float, heard: Heard | None = None) -> Answer:
        """The answer, word by word to whoever listens, after the configured delays. Raises `ProviderFailure`."""
        text = _last_user_text(request) if self._target.response is None else self._target.response
        try:
            async with asyncio.timeout(timeout_seconds):
                await asyncio.sleep(self._target.delay_ms / 1000)
                if self._random.random() < self._target.fail_rate:
                    failure = ProviderFailed("mock: failed, as fail_rate asks for", charged=True)
                    raise ProviderFailure(failure, Billing.BILLED, again=True)
                await self._say(_WORD.findall(text), heard)
        except TimeoutError:
            raise ProviderFailure(TimedOut("mock: the deadline passed"), Billing.UNKNOWN) from None
        return Answer(text=text, token_usage=self._usage(request, text), model="mock", finish_reason="stop")

    async def close(self) -> None:
        """Nothing is held."""

    async def _say(self, words: list[str], heard: Heard | None) -> None:
        pause = self._target.chunk_delay_ms / 1000
        if heard is None:
            await asyncio.sleep(pause * (len(words) - 1))
            return
        for index, word in enumerate(words):
            if pause and index:
                await asyncio.sleep(pause)
            heard(word)

    def _usage(self, request: InvokeRequest, answer: str) -> TokenUsage:
        if self._target.token_usage is not None:
            return TokenUsage(input=self._target.token_usage.input, output=self._target.token_usage.output)
        asked = sum(len(text_of(message.content).split()) for message in request.conversation())
        return TokenUsage(input=asked, output=len(answer.split()))


def _last_user_text(request: InvokeRequest) -> str:
    texts = [text_of(message.content) for message in request.conversation() if message.role == "user"]
    return texts[-1] if texts else ""
