"""Asking a provider, and again: bounded, inside the deadline, and honest about the bill."""

from __future__ import annotations

import asyncio

import pytest

from quintain.contracts.agents import Turn
from quintain.contracts.invoke import InvokeRequest
from quintain.contracts.ledger import AttemptOutcome
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
from support.waiting import wait_until

REQUEST = InvokeRequest(question="x")


class ScriptedProvider:
    """A provider that does what its script says, one turn a try; it keeps how long it was given each time."""

    def __init__(self, *turns: ProviderAnswer | BaseException | float) -> None:
        self.turns = list(turns)
        self.timeouts: list[float] = []

    async def answer(
        self, _: InvokeRequest, *, timeout_seconds: float, on_text: OnText | None = None
    ) -> ProviderAnswer:
        self.timeouts.append(timeout_seconds)
        turn = self.turns.pop(0)
        if isinstance(turn, float):
            await asyncio.sleep(turn)
            return ProviderAnswer(text="late")
        if isinstance(turn, BaseException):
            raise turn
        return turn

    async def close(self) -> None:
        """Nothing is held."""


def failure(billing: Billing, *, again: bool = True, retry_after: float | None = 0.0) -> ProviderFailure:
    fault = ProviderFailed("it failed", charged=billing is not Billing.UNBILLED)
    return ProviderFailure(fault, billing, retryable=again, retry_after_seconds=retry_after)


def throttled(seconds: float) -> ProviderFailure:
    fault = Throttled("slow down", retry_after_ms=int(seconds * 1000))
    return ProviderFailure(fault, Billing.UNBILLED, retryable=True, retry_after_seconds=seconds)


async def run_attempt(provider: ScriptedProvider, *, tries: int = 3, seconds: float = 10) -> AttemptResult:
    return await attempt_with(provider, tries=tries, seconds=seconds).run()


def attempt_with(
    provider: ScriptedProvider,
    *,
    tries: int = 3,
    seconds: float = 10,
    pause: PauseState | None = None,
    unproven: bool = False,
) -> Attempt:
    patience = RetryPolicy(tries, asyncio.get_running_loop().time() + seconds, unproven=unproven)
    return Attempt(provider, REQUEST, patience, pause or PauseState())


YES = ProviderAnswer(text="yes")


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
    attempt = attempt_with(provider, unproven=unproven)
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


async def test_an_answer_is_a_result_at_the_first_try() -> None:
    provider = ScriptedProvider(YES)
    ending = await run_attempt(provider, seconds=5)
    assert ending == AttemptResult(tries=1, answer=YES, outcome=AttemptOutcome.RESULT)
    assert 4.9 < provider.timeouts[0] <= 5


async def test_an_answer_after_failures_is_a_result_and_says_how_many_tries_it_took() -> None:
    provider = ScriptedProvider(failure(Billing.UNKNOWN), failure(Billing.BILLED), YES)
    assert await run_attempt(provider) == AttemptResult(tries=3, answer=YES, outcome=AttemptOutcome.RESULT, unproven=2)


async def test_tries_are_bounded() -> None:
    provider = ScriptedProvider(*(failure(Billing.UNBILLED) for _ in range(9)))
    ending = await run_attempt(provider, tries=4)
    assert (ending.tries, len(provider.timeouts)) == (4, 4)
    assert ending.outcome is AttemptOutcome.REFUND


async def test_what_no_other_try_can_mend_is_not_tried_again() -> None:
    refused = ProviderFailure(TargetUnavailable("no such model"), Billing.UNBILLED)
    ending = await run_attempt(ScriptedProvider(refused, YES))
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
    ending = await run_attempt(ScriptedProvider(*(failure(billing) for billing in billings)))
    assert (ending.tries, ending.outcome) == (3, outcome)
    assert ending.fault is not None
    assert ending.fault.charged is (outcome is not AttemptOutcome.REFUND)
    assert ending.fault.retryable is (outcome is AttemptOutcome.REFUND)


async def test_a_fault_that_is_never_charged_becomes_one_that_says_so() -> None:
    ending = await run_attempt(ScriptedProvider(failure(Billing.BILLED), throttled(0)), tries=2)
    assert isinstance(ending.fault, ProviderFailed)
    assert ending.fault.message == "slow down (an earlier try may have been billed)"
    assert (ending.fault.charged, ending.outcome) == (True, AttemptOutcome.CHARGED)


