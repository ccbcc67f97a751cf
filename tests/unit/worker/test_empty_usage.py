"""Servers that count nothing say 0 tokens: that is no usage, and what the call could cost at most stays held."""

from __future__ import annotations

import dataclasses
from decimal import Decimal

import pytest

from quintain.config.prices import Price
from quintain.contracts.invoke import OutputMessage, TokenUsage, ToolCall
from quintain_worker.providers.provider import ProviderAnswer
from support.fake_ledger_service import FakeEvaluator, FakeLedgerService, next_item
from support.running_worker import GatedProvider, running_worker

PRICE = Price(input_per_million=Decimal(1), output_per_million=Decimal(2))


def body(**fields: object) -> ProviderAnswer:
    return ProviderAnswer(text="", body={"model": "m", **fields})


@pytest.mark.parametrize(
    ("answer", "input_tokens", "output_tokens", "cost"),
    [
        (ProviderAnswer(text="yes"), 10, 5, 20_000_000),
        (ProviderAnswer(text="yes"), 0, 5, None),
        (ProviderAnswer(text="yes"), 0, 0, None),
        (ProviderAnswer(text="yes"), 10, 0, None),
        (ProviderAnswer(text=""), 10, 0, 10_000_000),
        (
            ProviderAnswer(
                text="", output=[OutputMessage(content="", tool_calls=[ToolCall(id="1", name="f", arguments="{}")])]
            ),
            10,
            0,
            None,
        ),
        (body(data=[{"embedding": [0.5]}]), 10, 0, 10_000_000),
        (body(choices=[{"message": {"role": "assistant", "content": "yes"}}]), 10, 0, None),
        (body(choices=[{"message": {"role": "assistant", "content": None, "tool_calls": [{}]}}]), 10, 0, None),
        (body(choices=[{"message": {"role": "assistant", "content": ""}}]), 10, 0, 10_000_000),
        (body(choices=[{"text": "yes"}]), 10, 0, None),
        (body(content=[{"type": "text", "text": "yes"}]), 10, 0, None),
        (body(content=[]), 10, 0, 10_000_000),
        (body(output=[{"type": "message"}]), 10, 0, None),
    ],
)
async def test_no_tokens_are_no_usage_and_cost_what_is_unknown(
    ledger: FakeLedgerService,
    evaluator: FakeEvaluator,
    answer: ProviderAnswer,
    input_tokens: int,
    output_tokens: int,
    cost: int | None,
) -> None:
    usage = TokenUsage(input=input_tokens, output=output_tokens)
    provider = GatedProvider(dataclasses.replace(answer, token_usage=usage))
    async with running_worker(ledger, provider, price=PRICE):
        await evaluator.send_request()
        settle = await next_item(ledger.settles)
    assert (settle.cost, settle.token_usage) == (cost, None if cost is None else usage)
