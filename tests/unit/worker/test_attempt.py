"""One try at a provider: inside the deadline, honest about the bill, and repeated only where that may help."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from quintain.contracts.agents import Turn
from quintain.contracts.invoke import InvokeRequest
from quintain.contracts.ledger import Admission, AttemptOutcome, TargetCard
from quintain.contracts.quota import QuotaCard, QuotaTerms, RateReport, TryOutcome, TryReport
from quintain.errors import (
    Cancelled,
    Expired,
    Fault,
    InternalFault,
    ProviderFailed,
    Rejected,
    TargetUnavailable,
    Throttled,
    TimedOut,
)
from quintain.runtime.concurrency import TimeLimits
from quintain_worker.attempt import MAX_BACKOFF_SECONDS, Attempt, Try, TryLimits, with_charge
from quintain_worker.providers.provider import (
    Billing,
    CallHolder,
    ConversationHolder,
    OnText,
    ProviderAnswer,
    ProviderFailure,
)
from quintain_worker.response import CallFacts, reply_of
from quintain_worker.target import WorkerMetrics, WorkerTarget
from support.skipped_time import skip_waits
from support.waiting import wait_until

REQUEST = InvokeRequest(question="x")
YES = ProviderAnswer(text="yes")
METRICS = WorkerMetrics()
QUOTA = QuotaCard(id="team", name="team", terms=QuotaTerms())


async def never() -> float:
    """What a vendor that is asked for its bill and never answers does."""
    await asyncio.sleep(3600)
    return 0.0


#: An answer of unknown cost, of a vendor that is asked for it.
UNTOLD = ProviderAnswer(text="yes", ask_bill=never)


class ScriptedProvider:
    """A provider that does what its script says; it keeps how long it was given."""

    def __init__(self, turn: ProviderAnswer | BaseException | float) -> None:
        self.turn = turn
        self.timeouts: list[float] = []
        self.was_cancelled = False

    async def answer(
        self, _: InvokeRequest, *, timeout_seconds: float, on_text: OnText | None = None
    ) -> ProviderAnswer:
        self.timeouts.append(timeout_seconds)
        turn = self.turn
        if isinstance(turn, float):
            try:
                await asyncio.sleep(turn)
            except asyncio.CancelledError:
                self.was_cancelled = True
                raise
            return ProviderAnswer(text="late")
        if isinstance(turn, BaseException):
            raise turn
        return turn

    async def close(self) -> None:
        """Nothing is held."""


def failure(billing: Billing, *, retry_after: float | None = None) -> ProviderFailure:
    fault = ProviderFailed("it failed", charged=billing is not Billing.UNBILLED)
    return ProviderFailure(fault, billing, retryable=True, retry_after_seconds=retry_after)


def throttled(seconds: float) -> ProviderFailure:
    fault = Throttled("slow down", retry_after_ms=int(seconds * 1000))
    return ProviderFailure(fault, Billing.UNBILLED, retryable=True, retry_after_seconds=seconds)


class HoldingProvider(ScriptedProvider, ConversationHolder):
    """One that holds conversations in this worker."""

    holds_conversations = True

    def end_conversation(self, session_id: str, conversation_id: str) -> None:
        """There is none."""


def attempt_of(
    provider: ScriptedProvider,
    *,
    seconds: float = 10,
    max_tries: int = 3,
    timeout_seconds: float | None = None,
    waits_seconds: float = 1000,
    quota: QuotaCard | None = None,
    request: InvokeRequest = REQUEST,
    asks_once: bool = False,
    tried: tuple[Try, ...] = (),
    **granted: Any,
) -> Attempt:
    target = WorkerTarget(
        name="a",
        provider=provider,
        max_tries=max_tries,
        timeout_seconds=timeout_seconds,
        asks_once=asks_once,
        card=TargetCard(name="a", provider="mock", max_concurrency=1, quota=quota),
    )
    now, holder = asyncio.get_running_loop().time(), CallHolder("s", "r", "a", "w")
    limits = TryLimits.of(target, tried, now + seconds, now + waits_seconds)
    grant = Admission(attempt_id="a", attempt=1, **granted)
    return Attempt(target, request, grant, holder, limits, METRICS, TimeLimits())


async def ended_of(turn: ProviderAnswer | BaseException | float, **settings: Any) -> Try:
    return await attempt_of(ScriptedProvider(turn), **settings).run()


@pytest.mark.parametrize(
    ("unproven", "holds", "number", "code"),
    [
        (False, False, None, None),
        (True, False, None, "worker_lost"),
        (True, False, 1, "worker_lost"),
        (True, True, None, "worker_lost"),
        # The caller begins it again, under other ids.
        (True, True, 1, "conversation_lost"),
    ],
)
async def test_what_may_act_is_not_asked_where_a_lost_worker_may_have_asked_it(
    unproven: bool, holds: bool, number: int | None, code: str | None
) -> None:
    provider = HoldingProvider(YES) if holds else ScriptedProvider(YES)
    request = REQUEST if number is None else REQUEST.with_fields(turn=Turn(conversation_id="c", number=number))
    ended = await attempt_of(provider, request=request, asks_once=True, unproven=unproven).run()
    if not unproven:
        assert ended.answer == YES
        return
    assert (ended.is_sent, provider.timeouts) == (False, [])
    # This attempt is refunded, and the call stays in doubt for the earlier one, as its caller is told.
    told = reply_of(ended, Admission(attempt_id="a", attempt=2, unproven=True), CallFacts("a")).answer
    assert isinstance(told, Fault)
    assert (ended.outcome, told.code, told.charged) == (AttemptOutcome.REFUND, code, True)


async def test_an_answer_is_a_result() -> None:
    ended = await ended_of(YES)
    report = TryReport(outcome=TryOutcome.ANSWERED)
    assert ended._replace(seconds=0) == Try(AttemptOutcome.RESULT, report, YES, is_sent=True)


async def test_tries_are_bounded_over_attempts_and_what_none_can_mend_is_not_tried_again() -> None:
    for tries, outcome in enumerate([AttemptOutcome.RETRY, AttemptOutcome.RETRY, AttemptOutcome.REFUND]):
        ended = await ended_of(failure(Billing.UNBILLED), tries=tries)
        assert (ended.outcome, ended.is_counted) == (outcome, True)
    ended = await ended_of(ProviderFailure(TargetUnavailable("no such model"), Billing.UNBILLED))
    assert ended.outcome is AttemptOutcome.REFUND
    assert isinstance(ended.fault, TargetUnavailable)
    assert not ended.fault.charged


async def test_what_says_nothing_of_the_call_is_tried_again_and_does_not_count() -> None:
    tried = {"max_tries": 1, "quota": QUOTA}
    refused = await ended_of(throttled(3), **tried)
    probe = await ended_of(failure(Billing.BILLED), is_probe=True, **tried)
    for ended in (refused, probe):
        assert (ended.outcome, ended.is_counted, ended.retry_after_seconds) == (AttemptOutcome.RETRY, False, 0)
    # Where no quota orders the tries, it counts.
    assert (await ended_of(throttled(3), max_tries=1)).outcome is AttemptOutcome.REFUND


@pytest.mark.parametrize(
    ("billing", "outcome"),
    [
        (Billing.UNBILLED, AttemptOutcome.REFUND),
        (Billing.BILLED, AttemptOutcome.CHARGED),
        (Billing.UNKNOWN, AttemptOutcome.IN_DOUBT),
    ],
)
async def test_the_last_try_is_billed_by_what_is_known_of_it(billing: Billing, outcome: AttemptOutcome) -> None:
    ended = await ended_of(failure(billing), max_tries=1)
    is_billed = billing is not Billing.UNBILLED
    assert (ended.outcome, ended.is_unproven) == (outcome, is_billed)
    assert ended.fault is not None
    assert (ended.fault.charged, ended.fault.retryable) == (is_billed, not is_billed)
    again = await ended_of(failure(billing))
    assert (again.outcome, again.is_unproven) == (AttemptOutcome.RETRY, is_billed)


@pytest.mark.parametrize(("seconds", "waits_seconds"), [(1, 1000), (1000, 1)])
async def test_nobody_waits_for_a_try_that_would_begin_too_late(seconds: float, waits_seconds: float) -> None:
    ended = await ended_of(throttled(60), seconds=seconds, waits_seconds=waits_seconds)
    assert ended.outcome is AttemptOutcome.REFUND
    assert isinstance(ended.fault, Throttled)
    assert ended.fault.retry_after_ms == 60_000
    # All the same its provider is left alone.
    assert ended.report is not None
    assert ended.report.rates == RateReport(retry_after_seconds=60)


async def test_a_provider_that_does_not_bound_itself_is_ended_at_the_deadline_in_doubt() -> None:
    skip_waits()
    ended = await ended_of(30.0, seconds=5)
    assert isinstance(ended.fault, TimedOut)
    assert (ended.is_sent, ended.outcome, ended.fault.charged) == (True, AttemptOutcome.IN_DOUBT, True)


async def test_a_grant_that_comes_after_the_deadline_calls_nobody_and_costs_nothing() -> None:
    ended = await ended_of(YES, seconds=0)
    assert isinstance(ended.fault, Expired)
    assert (ended.is_sent, ended.outcome, ended.fault.charged) == (False, AttemptOutcome.REFUND, False)


@pytest.mark.parametrize(
    "defect", [ZeroDivisionError("SECRET"), AttributeError("SECRET"), asyncio.CancelledError("SECRET")]
)
async def test_a_defect_of_a_provider_is_in_doubt_and_tells_no_detail(
    defect: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    ended = await ended_of(defect)
    assert isinstance(ended.fault, InternalFault)
    assert (ended.is_sent, ended.is_unproven, ended.outcome) == (True, True, AttemptOutcome.IN_DOUBT)
    assert (ended.fault.charged, "SECRET" in ended.fault.message) == (True, False)
    assert "A defect in a provider" in caplog.text


@pytest.mark.parametrize(
    ("fault", "charged", "kind"),
    [
        (Throttled("x"), False, Throttled),
        (Throttled("x"), True, ProviderFailed),
        (TargetUnavailable("x"), True, ProviderFailed),
        (ProviderFailed("x", charged=False), True, ProviderFailed),
        (ProviderFailed("x", charged=True), False, ProviderFailed),
        (Rejected("x"), True, Rejected),
        (TimedOut("x"), True, TimedOut),
        (InternalFault("x", charged=True), True, InternalFault),
    ],
)
def test_a_fault_says_what_the_ledger_will_say(fault: Fault, charged: bool, kind: type[Fault]) -> None:
    told = with_charge(fault, charged=charged)
    assert (type(told), told.charged, told.message[:1]) == (kind, charged, "x")


@pytest.mark.parametrize(
    ("turn", "outcome", "charged"),
    [
        (30.0, AttemptOutcome.IN_DOUBT, True),
        (None, AttemptOutcome.REFUND, False),
        (UNTOLD, AttemptOutcome.IN_DOUBT, True),
    ],
)
async def test_an_attempt_that_is_taken_back_owes_what_its_try_may_cost(
    turn: ProviderAnswer | float | None, outcome: AttemptOutcome, charged: bool
) -> None:
    provider = ScriptedProvider(YES if turn is None else turn)
    attempt = attempt_of(provider)
    if turn is not None:
        running = asyncio.get_running_loop().create_task(attempt.run())
        await wait_until(lambda: provider.timeouts)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert provider.was_cancelled is (turn == 30.0)
    ended = attempt.cancelled()
    assert isinstance(ended.fault, Cancelled)
    assert (ended.outcome, ended.fault.charged, ended.is_sent) == (outcome, charged, turn is not None)


async def test_a_vendor_is_asked_for_its_bill_as_long_as_the_caller_waits_for_the_answer() -> None:
    skip_waits()
    ended = await ended_of(UNTOLD, seconds=3)
    assert (ended.answer, ended.outcome, ended.fault) == (UNTOLD, AttemptOutcome.RESULT, None)


@pytest.mark.parametrize("absurd", [None, -1.0, -1e308, float("nan"), float("-inf")])
async def test_without_a_word_on_when_to_come_again_the_wait_is_short(absurd: float | None) -> None:
    failed = failure(Billing.UNBILLED, retry_after=absurd)
    assert failed.retry_after_seconds is None
    ended = await ended_of(failed, tries=1)
    assert 0 <= ended.retry_after_seconds <= 1
    assert ended.report is not None
    assert ended.report.rates is None


@pytest.mark.parametrize("absurd", [1e308, float("inf"), 86_401.0])
async def test_a_provider_is_waited_for_a_day_at_most_and_at_a_quota_no_longer_than_a_backoff(absurd: float) -> None:
    for quota, seconds in ((None, 86_400), (QUOTA, MAX_BACKOFF_SECONDS)):
        failed = failure(Billing.UNBILLED, retry_after=absurd)
        ended = await ended_of(failed, seconds=100_000, waits_seconds=100_000, quota=quota)
        assert (ended.outcome, ended.retry_after_seconds) == (AttemptOutcome.RETRY, seconds)
        assert ended.report is not None
        assert ended.report.rates == RateReport(retry_after_seconds=86_400)


async def test_the_timeout_of_a_target_bounds_its_tries_together_but_for_those_that_do_not_count() -> None:
    skip_waits()
    tried = Try(AttemptOutcome.RETRY, seconds=2), Try(AttemptOutcome.RETRY, seconds=60, is_counted=False)
    provider = ScriptedProvider(30.0)
    ended = await attempt_of(provider, seconds=100, timeout_seconds=5, tried=tried).run()
    assert isinstance(ended.fault, TimedOut)
    assert provider.timeouts == pytest.approx([3], abs=0.05)
