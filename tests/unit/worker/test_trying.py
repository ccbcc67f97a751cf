"""Asking a provider, and again: bounded, inside the deadline, and honest about the bill."""

from __future__ import annotations

import asyncio

import pytest

from quintain.contracts.invoke import InvokeRequest
from quintain.contracts.ledger import Outcome
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
from quintain_worker import trying
from quintain_worker.pause import Pause
from quintain_worker.port import Answer, Billing, Heard, ProviderFailure
from quintain_worker.trying import Attempt, Ending, Patience, as_charged

REQUEST = InvokeRequest(question="x")


class Scripted:
    """A provider that does what its script says, one turn a try; it keeps how long it was given each time."""

    def __init__(self, *turns: Answer | BaseException | float) -> None:
        self.turns = list(turns)
        self.given: list[float] = []

    async def answer(self, _: InvokeRequest, *, timeout_seconds: float, heard: Heard | None = None) -> Answer:
        self.given.append(timeout_seconds)
        turn = self.turns.pop(0)
        if isinstance(turn, float):
            await asyncio.sleep(turn)
            return Answer(text="late")
        if isinstance(turn, BaseException):
            raise turn
        return turn

    async def close(self) -> None:
        """Nothing is held."""


def failure(billing: Billing, *, again: bool = True, retry_after: float | None = 0.0) -> ProviderFailure:
    fault = ProviderFailed("it failed", charged=billing is not Billing.UNBILLED)
    return ProviderFailure(fault, billing, again=again, retry_after_seconds=retry_after)


def throttled(seconds: float) -> ProviderFailure:
    fault = Throttled("slow down", retry_after_ms=int(seconds * 1000))
    return ProviderFailure(fault, Billing.UNBILLED, again=True, retry_after_seconds=seconds)


async def trying_with(provider: Scripted, *, tries: int = 3, seconds: float = 10) -> Ending:
    return await trial(provider, tries=tries, seconds=seconds).run()


def trial(
    provider: Scripted, *, tries: int = 3, seconds: float = 10, pause: Pause | None = None, unproven: bool = False
) -> Attempt:
    patience = Patience(tries, asyncio.get_running_loop().time() + seconds, unproven=unproven)
    return Attempt(provider, REQUEST, patience, pause or Pause())


YES = Answer(text="yes")


async def test_an_answer_is_a_result_at_the_first_try() -> None:
    provider = Scripted(YES)
    ending = await trying_with(provider, seconds=5)
    assert ending == Ending(tries=1, answer=YES, outcome=Outcome.RESULT)
    assert 4.9 < provider.given[0] <= 5


async def test_an_answer_after_failures_is_a_result_and_says_how_many_tries_it_took() -> None:
    provider = Scripted(failure(Billing.UNKNOWN), failure(Billing.BILLED), YES)
    assert await trying_with(provider) == Ending(tries=3, answer=YES, outcome=Outcome.RESULT)


async def test_tries_are_bounded() -> None:
    provider = Scripted(*(failure(Billing.UNBILLED) for _ in range(9)))
    ending = await trying_with(provider, tries=4)
    assert (ending.tries, len(provider.given)) == (4, 4)
    assert ending.outcome is Outcome.REFUND


async def test_what_no_other_try_can_mend_is_not_tried_again() -> None:
    refused = ProviderFailure(TargetUnavailable("no such model"), Billing.UNBILLED)
    ending = await trying_with(Scripted(refused, YES))
    assert (ending.tries, ending.outcome) == (1, Outcome.REFUND)
    assert isinstance(ending.fault, TargetUnavailable)
    assert not ending.fault.charged


