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
from quintain_worker.providers.provider import Billing, OnText, ProviderAnswer, ProviderContext, ProviderFailure

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


async def answer_of(
    request: InvokeRequest = TALK, *, timeout_seconds: float = 10, on_text: OnText | None = None, **options: object
) -> ProviderAnswer:
    target = MockTarget.model_validate({"provider": "mock", **options})
    provider = build_provider("it", target, ProviderContext(Path.cwd(), {}))
    try:
        return await provider.answer(request, timeout_seconds=timeout_seconds, on_text=on_text)
    finally:
        await provider.close()


async def test_it_echoes_the_last_user_message_and_counts_words() -> None:
    assert await answer_of() == ProviderAnswer(
        text="the last word",
        token_usage=TokenUsage(input=8, output=3),
        model="mock",
        finish_reason="stop",
    )


async def test_a_conversation_without_the_user_echoes_nothing() -> None:
    assert (
        await answer_of(InvokeRequest.model_validate({"messages": [{"role": "system", "content": "x"}]}))
    ).text == ""


@pytest.mark.parametrize("response", ["", "always this"])
async def test_it_answers_what_it_is_told_to(response: str) -> None:
    assert (await answer_of(response=response)).text == response


async def test_it_claims_the_tokens_it_is_told_to() -> None:
    answer = await answer_of(token_usage={"input": 100, "output": 7})
    assert answer.token_usage == TokenUsage(input=100, output=7)


async def test_it_answers_after_its_delay() -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    await answer_of(delay_ms=50)
    assert loop.time() - began >= 0.049


async def test_a_deadline_before_its_delay_is_in_doubt() -> None:
    with pytest.raises(ProviderFailure) as caught:
        await answer_of(delay_ms=60_000, timeout_seconds=0.01)
    assert isinstance(caught.value.fault, TimedOut)
    assert (caught.value.billing, caught.value.retryable) == (Billing.UNKNOWN, False)


async def test_it_fails_as_often_as_it_is_told_to_and_charges_for_it() -> None:
    with pytest.raises(ProviderFailure) as caught:
        await answer_of(fail_rate=1)
    assert isinstance(caught.value.fault, ProviderFailed)
    assert (caught.value.billing, caught.value.retryable) == (Billing.BILLED, True)
    assert caught.value.fault.charged


async def test_a_rate_between_fails_some_calls_and_answers_others() -> None:
    target = MockTarget(provider="mock", fail_rate=0.5)
    provider = build_provider("it", target, ProviderContext(Path.cwd(), {}))
    calls = (provider.answer(TALK, timeout_seconds=10) for _ in range(200))
    failed = [isinstance(each, ProviderFailure) for each in await asyncio.gather(*calls, return_exceptions=True)]
    assert {True, False} == set(failed)


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
    loop = asyncio.get_running_loop()
    times = [loop.time()]
    await answer_of(response="a b c", delay_ms=50, chunk_delay_ms=30, on_text=lambda _: times.append(loop.time()))
    waited = [later - sooner for sooner, later in pairwise(times)]
    assert [wait >= least for wait, least in zip(waited, [0.049, 0.029, 0.029], strict=True)] == [True] * 3
    began = loop.time()
    await answer_of(response="a b c", delay_ms=50, chunk_delay_ms=30)
    assert loop.time() - began >= 0.109


@pytest.mark.parametrize("heard", [True, False])
async def test_a_deadline_between_words_is_in_doubt(heard: bool) -> None:
    words: list[str] = []
    with pytest.raises(ProviderFailure) as caught:
        await answer_of(
            response="a b", chunk_delay_ms=60_000, timeout_seconds=0.05, on_text=words.append if heard else None
        )
    assert isinstance(caught.value.fault, TimedOut)
    assert caught.value.billing is Billing.UNKNOWN
    assert words == (["a "] if heard else [])


async def test_a_failed_call_is_not_heard() -> None:
    words: list[str] = []
    with pytest.raises(ProviderFailure):
        await answer_of(response="a b", fail_rate=1, on_text=words.append)
    assert words == []
