"""Each try is an attempt of its own, and the ledger says when the next one may begin."""

from __future__ import annotations

import asyncio

import pytest

from quintain.contracts.headers import ACCEPT_HEADER
from quintain.contracts.invoke import Chunk, FaultReply, InvokeRequest, TokenUsage
from quintain.contracts.ledger import Admission, Admit, AttemptOutcome, Settle
from quintain.contracts.quota import QuotaCard, QuotaTerms, RateFigures, RateReport, TryFailure, TryOutcome, TryReport
from quintain.errors import Expired, ProviderError, ProviderFailed, Throttled
from quintain_worker import attempt as attempts
from quintain_worker.providers.provider import Billing, OnText, ProviderAnswer, ProviderFailure
from support.fake_ledger_service import FakeEvaluator, FakeLedgerService, grant, next_item
from support.running_worker import GatedProvider, next_fault, next_result, running_worker

QUOTA = QuotaCard(id="team", name="team", terms=QuotaTerms())

RATES = RateReport(requests=RateFigures(limit=60, remaining=0, reset_seconds=30), retry_after_seconds=30)


def throttled() -> ProviderFailure:
    fault = Throttled("slow down", retry_after_ms=30_000)
    return ProviderFailure(fault, Billing.UNBILLED, retryable=True, retry_after_seconds=30, rates=RATES)


def failed(billing: Billing = Billing.BILLED) -> ProviderFailure:
    fault = ProviderFailed("HTTP 500", charged=billing is not Billing.UNBILLED)
    return ProviderFailure(fault, billing, retryable=True)


class FailingProvider(GatedProvider):
    """A gate whose first answers are these failures, each after so many seconds, and after it began to stream."""

    def __init__(self, *failures: ProviderFailure, seconds: float = 0) -> None:
        super().__init__()
        self.failures, self.seconds = list(failures), seconds

    async def answer(
        self, request: InvokeRequest, *, timeout_seconds: float, on_text: OnText | None = None
    ) -> ProviderAnswer:
        if not self.failures:
            return await super().answer(request, timeout_seconds=timeout_seconds, on_text=on_text)
        self.requests.put_nowait(request)
        if on_text is not None:
            on_text("half an ")
            await asyncio.sleep(0.05)
        await asyncio.sleep(self.seconds)
        raise self.failures.pop(0)


@pytest.fixture(autouse=True)
def short_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "INITIAL_BACKOFF_SECONDS", 0.01)


async def settles_until_end(ledger: FakeLedgerService) -> list[Settle]:
    """All settles of a call, up to the one that ends it."""
    settles = [await next_item(ledger.settles)]
    while settles[-1].outcome is AttemptOutcome.RETRY:
        settles.append(await next_item(ledger.settles))
    return settles


async def test_a_throttled_try_ends_its_attempt_and_the_call_asks_again_with_another_one(
    ledger: FakeLedgerService, evaluator: FakeEvaluator
) -> None:
    provider = FailingProvider(*(throttled() for _ in range(5)))
    async with running_worker(ledger, provider, max_concurrency=1, max_tries=2, quota=QUOTA):
        await evaluator.send_request()
        result = await next_result(evaluator)
        settles = await settles_until_end(ledger)
        admits = [ledger.admits.get_nowait() for _ in range(6)]
        assert ledger.admits.empty()
        assert [admit.attempt_id for admit in admits] == [settle.attempt_id for settle in settles]
        assert len({admit.attempt_id for admit in admits}) == 6
        assert {admit.request_id for admit in admits} == {"r-c1"}
        # A settle may still be on its way: the call is no duplicate of its own.
        assert [admit.redelivered for admit in admits] == [None, *[True] * 5]
        assert [settle.outcome for settle in settles] == [AttemptOutcome.RETRY] * 5 + [AttemptOutcome.RESULT]
        failure = TryFailure(words=throttled().fault.message)
        assert settles[0].report == TryReport(outcome=TryOutcome.THROTTLED, rates=RATES, failure=failure)
        assert (settles[0].unproven, settles[0].fault and settles[0].fault.code) == (None, "throttled")
        assert settles[-1].report == TryReport(outcome=TryOutcome.ANSWERED, tokens=3)
        assert (result.attempts, result.token_usage) == (6, TokenUsage(input=1, output=2))
        # The ledger's line paces the key.
        assert {settle.is_counted for settle in settles} == {None}


@pytest.mark.parametrize(("billing", "unproven"), [(Billing.BILLED, 1), (Billing.UNBILLED, None)])
async def test_failing_tries_are_bounded_over_the_attempts_of_a_call(
    ledger: FakeLedgerService, evaluator: FakeEvaluator, billing: Billing, unproven: int | None
) -> None:
    provider = FailingProvider(failed(billing), throttled(), failed(billing), failed(billing), seconds=0.02)
    async with running_worker(ledger, provider, max_tries=3, quota=QUOTA):
        await evaluator.send_request()
        fault = await next_fault(evaluator)
        settles = await settles_until_end(ledger)
    assert fault.code == "provider_error"
    assert (fault.duration_ms or 0) >= 80
    assert [settle.unproven for settle in settles] == [unproven, None, unproven, unproven]
    assert settles[-1].outcome is (AttemptOutcome.CHARGED if unproven else AttemptOutcome.REFUND)
    reports = [settle.report and settle.report.outcome for settle in settles]
    assert reports == [TryOutcome.FAILED, TryOutcome.THROTTLED, TryOutcome.FAILED, TryOutcome.FAILED]