@pytest.mark.parametrize(
    ("billings", "outcome"),
    [
        ([Billing.UNBILLED, Billing.UNBILLED, Billing.UNBILLED], Outcome.REFUND),
        ([Billing.BILLED, Billing.UNBILLED, Billing.UNBILLED], Outcome.CHARGED),
        ([Billing.UNBILLED, Billing.BILLED, Billing.UNBILLED], Outcome.CHARGED),
        ([Billing.UNKNOWN, Billing.BILLED, Billing.UNBILLED], Outcome.DOUBT),
        ([Billing.BILLED, Billing.UNKNOWN, Billing.UNBILLED], Outcome.DOUBT),
        ([Billing.UNBILLED, Billing.UNBILLED, Billing.UNKNOWN], Outcome.DOUBT),
    ],
)
async def test_the_tries_of_one_attempt_are_billed_by_the_worst_of_them(
    billings: list[Billing], outcome: Outcome
) -> None:
    ending = await trying_with(Scripted(*(failure(billing) for billing in billings)))
    assert (ending.tries, ending.outcome) == (3, outcome)
    assert ending.fault is not None
    assert ending.fault.charged is (outcome is not Outcome.REFUND)
    assert ending.fault.retryable is (outcome is Outcome.REFUND)


async def test_a_fault_that_is_never_charged_becomes_one_that_says_so() -> None:
    ending = await trying_with(Scripted(failure(Billing.BILLED), throttled(0)), tries=2)
    assert isinstance(ending.fault, ProviderFailed)
    assert ending.fault.message == "slow down (an earlier try may have been billed)"
    assert (ending.fault.charged, ending.outcome) == (True, Outcome.CHARGED)


async def test_the_provider_says_when_to_come_again_and_is_heard() -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    provider = Scripted(failure(Billing.UNBILLED, retry_after=0.1), YES)
    assert (await trying_with(provider)).tries == 2
    assert 0.1 <= loop.time() - began < 1


async def test_nobody_waits_for_a_try_that_would_begin_after_the_deadline() -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    ending = await trying_with(Scripted(throttled(60), YES), seconds=1)
    assert loop.time() - began < 0.5
    assert (ending.tries, ending.outcome) == (1, Outcome.REFUND)
    assert isinstance(ending.fault, Throttled)
    assert ending.fault.retry_after_ms == 60_000


async def test_without_a_word_of_the_provider_the_pause_is_short_and_jittered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trying, "FIRST_PAUSE_SECONDS", 0.02)
    provider = Scripted(*(failure(Billing.UNBILLED, retry_after=None) for _ in range(2)), YES)
    assert (await trying_with(provider)).tries == 3


async def test_each_try_is_given_what_is_left() -> None:
    provider = Scripted(failure(Billing.UNBILLED, retry_after=0.1), YES)
    await trying_with(provider, seconds=2)
    first, second = provider.given
    assert second <= first - 0.1


async def test_a_provider_that_does_not_bound_itself_is_ended_at_the_deadline_in_doubt() -> None:
    ending = await trying_with(Scripted(30.0), seconds=0.05)
    assert isinstance(ending.fault, TimedOut)
    assert (ending.tries, ending.outcome, ending.fault.charged) == (1, Outcome.DOUBT, True)


async def test_a_grant_that_comes_after_the_deadline_calls_nobody_and_costs_nothing() -> None:
    provider = Scripted(YES)
    ending = await trying_with(provider, seconds=0)
    assert provider.given == []
    assert isinstance(ending.fault, Expired)
    assert (ending.tries, ending.outcome, ending.fault.charged) == (0, Outcome.REFUND, False)


