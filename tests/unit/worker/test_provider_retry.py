"""NumberedRequest a provider, and again: bounded, inside the deadline, and honest about the bill."""

from __future__ import annotations

import asyncio

import pytest

from quintain.contracts.agents import Turn
from quintain.contracts.invoke import InvokeRequest
from quintain.contracts.ledger import AttemptOutcome
from quintain.contracts.quota import TryOutcome, TryReport
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
from quintain_worker import attempt as retry
from quintain_worker.attempt import Attempt, AttemptResult, RetryPolicy, with_charge
from quintain_worker.providers.provider import Billing, OnText, ProviderAnswer, ProviderFailure
from quintain_worker.target import PauseState
from support.skipped_time import skip_waits
from support.waiting import wait_until

REQUEST = InvokeRequest(question="x")
YES = ProviderAnswer(text="yes")


async def never() -> float:
    """What a vendor that is asked for its bill and never answers does."""
    await asyncio.sleep(3600)
    return 0.0


#: An answer of unknown cost, of a vendor that is asked for it.
UNTOLD = ProviderAnswer(text="yes", ask_bill=never)


class ScriptedProvider:
    """A provider that does what its script says, one turn a try; it keeps how long it was given each time."""

    def __init__(self, *turns: ProviderAnswer | BaseException | float) -> None:
        self.turns = list(turns)
        self.timeouts: list[float] = []
        self.was_cancelled = False

    async def answer(
        self, _: InvokeRequest, *, timeout_seconds: float, on_text: OnText | None = None
    ) -> ProviderAnswer:
        self.timeouts.append(timeout_seconds)
        turn = self.turns.pop(0)
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


def failure(billing: Billing, *, retry_after: float | None = 0.0) -> ProviderFailure:
    fault = ProviderFailed("it failed", charged=billing is not Billing.UNBILLED)
    return ProviderFailure(fault, billing, retryable=True, retry_after_seconds=retry_after)


def throttled(seconds: float) -> ProviderFailure:
    fault = Throttled("slow down", retry_after_ms=int(seconds * 1000))
    return ProviderFailure(fault, Billing.UNBILLED, retryable=True, retry_after_seconds=seconds)


def attempt_of(
    provider: ScriptedProvider,
    *,
    tries: int = 3,
    seconds: float = 10,
    pause: PauseState | None = None,
    unproven: bool = False,
) -> Attempt:
    policy = RetryPolicy(tries, asyncio.get_running_loop().time() + seconds, unproven=unproven)
    return Attempt(provider, REQUEST, policy, pause or PauseState())


async def ending_of(
    *turns: ProviderAnswer | BaseException | float, tries: int = 3, seconds: float = 10
) -> AttemptResult:
    return await attempt_of(ScriptedProvider(*turns), tries=tries, seconds=seconds).run()


async def begin(attempt: Attempt, provider: ScriptedProvider, tries: int) -> asyncio.Task[AttemptResult]:
    """Run an attempt until so many of its tries have begun, and wait a little."""
    running = asyncio.get_running_loop().create_task(attempt.run())
    while len(provider.timeouts) < tries:
        await asyncio.sleep(0)
    await asyncio.wait([running], timeout=0.05)
    return running


def assert_given_back(ending: AttemptResult) -> None:
    """Neither answered nor failed: the call goes to another worker."""
    assert (ending.answer, ending.fault) == (None, None)


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
    provider = ScriptedProvider(YES)
    attempt = attempt_of(provider, unproven=unproven)
    attempt.policy = attempt.policy._replace(asks_once=True, holds_conversations=holds)
    if number is not None:
        attempt.request = REQUEST.with_fields(turn=Turn(conversation_id="c", number=number))
    ending = await attempt.run()
    if not unproven:
        assert ending.answer == YES
        return
    assert (ending.tries, provider.timeouts) == (0, [])
    # This attempt is refunded, and the call stays in doubt for the earlier one.
    assert (ending.outcome, ending.fault and ending.fault.code) == (AttemptOutcome.REFUND, code)