async def test_the_provider_says_when_to_come_again_and_is_heard() -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    provider = ScriptedProvider(failure(Billing.UNBILLED, retry_after=0.1), YES)
    assert (await run_attempt(provider)).tries == 2
    assert 0.1 <= loop.time() - began < 1


async def test_nobody_waits_for_a_try_that_would_begin_after_the_deadline() -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    ending = await run_attempt(ScriptedProvider(throttled(60), YES), seconds=1)
    assert loop.time() - began < 0.5
    assert (ending.tries, ending.outcome) == (1, AttemptOutcome.REFUND)
    assert isinstance(ending.fault, Throttled)
    assert ending.fault.retry_after_ms == 60_000


async def test_without_a_word_of_the_provider_the_pause_is_short_and_jittered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "INITIAL_BACKOFF_SECONDS", 0.02)
    provider = ScriptedProvider(*(failure(Billing.UNBILLED, retry_after=None) for _ in range(2)), YES)
    assert (await run_attempt(provider)).tries == 3


async def test_each_try_is_given_what_is_left() -> None:
    provider = ScriptedProvider(failure(Billing.UNBILLED, retry_after=0.1), YES)
    await run_attempt(provider, seconds=2)
    first, second = provider.timeouts
    assert second <= first - 0.1


async def test_a_provider_that_does_not_bound_itself_is_ended_at_the_deadline_in_doubt() -> None:
    ending = await run_attempt(ScriptedProvider(30.0), seconds=0.05)
    assert isinstance(ending.fault, TimedOut)
    assert (ending.tries, ending.outcome, ending.fault.charged) == (1, AttemptOutcome.IN_DOUBT, True)


async def test_a_grant_that_comes_after_the_deadline_calls_nobody_and_costs_nothing() -> None:
    provider = ScriptedProvider(YES)
    ending = await run_attempt(provider, seconds=0)
    assert provider.timeouts == []
    assert isinstance(ending.fault, Expired)
    assert (ending.tries, ending.outcome, ending.fault.charged) == (0, AttemptOutcome.REFUND, False)