@pytest.mark.parametrize(
    "defect", [ZeroDivisionError("SECRET"), AttributeError("SECRET"), asyncio.CancelledError("SECRET")]
)
async def test_a_defect_of_a_provider_is_in_doubt_and_tells_no_detail(
    defect: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    ending = await trying_with(Scripted(defect, YES))
    assert isinstance(ending.fault, InternalFault)
    assert (ending.tries, ending.outcome, ending.fault.charged) == (1, Outcome.DOUBT, True)
    assert "SECRET" not in ending.fault.message
    assert "A defect in a provider" in caplog.text


async def test_a_defect_after_a_billed_try_is_in_doubt_all_the_same() -> None:
    ending = await trying_with(Scripted(failure(Billing.BILLED), KeyError("x")))
    assert (ending.tries, ending.outcome) == (2, Outcome.DOUBT)


async def test_whoever_cancels_the_attempt_cancels_the_provider() -> None:
    ended = asyncio.Event()
    started = asyncio.Event()

    class Watched(Scripted):
        async def answer(self, _: InvokeRequest, *, timeout_seconds: float, heard: Heard | None = None) -> Answer:
            started.set()
            try:
                await asyncio.sleep(timeout_seconds)
            finally:
                ended.set()
            raise AssertionError("nobody cancelled it")

    running = asyncio.get_running_loop().create_task(trying_with(Watched()))
    await started.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert ended.is_set()


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
    told = as_charged(fault, charged=charged)
    assert type(told) is kind
    assert told.charged is charged
    assert told.message.startswith("x")


@pytest.mark.parametrize(
    ("turns", "outcome", "charged"),
    [
        ([30.0], Outcome.DOUBT, True),
        ([failure(Billing.UNBILLED, retry_after=1)], Outcome.REFUND, False),
        ([failure(Billing.BILLED, retry_after=1)], Outcome.CHARGED, True),
        ([failure(Billing.UNKNOWN, retry_after=1)], Outcome.DOUBT, True),
        ([failure(Billing.UNBILLED), 30.0], Outcome.DOUBT, True),
    ],
)
async def test_an_attempt_that_is_taken_back_owes_what_its_tries_so_far_may_cost(
    turns: list[BaseException | float], outcome: Outcome, charged: bool
) -> None:
    provider = Scripted(*turns)
    one = trial(provider)
    running = asyncio.get_running_loop().create_task(one.run())
    async with asyncio.timeout(5):
        while provider.turns:
            await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    ending = one.taken_back()
    assert isinstance(ending.fault, Cancelled)
    assert (ending.outcome, ending.fault.charged, ending.tries) == (outcome, charged, len(turns))


async def test_an_attempt_that_is_taken_back_before_its_first_try_owes_nothing() -> None:
    ending = Attempt(Scripted(), REQUEST, Patience(3, 0), Pause()).taken_back()
    assert isinstance(ending.fault, Cancelled)
    assert (ending.tries, ending.outcome, ending.fault.charged) == (0, Outcome.REFUND, False)


@pytest.mark.parametrize(("seconds", "told"), [(0.1, []), (2.0, []), (2.1, [2.1]), (86_400.0, [86_400.0])])
async def test_a_provider_that_asks_for_a_long_wait_pauses_its_target(seconds: float, told: list[float]) -> None:
    heard: list[float] = []
    pause = Pause(heard.append)
    await trial(Scripted(throttled(seconds)), tries=1, pause=pause).run()
    assert heard == told
    assert pause.left == pytest.approx(sum(told), abs=0.5)


async def test_a_call_tries_again_after_the_pause_of_its_target_however_it_was_lengthened() -> None:
    loop = asyncio.get_running_loop()
    pause, provider = Pause(), Scripted(failure(Billing.UNBILLED, retry_after=0.05), YES)
    running = loop.create_task(trial(provider, pause=pause).run())
    while len(provider.turns) == 2:
        await asyncio.sleep(0)
    pause.hear(0.3)
    began = loop.time()
    assert (await running).tries == 2
    assert 0.29 <= loop.time() - began < 1


async def test_nobody_is_asked_while_the_target_is_paused() -> None:
    loop = asyncio.get_running_loop()
    pause, provider = Pause(), Scripted(YES)
    pause.hear(60)
    running = loop.create_task(trial(provider, pause=pause, seconds=90).run())
    await asyncio.sleep(0.05)
    assert provider.given == []
    pause.hear(None)
    assert (await running).answer == YES


async def test_a_call_is_given_back_where_its_pause_is_longer_than_it_may_be_held() -> None:
    ending = await trial(Scripted(throttled(61), YES), seconds=300).run()
    assert ending.given_back
    assert (ending.tries, ending.outcome) == (1, Outcome.REFUND)


@pytest.mark.parametrize(("seconds", "held"), [(59.9, True), (60.5, False)])
async def test_a_call_that_has_not_asked_yet_is_held_for_a_minute_at_most(seconds: float, held: bool) -> None:
    pause = Pause()
    pause.hear(seconds)
    running = asyncio.get_running_loop().create_task(trial(Scripted(YES), pause=pause, seconds=300).run())
    await asyncio.wait([running], timeout=0.05)
    assert running.done() is not held
    if held:
        pause.hear(61)
    assert (await running).given_back


async def test_what_may_have_been_billed_is_not_given_back_but_waits_the_pause_out() -> None:
    for earlier, unproven in ((failure(Billing.UNKNOWN), False), (failure(Billing.UNBILLED), True)):
        pause, provider = Pause(), Scripted(earlier, throttled(61), YES)
        running = asyncio.get_running_loop().create_task(
            trial(provider, seconds=300, pause=pause, unproven=unproven).run()
        )
        while len(provider.turns) == 3:
            await asyncio.sleep(0)
        await asyncio.wait([running], timeout=0.05)
        assert not running.done()
        pause.stop()
        await asyncio.wait([running], timeout=0.05)
        assert not running.done()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_worker_that_stops_gives_back_what_rests_between_tries() -> None:
    pause, provider = Pause(), Scripted(throttled(30), YES)
    running = asyncio.get_running_loop().create_task(trial(provider, pause=pause, seconds=300).run())
    while len(provider.turns) == 2:
        await asyncio.sleep(0)
    pause.stop()
    assert (await running).given_back


async def test_a_pause_that_outlasts_the_deadline_ends_the_call_at_once_as_throttled() -> None:
    pause = Pause()
    pause.hear(61)
    ending = await trial(Scripted(YES), pause=pause, seconds=30).run()
    assert isinstance(ending.fault, Throttled)
    assert (ending.tries, ending.outcome, ending.fault.charged) == (0, Outcome.REFUND, False)
    assert ending.fault.retry_after_ms == pytest.approx(61_000, abs=1000)


async def test_a_pause_that_grows_past_the_deadline_ends_the_call_with_its_last_failure() -> None:
    pause, provider = Pause(), Scripted(throttled(3), YES)
    running = asyncio.get_running_loop().create_task(trial(provider, pause=pause, seconds=30).run())
    while len(provider.turns) == 2:
        await asyncio.sleep(0)
    pause.hear(31)
    ending = await running
    assert isinstance(ending.fault, Throttled)
    assert (ending.tries, ending.fault.message, ending.outcome) == (1, "slow down", Outcome.REFUND)


@pytest.mark.parametrize("absurd", [-1.0, -1e308, float("nan"), float("-inf")])
async def test_an_absurd_word_on_when_to_come_again_is_no_word(absurd: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trying, "FIRST_PAUSE_SECONDS", 0.02)
    pause = Pause()
    failed = failure(Billing.UNBILLED, retry_after=absurd)
    assert failed.retry_after_seconds is None
    ending = await trial(Scripted(failed, YES), pause=pause).run()
    assert (ending.tries, ending.answer, pause.left) == (2, YES, 0)


@pytest.mark.parametrize("absurd", [1e308, float("inf"), 86_401.0])
async def test_a_pause_is_a_day_at_most(absurd: float) -> None:
    pause = Pause()
    ending = await trial(Scripted(failure(Billing.UNBILLED, retry_after=absurd)), pause=pause).run()
    assert ending.outcome is Outcome.REFUND
    assert 86_000 < pause.left <= 86_400


async def test_the_timeout_of_a_target_bounds_its_tries_and_not_the_pauses_of_the_target() -> None:
    pause, provider = Pause(), Scripted(failure(Billing.UNBILLED, retry_after=0.1), 30.0)
    pause.hear(0.4)
    ends = asyncio.get_running_loop().time() + 10
    ending = await Attempt(provider, REQUEST, Patience(3, ends, timeout_seconds=0.3), pause).run()
    assert isinstance(ending.fault, TimedOut)
    first, second = provider.given
    assert 0.25 < first <= 0.3  # all of it, although it waited for longer before
    assert 0.1 < second <= 0.2
