"""What a settle says that a call cost: what was counted, and failures are free only where that is written."""

from __future__ import annotations

import dataclasses
from decimal import Decimal

import pytest

from quintain.config.prices import Price
from quintain.contracts.invoke import OutputMessage, TokenUsage, ToolCall
from quintain.contracts.ledger import AttemptOutcome, Settle
from quintain_worker.providers.agents import failures
from quintain_worker.providers.model_failures import CONNECTION_LOST, FAILED, SERVER_ERROR, TIMED_OUT, FailureKind
from quintain_worker.providers.provider import Provider, ProviderAnswer
from support.fake_ledger_service import FakeEvaluator, FakeLedgerService, next_item
from support.running_worker import GatedProvider, running_worker
from unit.worker.test_tries import FailingProvider, settles_until_end, short_backoff

__all__ = ["short_backoff"]

PRICE = Price(input_per_million=Decimal(1), output_per_million=Decimal(2))
CALL = ToolCall(id="1", name="f", arguments="{}")


async def settle_of(ledger: FakeLedgerService, evaluator: FakeEvaluator, provider: Provider, price: Price) -> Settle:
    async with running_worker(ledger, provider, price=price):
        await evaluator.send_request()
        return await next_item(ledger.settles)


def body(**fields: object) -> ProviderAnswer:
    return ProviderAnswer(text="", body={"model": "m", **fields})


def choice(**message: object) -> ProviderAnswer:
    return body(choices=[{"message": {"role": "assistant", **message}}])


@pytest.mark.parametrize(
    ("answer", "input_tokens", "output_tokens", "cost"),
    [
        (ProviderAnswer(text="yes"), 10, 5, 20_000_000),
        (ProviderAnswer(text="yes"), 0, 5, None),
        (ProviderAnswer(text="yes"), 0, 0, None),
        (ProviderAnswer(text="yes"), 10, 0, None),
        (ProviderAnswer(text=""), 10, 0, 10_000_000),
        (ProviderAnswer(text="", output=[OutputMessage(content="", tool_calls=[CALL])]), 10, 0, None),
        (body(data=[{"embedding": [0.5]}]), 10, 0, 10_000_000),
        (choice(content="yes"), 10, 0, None),
        (choice(content=None, tool_calls=[{}]), 10, 0, None),
        (choice(content=""), 10, 0, 10_000_000),
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
    settle = await settle_of(ledger, evaluator, provider, PRICE)
    assert (settle.cost, settle.token_usage) == (cost, None if cost is None else usage)


def failing(kind: FailureKind) -> FailingProvider:
    return FailingProvider(kind.failure("it broke", None, None))


@pytest.mark.parametrize(
    ("price", "kind", "cost"),
    [
        ("free", SERVER_ERROR, 0),
        ("free", FAILED, 0),
        ("free", CONNECTION_LOST, None),
        ("free", TIMED_OUT, None),
        ("free", failures.FAILED, 0),
        ("free", failures.REJECTED, 0),
        ("free", failures.STREAM_INTERRUPTED, None),
        ("held", SERVER_ERROR, None),
        (None, SERVER_ERROR, None),
    ],
)
async def test_a_failure_that_the_provider_answered_costs_nothing_where_it_says_so(
    ledger: FakeLedgerService, evaluator: FakeEvaluator, price: str | None, kind: FailureKind, cost: int | None
) -> None:
    found = Price.model_validate({"per_call": 0.5, "failed_tries": price})
    settle = await settle_of(ledger, evaluator, failing(kind), found)
    assert settle.outcome in {AttemptOutcome.CHARGED, AttemptOutcome.IN_DOUBT}
    assert (settle.cost, settle.tries, settle.unproven) == (cost, 1, 1)


async def test_an_answer_after_a_free_failure_costs_what_it_does_alone(
    ledger: FakeLedgerService, evaluator: FakeEvaluator
) -> None:
    provider = failing(SERVER_ERROR)
    provider.outcome = ProviderAnswer(text="yes")
    price = Price.model_validate({"per_call": 0.5, "failed_tries": "free"})
    async with running_worker(ledger, provider, price=price, max_tries=2):
        await evaluator.send_request()
        settles = await settles_until_end(ledger)
    assert [(one.outcome, one.cost, one.unproven) for one in settles] == [
        (AttemptOutcome.RETRY, 0, 1),
        (AttemptOutcome.RESULT, 5 * 10**11, None),
    ]
