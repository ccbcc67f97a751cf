"""A target that answers by itself: for demonstrations, for tests, and for measuring everything but a model."""

from __future__ import annotations

import asyncio
import random
import re

from quintain.config import MockTarget
from quintain.contracts.invoke import ChatMessage, InvokeRequest, TokenUsage, text_of
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
        conversation = request.conversation()
        text = _last_user_text(conversation) if self._target.response is None else self._target.response
        ends = asyncio.get_running_loop().time() + timeout_seconds
        await _rest(self._target.delay_ms / 1000, ends)
        if self._random.random() < self._target.fail_rate:
            failure = ProviderFailed("mock: failed, as fail_rate asks for", charged=True)
            raise ProviderFailure(failure, Billing.BILLED, again=True)
        await self._say(_WORD.findall(text), heard, ends)
        return Answer(text=text, token_usage=self._usage(conversation, text), model="mock", finish_reason="stop")

    async def close(self) -> None:
        """Nothing is held."""

    async def _say(self, words: list[str], heard: Heard | None, ends: float) -> None:
        pause = self._target.chunk_delay_ms / 1000
        for index, word in enumerate(words if pause or heard else ()):
            if pause and index:
                await _rest(pause, ends)
            if heard is not None:
                heard(word)

    def _usage(self, conversation: list[ChatMessage], answer: str) -> TokenUsage:
        if self._target.token_usage is not None:
            return TokenUsage(input=self._target.token_usage.input, output=self._target.token_usage.output)
        asked = sum(len(text_of(message.content).split()) for message in conversation)
        return TokenUsage(input=asked, output=len(answer.split()))


async def _rest(seconds: float, ends: float) -> None:
    """Sleep for so long, or until ``ends`` (the loop's seconds). Raises `ProviderFailure` where that comes first."""
    left = ends - asyncio.get_running_loop().time()
    await asyncio.sleep(min(seconds, left))
    if seconds > left:
        raise ProviderFailure(TimedOut("mock: the deadline passed"), Billing.UNKNOWN)


def _last_user_text(conversation: list[ChatMessage]) -> str:
    texts = [text_of(message.content) for message in conversation if message.role == "user"]
    return texts[-1] if texts else ""