def hold_later_attempts(ledger: FakeLedgerService) -> None:
    """Grant the first admit; the others wait in the line."""
    decisions: list[str] = []

    def decide(ask: Admit) -> Admission | str:
        decisions.append("held")
        return "held" if len(decisions) > 1 else grant(ask)

    ledger.admit_policy = decide


async def waiting_admit(ledger: FakeLedgerService) -> Admit:
    """Return the admit of the second attempt, once it waits in the line."""
    settle = await next_item(ledger.settles)
    first, second = await next_item(ledger.admits), await next_item(ledger.admits)
    assert (settle.outcome, settle.attempt_id) == (AttemptOutcome.RETRY, first.attempt_id)
    return second


@pytest.mark.parametrize("charged", [False, True])
async def test_a_call_that_waited_until_its_deadline_ends_as_throttled_unless_it_may_have_been_billed(
    ledger: FakeLedgerService, evaluator: FakeEvaluator, charged: bool
) -> None:
    async with running_worker(ledger, FailingProvider(throttled()), max_concurrency=1, quota=QUOTA) as (worker, _):
        hold_later_attempts(ledger)
        await evaluator.send_request()
        second = await waiting_admit(ledger)
        assert (worker.card().in_flight, evaluator.replies.empty()) == (1, True)
        expired = FaultReply.from_fault(Expired("The deadline passed", charged=charged))
        await ledger.answer_last_admit(Admission(attempt_id=second.attempt_id, fault=expired))
        fault = await next_fault(evaluator)
    told = (fault.code, fault.charged, fault.retryable, fault.retry_after_ms)
    assert told == (("expired", True, False, None) if charged else ("throttled", False, True, 30_000))


async def test_a_call_that_waited_until_its_deadline_has_the_words_of_its_last_failure(
    ledger: FakeLedgerService, evaluator: FakeEvaluator
) -> None:
    failure = failed(Billing.UNBILLED)
    failure.fault.provider_error = ProviderError(status=503, message="overloaded")
    async with running_worker(ledger, FailingProvider(throttled(), failure), max_tries=3, quota=QUOTA):
        decisions: list[Admit] = []

        def decide(ask: Admit) -> Admission | str:
            decisions.append(ask)
            return "held" if len(decisions) > 2 else grant(ask)

        ledger.admit_policy = decide
        await evaluator.send_request()
        async with asyncio.timeout(10):
            while len(decisions) < 3:
                await asyncio.sleep(0.01)
        expired = FaultReply.from_fault(Expired("The deadline passed", charged=False))
        await ledger.answer_last_admit(Admission(attempt_id=decisions[-1].attempt_id, fault=expired))
        fault = await next_fault(evaluator)
    assert (fault.code, fault.charged) == ("expired", False)
    assert fault.provider_error is not None
    assert fault.provider_error.status == 503


async def test_the_chunks_of_a_later_attempt_void_those_of_the_earlier_ones(
    ledger: FakeLedgerService, evaluator: FakeEvaluator
) -> None:
    provider = FailingProvider(failed(), failed(), failed())
    async with running_worker(ledger, provider, max_tries=9, quota=QUOTA):
        await evaluator.send_request(headers={ACCEPT_HEADER: "chunk"})
        numbers = []
        while (reply := await next_item(evaluator.replies)).type != "result":
            chunk = Chunk.from_wire(reply.body)
            assert (chunk.seq, chunk.delta) == (0, "half an ")
            numbers.append(chunk.attempt)
    assert numbers == sorted(set(numbers))
    assert len(numbers) == 3


async def test_without_a_quota_each_try_is_an_attempt_too_and_the_ledger_is_told_how_long_the_next_one_waits(
    ledger: FakeLedgerService, evaluator: FakeEvaluator
) -> None:
    refused = throttled()
    refused.retry_after_seconds = 0.25
    async with running_worker(ledger, FailingProvider(refused, failed()), max_tries=3):
        await evaluator.send_request()
        settles = await settles_until_end(ledger)
        result = await next_result(evaluator)
    admits = [ledger.admits.get_nowait().attempt_id for _ in range(3)]
    assert ledger.admits.empty()
    assert admits == [settle.attempt_id for settle in settles]
    assert len(set(admits)) == 3
    assert [settle.outcome for settle in settles] == [AttemptOutcome.RETRY] * 2 + [AttemptOutcome.RESULT]
    assert [(settle.tries, settle.unproven, settle.is_counted) for settle in settles] == [
        (1, None, True),
        (1, 1, True),
        (1, None, None),
    ]
    assert [settle.retry_after_ms is None for settle in settles] == [False, False, True]
    assert (settles[0].retry_after_ms, settles[0].report and settles[0].report.rates) == (250, RATES)
    assert result.attempts == 3


async def test_a_target_has_its_last_try_whatever_worker_made_those_before(
    ledger: FakeLedgerService, evaluator: FakeEvaluator
) -> None:
    ledger.tries["r-c1"] = 1
    async with running_worker(ledger, FailingProvider(*(failed() for _ in range(4))), max_tries=2):
        await evaluator.send_request()
        assert (await next_fault(evaluator)).code == "provider_error"
        settles = await settles_until_end(ledger)
    assert [settle.outcome for settle in settles] == [AttemptOutcome.CHARGED]
