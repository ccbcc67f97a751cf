"""The mock provider: answers without a model, for demonstrations, tests and benchmarks."""

from __future__ import annotations

import asyncio
import random
import re

from quintain.config.targets import MockTarget
from quintain.contracts.invoke import ChatMessage, InvokeRequest, TokenUsage, content_text
from quintain.errors import ProviderFailed, TimedOut
from quintain_worker.providers.conversation import ignored_settings
from quintain_worker.providers.provider import Billing, OnText, ProviderAnswer, ProviderContext, ProviderFailure

#: A word with the whitespace around it; joined, the words are the original text.
_WORD = re.compile(r"\s*\S+\s*|\s+")


def mock_provider(_name: str, target: MockTarget, _context: ProviderContext) -> MockProvider:
    """Create the mock provider of this target."""
    return MockProvider(target)


class MockProvider:
    """Answers with an echo or a fixed text, after configured delays, and fails at a configured rate.

    It accepts every setting of a request.
    """

    def __init__(self, target: MockTarget) -> None:
        self._target = target
        self._random = random.Random()  # noqa: S311 -- not for secrets: it chooses which calls fail

    async def answer(
        self, request: InvokeRequest, *, timeout_seconds: float, on_text: OnText | None = None
    ) -> ProviderAnswer:
        """Return the configured answer, streamed word by word to ``on_text``. Raises `ProviderFailure`."""
        settings = request.settings
        ignored = () if settings is None else ignored_settings(settings, "mock", takes_all=True)
        conversation = request.conversation()
        text = _last_user_text(conversation) if self._target.response is None else self._target.response
        ends_at = asyncio.get_running_loop().time() + timeout_seconds
        if self._target.delay_ms:
            await _sleep_until(self._target.delay_ms / 1000, ends_at)
        if self._random.random() < self._target.fail_rate:
            failure = ProviderFailed("mock: failed, as fail_rate asks for", charged=True)
            raise ProviderFailure(failure, Billing.BILLED, retryable=True)
        if on_text is not None or self._target.chunk_delay_ms:
            await self._stream(_WORD.findall(text), on_text, ends_at)
        return ProviderAnswer(
            text=text,
            token_usage=self._usage(conversation, text),
            model="mock",
            finish_reason="stop",
            ignored=ignored,
        )

    async def close(self) -> None:
        """Do nothing: no resource is held."""

    async def _stream(self, words: list[str], on_text: OnText | None, ends_at: float) -> None:
        delay_seconds = self._target.chunk_delay_ms / 1000
        for index, word in enumerate(words):
            if delay_seconds and index:
                await _sleep_until(delay_seconds, ends_at)
            if on_text is not None:
                on_text(word)

    def _usage(self, conversation: list[ChatMessage], answer: str) -> TokenUsage:
        if self._target.token_usage is not None:
            return TokenUsage(input=self._target.token_usage.input, output=self._target.token_usage.output)
        input_words = sum(len(content_text(message.content).split()) for message in conversation)
        return TokenUsage(input=input_words, output=len(answer.split()))


async def _sleep_until(seconds: float, ends_at: float) -> None:
    """Sleep for ``seconds``; raise `ProviderFailure` if ``ends_at`` (the loop's seconds) comes first."""
    remaining_seconds = ends_at - asyncio.get_running_loop().time()
    if seconds > 0:
        await asyncio.sleep(min(seconds, remaining_seconds))
    if seconds > remaining_seconds:
        raise ProviderFailure(TimedOut("mock: the deadline passed"), Billing.UNKNOWN)


def _last_user_text(conversation: list[ChatMessage]) -> str:
    texts = [content_text(message.content) for message in conversation if message.role == "user"]
    return texts[-1] if texts else ""