async def test_an_answer_is_a_result_and_says_how_many_tries_it_took() -> None:
    report = TryReport(outcome=TryOutcome.ANSWERED)
    assert await ending_of(YES) == AttemptResult(tries=1, answer=YES, outcome=AttemptOutcome.RESULT, report=report)
    ending = await ending_of(failure(Billing.UNKNOWN), failure(Billing.BILLED), YES)
    assert ending == AttemptResult(tries=3, answer=YES, outcome=AttemptOutcome.RESULT, unproven=2, report=report)


async def test_tries_are_bounded_and_what_none_can_mend_is_not_tried_again() -> None:
    ending = await ending_of(*(failure(Billing.UNBILLED) for _ in range(9)), tries=4)
    assert (ending.tries, ending.outcome) == (4, AttemptOutcome.REFUND)
    ending = await ending_of(ProviderFailure(TargetUnavailable("no such model"), Billing.UNBILLED), YES)
    assert (ending.tries, ending.outcome) == (1, AttemptOutcome.REFUND)
    assert isinstance(ending.fault, TargetUnavailable)
    assert not ending.fault.charged


@pytest.mark.parametrize(
    ("billings", "outcome"),
    [
        ([Billing.UNBILLED, Billing.UNBILLED, Billing.UNBILLED], AttemptOutcome.REFUND),
        ([Billing.BILLED, Billing.UNBILLED, Billing.UNBILLED], AttemptOutcome.CHARGED),
        ([Billing.UNBILLED, Billing.BILLED, Billing.UNBILLED], AttemptOutcome.CHARGED),
        ([Billing.UNKNOWN, Billing.BILLED, Billing.UNBILLED], AttemptOutcome.IN_DOUBT),
        ([Billing.BILLED, Billing.UNKNOWN, Billing.UNBILLED], AttemptOutcome.IN_DOUBT),
        ([Billing.UNBILLED, Billing.UNBILLED, Billing.UNKNOWN], AttemptOutcome.IN_DOUBT),
    ],
)
async def test_the_tries_of_one_attempt_are_billed_by_the_worst_of_them(
    billings: list[Billing], outcome: AttemptOutcome
) -> None:
    ending = await ending_of(*(failure(billing) for billing in billings))
    assert (ending.tries, ending.outcome) == (3, outcome)
    assert ending.fault is not None
    assert ending.fault.charged is (outcome is not AttemptOutcome.REFUND)
    assert ending.fault.retryable is (outcome is AttemptOutcome.REFUND)


async def test_a_fault_that_is_never_charged_becomes_one_that_says_so() -> None:
    ending = await ending_of(failure(Billing.BILLED), throttled(0), tries=2)
    assert isinstance(ending.fault, ProviderFailed)
    assert ending.fault.message == "slow down (an earlier try may have been billed)"
    assert (ending.fault.charged, ending.outcome) == (True, AttemptOutcome.CHARGED)


async def test_the_next_try_begins_when_the_provider_says_within_what_is_left() -> None:
    skip_waits()
    loop = asyncio.get_running_loop()
    began = loop.time()
    provider = ScriptedProvider(failure(Billing.UNBILLED, retry_after=1.5), YES)
    assert (await attempt_of(provider, seconds=5).run()).tries == 2
    assert loop.time() - began == pytest.approx(1.5, abs=0.01)
    assert provider.timeouts == pytest.approx([5, 3.5], abs=0.01)


async def test_nobody_waits_for_a_try_that_would_begin_after_the_deadline() -> None:
    ending = await ending_of(throttled(60), YES, seconds=1)
    assert (ending.tries, ending.outcome) == (1, AttemptOutcome.REFUND)
    assert isinstance(ending.fault, Throttled)
    assert ending.fault.retry_after_ms == 60_000


async def test_a_provider_that_does_not_bound_itself_is_ended_at_the_deadline_in_doubt() -> None:
    skip_waits()
    ending = await ending_of(30.0, seconds=5)
    assert isinstance(ending.fault, TimedOut)
    assert (ending.tries, ending.outcome, ending.fault.charged) == (1, AttemptOutcome.IN_DOUBT, True)


async def test_a_grant_that_comes_after_the_deadline_calls_nobody_and_costs_nothing() -> None:
    ending = await ending_of(YES, seconds=0)
    assert isinstance(ending.fault, Expired)
    assert (ending.tries, ending.outcome, ending.fault.charged) == (0, AttemptOutcome.REFUND, False)