@pytest.mark.parametrize(
    "defect", [ZeroDivisionError("SECRET"), AttributeError("SECRET"), asyncio.CancelledError("SECRET")]
)
async def test_a_defect_of_a_provider_is_in_doubt_and_tells_no_detail(
    defect: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    ending = await run_attempt(ScriptedProvider(defect, YES))
    assert isinstance(ending.fault, InternalFault)
    assert (ending.tries, ending.outcome, ending.fault.charged) == (1, AttemptOutcome.IN_DOUBT, True)
    assert "SECRET" not in ending.fault.message
    assert "A defect in a provider" in caplog.text


async def test_a_defect_after_a_billed_try_is_in_doubt_all_the_same() -> None:
    ending = await run_attempt(ScriptedProvider(failure(Billing.BILLED), KeyError("x")))
    assert (ending.tries, ending.outcome) == (2, AttemptOutcome.IN_DOUBT)


async def test_whoever_cancels_the_attempt_cancels_the_provider() -> None:
    ended = asyncio.Event()
    started = asyncio.Event()

    class Watched(ScriptedProvider):
        async def answer(
            self, _: InvokeRequest, *, timeout_seconds: float, on_text: OnText | None = None
        ) -> ProviderAnswer:
            started.set()
            try:
                await asyncio.sleep(timeout_seconds)
            finally:
                ended.set()
            raise AssertionError("nobody cancelled it")

    running = asyncio.get_running_loop().create_task(run_attempt(Watched()))
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
    told = with_charge(fault, charged=charged)
    assert type(told) is kind
    assert told.charged is charged
    assert told.message.startswith("x")


@pytest.mark.parametrize(
    ("turns", "outcome", "charged"),
    [
        ([30.0], AttemptOutcome.IN_DOUBT, True),
        ([failure(Billing.UNBILLED, retry_after=1)], AttemptOutcome.REFUND, False),
        ([failure(Billing.BILLED, retry_after=1)], AttemptOutcome.CHARGED, True),
        ([failure(Billing.UNKNOWN, retry_after=1)], AttemptOutcome.IN_DOUBT, True),
        ([failure(Billing.UNBILLED), 30.0], AttemptOutcome.IN_DOUBT, True),
    ],
)
async def test_an_attempt_that_is_taken_back_owes_what_its_tries_so_far_may_cost(
    turns: list[BaseException | float], outcome: AttemptOutcome, charged: bool
) -> None:
    provider = ScriptedProvider(*turns)
    one = attempt_with(provider)
    running = asyncio.get_running_loop().create_task(one.run())
    await wait_until(lambda: not provider.turns)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    ending = one.cancelled_result()
    assert isinstance(ending.fault, Cancelled)
    assert (ending.outcome, ending.fault.charged, ending.tries) == (outcome, charged, len(turns))


async def test_an_attempt_that_is_taken_back_before_its_first_try_owes_nothing() -> None:
    ending = Attempt(ScriptedProvider(), REQUEST, RetryPolicy(3, 0), PauseState()).cancelled_result()
    assert isinstance(ending.fault, Cancelled)
    assert (ending.tries, ending.outcome, ending.fault.charged) == (0, AttemptOutcome.REFUND, False)


@pytest.mark.parametrize(("seconds", "told"), [(0.1, []), (2.0, []), (2.1, [2.1]), (86_400.0, [86_400.0])])
async def test_a_provider_that_asks_for_a_long_wait_pauses_its_target(seconds: float, told: list[float]) -> None:
    heard: list[float] = []
    pause = PauseState(heard.append)
    await attempt_with(ScriptedProvider(throttled(seconds)), tries=1, pause=pause).run()
    assert heard == told
    assert pause.remaining_seconds == pytest.approx(sum(told), abs=0.5)


async def test_a_call_tries_again_after_the_pause_of_its_target_however_it_was_lengthened() -> None:
    loop = asyncio.get_running_loop()
    pause, provider = PauseState(), ScriptedProvider(failure(Billing.UNBILLED, retry_after=0.05), YES)
    running = loop.create_task(attempt_with(provider, pause=pause).run())
    while len(provider.turns) == 2:
        await asyncio.sleep(0)
    pause.apply_ledger_pause(0.3)
    began = loop.time()
    assert (await running).tries == 2
    assert 0.29 <= loop.time() - began < 1


async def test_nobody_is_asked_while_the_target_is_paused() -> None:
    loop = asyncio.get_running_loop()
    pause, provider = PauseState(), ScriptedProvider(YES)
    pause.apply_ledger_pause(60)
    running = loop.create_task(attempt_with(provider, pause=pause, seconds=90).run())
    await asyncio.sleep(0.05)
    assert provider.timeouts == []
    pause.apply_ledger_pause(None)
    assert (await running).answer == YES


async def test_a_call_is_given_back_where_its_pause_is_longer_than_it_may_be_held() -> None:
    ending = await attempt_with(ScriptedProvider(throttled(61), YES), seconds=300).run()
    assert (ending.answer, ending.fault) == (None, None)
    assert (ending.tries, ending.outcome) == (1, AttemptOutcome.REFUND)


@pytest.mark.parametrize(("seconds", "held"), [(59.9, True), (60.5, False)])
async def test_a_call_that_has_not_asked_yet_is_held_for_a_minute_at_most(seconds: float, held: bool) -> None:
    pause = PauseState()
    pause.apply_ledger_pause(seconds)
    running = asyncio.get_running_loop().create_task(
        attempt_with(ScriptedProvider(YES), pause=pause, seconds=300).run()
    )
    await asyncio.wait([running], timeout=0.05)
    assert running.done() is not held
    if held:
        pause.apply_ledger_pause(61)
    ending = await running
    assert (ending.answer, ending.fault) == (None, None)


async def test_what_may_have_been_billed_is_not_given_back_but_waits_the_pause_out() -> None:
    for earlier, unproven in ((failure(Billing.UNKNOWN), False), (failure(Billing.UNBILLED), True)):
        pause, provider = PauseState(), ScriptedProvider(earlier, throttled(61), YES)
        running = asyncio.get_running_loop().create_task(
            attempt_with(provider, seconds=300, pause=pause, unproven=unproven).run()
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


@pytest.mark.parametrize(("grace_seconds", "is_ended"), [(30, True), (90, False)])
async def test_a_worker_that_stops_does_not_wait_for_a_try_that_begins_when_it_is_gone(
    grace_seconds: float, is_ended: bool
) -> None:
    pause, provider = PauseState(), ScriptedProvider(failure(Billing.UNKNOWN), throttled(61), YES)
    running = asyncio.get_running_loop().create_task(attempt_with(provider, pause=pause, seconds=300).run())
    while len(provider.turns) == 3:
        await asyncio.sleep(0)
    await asyncio.wait([running], timeout=0.05)
    pause.stop(grace_seconds)
    await asyncio.wait([running], timeout=0.05)
    assert running.cancelled() is is_ended
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_worker_that_stops_gives_back_what_rests_between_tries() -> None:
    pause, provider = PauseState(), ScriptedProvider(throttled(30), YES)
    running = asyncio.get_running_loop().create_task(attempt_with(provider, pause=pause, seconds=300).run())
    while len(provider.turns) == 2:
        await asyncio.sleep(0)
    pause.stop()
    ending = await running
    assert (ending.answer, ending.fault) == (None, None)


async def test_a_pause_that_outlasts_the_deadline_ends_the_call_at_once_as_throttled() -> None:
    pause = PauseState()
    pause.apply_ledger_pause(61)
    ending = await attempt_with(ScriptedProvider(YES), pause=pause, seconds=30).run()
    assert isinstance(ending.fault, Throttled)
    assert (ending.tries, ending.outcome, ending.fault.charged) == (0, AttemptOutcome.REFUND, False)
    assert ending.fault.retry_after_ms == pytest.approx(61_000, abs=1000)


async def test_a_pause_that_grows_past_the_deadline_ends_the_call_with_its_last_failure() -> None:
    pause, provider = PauseState(), ScriptedProvider(throttled(3), YES)
    running = asyncio.get_running_loop().create_task(attempt_with(provider, pause=pause, seconds=30).run())
    while len(provider.turns) == 2:
        await asyncio.sleep(0)
    pause.apply_ledger_pause(31)
    ending = await running
    assert isinstance(ending.fault, Throttled)
    assert (ending.tries, ending.fault.message, ending.outcome) == (1, "slow down", AttemptOutcome.REFUND)


@pytest.mark.parametrize("absurd", [-1.0, -1e308, float("nan"), float("-inf")])
async def test_an_absurd_word_on_when_to_come_again_is_no_word(absurd: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "INITIAL_BACKOFF_SECONDS", 0.02)
    pause = PauseState()
    failed = failure(Billing.UNBILLED, retry_after=absurd)
    assert failed.retry_after_seconds is None
    ending = await attempt_with(ScriptedProvider(failed, YES), pause=pause).run()
    assert (ending.tries, ending.answer, pause.remaining_seconds) == (2, YES, 0)


@pytest.mark.parametrize("absurd", [1e308, float("inf"), 86_401.0])
async def test_a_pause_is_a_day_at_most(absurd: float) -> None:
    pause = PauseState()
    ending = await attempt_with(ScriptedProvider(failure(Billing.UNBILLED, retry_after=absurd)), pause=pause).run()
    assert ending.outcome is AttemptOutcome.REFUND
    assert 86_000 < pause.remaining_seconds <= 86_400


async def test_the_timeout_of_a_target_bounds_its_tries_and_not_the_pauses_of_the_target() -> None:
    pause, provider = PauseState(), ScriptedProvider(failure(Billing.UNBILLED, retry_after=0.1), 30.0)
    pause.apply_ledger_pause(0.4)
    ends = asyncio.get_running_loop().time() + 10
    ending = await Attempt(provider, REQUEST, RetryPolicy(3, ends, timeout_seconds=0.3), pause).run()
    assert isinstance(ending.fault, TimedOut)
    first, second = provider.timeouts
    assert 0.25 < first <= 0.3  # all of it, although it waited for longer before
    assert 0.1 < second <= 0.2
