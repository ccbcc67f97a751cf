"""Tries that a provider answered with an error, where it says in writing that it bills none of those."""

from __future__ import annotations

import pytest

from quintain.config.prices import Price
from quintain.contracts.ledger import AttemptOutcome
from quintain_worker.providers.agents import failures
from quintain_worker.providers.model_failures import CONNECTION_LOST, FAILED, SERVER_ERROR, TIMED_OUT, FailureKind
from quintain_worker.providers.provider import ProviderAnswer
from support.fake_ledger_service import FakeEvaluator, FakeLedgerService, next_item
from support.running_worker import running_worker
from unit.worker.test_quota_attempts import FailingProvider, short_backoff

__all__ = ["short_backoff"]


def provider_that_fails(*kinds: FailureKind) -> FailingProvider:
    return FailingProvider(*(kind.failure("it broke", None, None) for kind in kinds))


@pytest.mark.parametrize(
    ("price", "kinds", "cost"),
    [
        ("free", [SERVER_ERROR], 0),
        ("free", [FAILED, SERVER_ERROR], 0),
        ("free", [SERVER_ERROR, CONNECTION_LOST], None),
        ("free", [TIMED_OUT], None),
        ("free", [failures.FAILED], 0),
        ("free", [failures.REJECTED], 0),
        ("free", [failures.STREAM_INTERRUPTED], None),
        ("held", [SERVER_ERROR], None),
        (None, [SERVER_ERROR], None),
    ],
)
async def test_a_failure_that_the_provider_answered_costs_nothing_where_it_says_so(
    ledger: FakeLedgerService, evaluator: FakeEvaluator, price: str | None, kinds: list[FailureKind], cost: int | None
) -> None:
    found = Price.model_validate({"per_call": 0.5, "failed_tries": price})
    async with running_worker(ledger, provider_that_fails(*kinds), price=found, max_tries=len(kinds)):
        await evaluator.send_request()
        settle = await next_item(ledger.settles)
    assert settle.outcome in {AttemptOutcome.CHARGED, AttemptOutcome.IN_DOUBT}
    assert (settle.cost, settle.tries, settle.unproven) == (cost, len(kinds), len(kinds))


async def test_an_answer_after_free_failures_has_no_try_of_unknown_cost(
    ledger: FakeLedgerService, evaluator: FakeEvaluator
) -> None:
    found = Price.model_validate({"per_call": 0.5, "failed_tries": "free"})
    provider = provider_that_fails(SERVER_ERROR)
    provider.outcome = ProviderAnswer(text="yes")
    async with running_worker(ledger, provider, price=found, max_tries=2):
        await evaluator.send_request()
        settle = await next_item(ledger.settles)
    assert (settle.outcome, settle.cost, settle.tries) == (AttemptOutcome.RESULT, 5 * 10**11, 2)
    assert settle.unproven is None