@pytest.mark.parametrize(
    "defect", [ZeroDivisionError("SECRET"), AttributeError("SECRET"), asyncio.CancelledError("SECRET")]
)
async def test_a_defect_of_a_provider_is_in_doubt_and_tells_no_detail(
    defect: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    for earlier in ([], [failure(Billing.BILLED)]):
        ending = await ending_of(*earlier, defect, YES)
        assert isinstance(ending.fault, InternalFault)
        assert (ending.tries, ending.outcome) == (len(earlier) + 1, AttemptOutcome.IN_DOUBT)
        assert (ending.fault.charged, "SECRET" in ending.fault.message) == (True, False)
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
    ("turns", "outcome", "charged"),
    [
        ([30.0], AttemptOutcome.IN_DOUBT, True),
        ([failure(Billing.UNBILLED, retry_after=1)], AttemptOutcome.REFUND, False),
        ([failure(Billing.BILLED, retry_after=1)], AttemptOutcome.CHARGED, True),
        ([failure(Billing.UNKNOWN, retry_after=1)], AttemptOutcome.IN_DOUBT, True),
        ([failure(Billing.UNBILLED), 30.0], AttemptOutcome.IN_DOUBT, True),
        ([], AttemptOutcome.REFUND, False),
        ([UNTOLD], AttemptOutcome.IN_DOUBT, True),
    ],
)
async def test_an_attempt_that_is_taken_back_owes_what_its_tries_so_far_may_cost(
    turns: list[ProviderAnswer | BaseException | float], outcome: AttemptOutcome, charged: bool
) -> None:
    provider = ScriptedProvider(*turns)
    attempt = attempt_of(provider)
    if turns:
        running = asyncio.get_running_loop().create_task(attempt.run())
        await wait_until(lambda: not provider.turns)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert provider.was_cancelled is (turns[-1] == 30.0)
    ending = attempt.cancelled_result()
    assert isinstance(ending.fault, Cancelled)
    assert (ending.outcome, ending.fault.charged, ending.tries) == (outcome, charged, len(turns))


async def test_a_vendor_is_asked_for_its_bill_as_long_as_the_caller_waits_for_the_answer() -> None:
    skip_waits()
    ending = await attempt_of(ScriptedProvider(UNTOLD), seconds=3).run()
    assert (ending.answer, ending.outcome, ending.fault) == (UNTOLD, AttemptOutcome.RESULT, None)


# Pauses of a target.


@pytest.mark.parametrize(("seconds", "told"), [(0.1, []), (2.0, []), (2.1, [2.1]), (86_400.0, [86_400.0])])
async def test_a_provider_that_asks_for_a_long_wait_pauses_its_target(seconds: float, told: list[float]) -> None:
    heard: list[float] = []
    pause = PauseState(heard.append)
    await attempt_of(ScriptedProvider(throttled(seconds)), tries=1, pause=pause).run()
    assert heard == told
    assert pause.remaining_seconds == pytest.approx(sum(told), abs=0.5)


async def test_a_call_tries_again_after_the_pause_of_its_target_however_it_was_lengthened() -> None:
    skip_waits()
    loop = asyncio.get_running_loop()
    pause, provider = PauseState(), ScriptedProvider(failure(Billing.UNBILLED, retry_after=0.5), YES)
    running = loop.create_task(attempt_of(provider, pause=pause).run())
    while not provider.timeouts:
        await asyncio.sleep(0)
    pause.apply_ledger_pause(3)
    began = loop.time()
    assert (await running).tries == 2
    assert loop.time() - began == pytest.approx(3, abs=0.1)


async def test_a_call_is_given_back_where_its_pause_is_longer_than_it_may_be_held() -> None:
    ending = await ending_of(throttled(61), YES, seconds=300)
    assert_given_back(ending)
    assert (ending.tries, ending.outcome) == (1, AttemptOutcome.REFUND)


