"""The mock: it echoes, answers, delays, fails and counts, as its configuration says."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path

import pytest

from quintain.config.targets import MockTarget
from quintain.contracts.invoke import InvokeRequest, TokenUsage
from quintain.errors import ProviderFailed, TimedOut
from quintain_worker.providers.factory import build_provider
from quintain_worker.providers.provider import (
    Billing,
    OnText,
    Provider,
    ProviderAnswer,
    ProviderContext,
    ProviderFailure,
)
from support.skipped_time import skip_waits

TALK = InvokeRequest.model_validate(
    {
        "systemPrompt": "be kind",
        "messages": [
            {"role": "user", "content": "first"},
            {"role": "assistant", "content": "one two"},
            {"role": "user", "content": [{"type": "text", "text": "the last "}, {"type": "text", "text": "word"}]},
        ],
        "settings": {"temperature": 0, "seed": 1},
    }
)


def mock(**options: object) -> Provider:
    target = MockTarget.model_validate({"provider": "mock", **options})
    return build_provider("it", target, ProviderContext(Path.cwd(), {}))


async def answer_of(
    request: InvokeRequest = TALK, *, timeout_seconds: float = 10, on_text: OnText | None = None, **options: object
) -> ProviderAnswer:
    return await mock(**options).answer(request, timeout_seconds=timeout_seconds, on_text=on_text)


async def failure_of(**options: object) -> ProviderFailure:
    with pytest.raises(ProviderFailure) as caught:
        await answer_of(**options)  # type: ignore[arg-type]
    return caught.value


async def test_it_echoes_the_last_user_message_and_counts_words_unless_it_is_told_otherwise() -> None:
    usage = TokenUsage(input=8, output=3)
    assert await answer_of() == ProviderAnswer(
        text="the last word", token_usage=usage, model="mock", finish_reason="stop"
    )
    alone = InvokeRequest.model_validate({"messages": [{"role": "system", "content": "x"}]})
    assert (await answer_of(alone)).text == ""
    for response in ("", "always this"):
        assert (await answer_of(response=response)).text == response
    counted = await answer_of(token_usage={"input": 100, "output": 7})
    assert counted.token_usage == TokenUsage(input=100, output=7)


async def test_it_fails_as_often_as_it_is_told_to_charges_for_it_and_is_not_heard() -> None:
    words: list[str] = []
    failed = await failure_of(response="a b", fail_rate=1, on_text=words.append)
    assert isinstance(failed.fault, ProviderFailed)
    assert (failed.billing, failed.retryable, failed.fault.charged, words) == (Billing.BILLED, True, True, [])
    sometimes = mock(fail_rate=0.5)
    calls = (sometimes.answer(TALK, timeout_seconds=10) for _ in range(200))
    ended = {isinstance(each, ProviderFailure) for each in await asyncio.gather(*calls, return_exceptions=True)}
    assert ended == {True, False}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("the last word", ["the ", "last ", "word"]),
        (" \n a  b\t", [" \n a  ", "b\t"]),
        (" \n ", [" \n "]),
        ("one", ["one"]),
        ("", []),
    ],
)
async def test_whoever_listens_hears_it_word_by_word(text: str, words: list[str]) -> None:
    heard: list[str] = []
    assert await answer_of(response=text, on_text=heard.append) == await answer_of(response=text)
    assert (heard, "".join(heard)) == (words, text)


async def test_it_pauses_between_words_and_takes_as_long_where_nobody_listens() -> None:
    skip_waits()
    loop = asyncio.get_running_loop()
    times = [loop.time()]
    await answer_of(response="a b c", delay_ms=50, chunk_delay_ms=30, on_text=lambda _: times.append(loop.time()))
    waited = [later - sooner for sooner, later in pairwise(times)]
    assert waited == pytest.approx([0.05, 0.03, 0.03], abs=0.005)
    began = loop.time()
    await answer_of(response="a b c", delay_ms=50, chunk_delay_ms=30)
    assert loop.time() - began == pytest.approx(0.11, abs=0.005)


@pytest.mark.parametrize("heard", [True, False])
@pytest.mark.parametrize("delays", [{"delay_ms": 60_000}, {"chunk_delay_ms": 60_000}])
async def test_a_deadline_before_its_end_is_in_doubt(delays: dict[str, int], heard: bool) -> None:
    words: list[str] = []
    failed = await failure_of(response="a b", timeout_seconds=0.05, on_text=words.append if heard else None, **delays)
    assert isinstance(failed.fault, TimedOut)
    assert (failed.billing, failed.retryable) == (Billing.UNKNOWN, False)
    assert words == (["a "] if heard and "chunk_delay_ms" in delays else [])