@pytest.mark.parametrize(("seconds", "held"), [(59.9, True), (60.5, False)])
async def test_a_call_that_has_not_asked_yet_is_held_for_a_minute_at_most(seconds: float, held: bool) -> None:
    pause, provider = PauseState(), ScriptedProvider(YES)
    pause.apply_ledger_pause(seconds)
    running = await begin(attempt_of(provider, pause=pause, seconds=300), provider, 0)
    assert (running.done(), provider.timeouts) == (not held, [])
    if held:
        pause.apply_ledger_pause(61)
    assert_given_back(await running)


@pytest.mark.parametrize(
    ("earlier", "unproven"), [(failure(Billing.UNKNOWN), False), (failure(Billing.UNBILLED), True)]
)
async def test_what_may_have_been_billed_is_not_given_back_but_waits_the_pause_out(
    earlier: ProviderFailure, unproven: bool
) -> None:
    pause, provider = PauseState(), ScriptedProvider(earlier, throttled(61), YES)
    running = await begin(attempt_of(provider, seconds=300, pause=pause, unproven=unproven), provider, 2)
    assert not running.done()
    pause.stop()
    await asyncio.wait([running], timeout=0.05)
    assert not running.done()
    # A worker that stops does not wait for a try that begins when it is gone.
    pause.stop(90)
    await asyncio.wait([running], timeout=0.05)
    assert not running.done()
    pause.stop(30)
    await asyncio.wait([running], timeout=0.05)
    assert running.cancelled()


async def test_a_worker_that_stops_gives_back_what_rests_between_tries() -> None:
    pause, provider = PauseState(), ScriptedProvider(throttled(30), YES)
    running = await begin(attempt_of(provider, pause=pause, seconds=300), provider, 1)
    pause.stop()
    assert_given_back(await running)


async def test_a_pause_that_outlasts_the_deadline_ends_the_call_at_once_as_throttled() -> None:
    pause = PauseState()
    pause.apply_ledger_pause(61)
    ending = await attempt_of(ScriptedProvider(YES), pause=pause, seconds=30).run()
    assert isinstance(ending.fault, Throttled)
    assert (ending.tries, ending.outcome, ending.fault.charged) == (0, AttemptOutcome.REFUND, False)
    assert ending.fault.retry_after_ms == pytest.approx(61_000, abs=1000)
    # One that grows past it ends the call with its last failure.
    pause, provider = PauseState(), ScriptedProvider(throttled(3), YES)
    running = await begin(attempt_of(provider, pause=pause, seconds=30), provider, 1)
    pause.apply_ledger_pause(31)
    ending = await running
    assert isinstance(ending.fault, Throttled)
    assert (ending.tries, ending.fault.message, ending.outcome) == (1, "slow down", AttemptOutcome.REFUND)


@pytest.mark.parametrize("absurd", [None, -1.0, -1e308, float("nan"), float("-inf")])
async def test_without_a_word_on_when_to_come_again_the_wait_is_short(
    absurd: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "INITIAL_BACKOFF_SECONDS", 0.02)
    pause, failed = PauseState(), failure(Billing.UNBILLED, retry_after=absurd)
    assert failed.retry_after_seconds is None
    ending = await attempt_of(ScriptedProvider(failed, failed, YES), pause=pause).run()
    assert (ending.tries, ending.answer, pause.remaining_seconds) == (3, YES, 0)


@pytest.mark.parametrize("absurd", [1e308, float("inf"), 86_401.0])
async def test_a_pause_is_a_day_at_most(absurd: float) -> None:
    pause = PauseState()
    ending = await attempt_of(ScriptedProvider(failure(Billing.UNBILLED, retry_after=absurd)), pause=pause).run()
    assert ending.outcome is AttemptOutcome.REFUND
    assert 86_000 < pause.remaining_seconds <= 86_400


async def test_the_timeout_of_a_target_bounds_its_tries_and_not_the_pauses_of_the_target() -> None:
    skip_waits()
    pause, provider = PauseState(), ScriptedProvider(failure(Billing.UNBILLED, retry_after=1), 30.0)
    pause.apply_ledger_pause(4)
    ends = asyncio.get_running_loop().time() + 100
    ending = await Attempt(provider, REQUEST, RetryPolicy(3, ends, timeout_seconds=3), pause).run()
    assert isinstance(ending.fault, TimedOut)
    # All of it, although it waited for longer before.
    assert provider.timeouts == pytest.approx([3, 2], abs=0.05)
