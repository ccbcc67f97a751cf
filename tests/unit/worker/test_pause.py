"""Targets whose provider asks for a long wait: nobody consumes them meanwhile, and no call of them is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from quintain.bus.base import Consumer, Handler
from quintain.bus.memory import MemoryBus
from quintain.contracts.headers import REQUEST_ID_HEADER, TOKEN_HEADER
from quintain.contracts.invoke import InvokeRequest
from quintain.contracts.ledger import AttemptOutcome, Heartbeat
from quintain.errors import BrokerUnavailable, Throttled
from quintain.topology import Queue, target_queue
from quintain_worker.providers.provider import Billing, OnText, ProviderAnswer, ProviderFailure
from support.fake_ledger_service import FakeEvaluator, FakeLedgerService, grant, next_item
from support.quick import timings
from support.running_worker import GatedProvider, next_result, running_worker
from support.waiting import wait_until


class ThrottlingProvider(GatedProvider):
    """A gate that asks to come again after ``seconds``, so many times, before it says what it says."""

    def __init__(self, seconds: float, *, times: int = 1) -> None:
        super().__init__()
        self.seconds, self.times = seconds, times

    async def answer(
        self, request: InvokeRequest, *, timeout_seconds: float, on_text: OnText | None = None
    ) -> ProviderAnswer:
        if self.times > 0:
            self.times -= 1
            self.requests.put_nowait(request)
            fault = Throttled("slow down", retry_after_ms=int(self.seconds * 1000))
            raise ProviderFailure(fault, Billing.UNBILLED, retryable=True, retry_after_seconds=self.seconds)
        return await super().answer(request, timeout_seconds=timeout_seconds)


#: A pause begins at 0.1 s, a call is held for 2 s at most, and a heartbeat comes every 0.05 s.
FAST = timings(shared_pause_seconds=0.1, held_call_seconds=2.0, heartbeat_seconds=0.05, consume_pause_seconds=0.01)


def queued_correlation_ids(ledger: FakeLedgerService, target: str = "a") -> list[str | None]:
    """The correlation ids in the target's queue."""
    return [stored.envelope.correlation_id for stored in ledger.memory.queue(target_queue(target).name).ready]


def consumer_count(ledger: FakeLedgerService, target: str = "a") -> int:
    """How many consume the target's queue."""
    return len(ledger.memory.queue(target_queue(target).name).consumers)


async def next_pause_heartbeat(ledger: FakeLedgerService) -> Heartbeat:
    """The next heartbeat that tells of a pause."""
    async with asyncio.timeout(5):
        while (beat := await ledger.heartbeats.get()).pauses is None:
            pass
    return beat


async def wait_for_renewal(ledger: FakeLedgerService) -> None:
    """Wait until the worker has heard the ledger again, whatever it had heard before."""
    while not ledger.heartbeats.empty():
        ledger.heartbeats.get_nowait()
    for _ in range(3):
        await next_item(ledger.heartbeats)


async def test_a_provider_that_asks_for_a_long_wait_is_left_alone_and_the_call_tries_again(
    ledger: FakeLedgerService, evaluator: FakeEvaluator
) -> None:
    throttling = ThrottlingProvider(1.0)
    async with running_worker(ledger, throttling, max_tries=2, timings=FAST):
        await evaluator.send_request("c1")
        beat = await next_pause_heartbeat(ledger)
        assert beat.pauses is not None
        assert 0 < beat.pauses["a"] <= 1000
        await wait_until(lambda: not consumer_count(ledger))
        await evaluator.send_request("c2")
        await wait_for_renewal(ledger)
        assert (queued_correlation_ids(ledger), throttling.requests.qsize()) == (["c2"], 1)
        # Both begin when the pause ends, and either may be answered first.
        results = [await next_result(evaluator) for _ in range(2)]
        assert sorted(one.attempts for one in results) == [1, 2]
        admits = [await ledger.admits.get() for _ in range(2)]
        assert [admit.request_id for admit in admits] == ["r-c1", "r-c2"]  # it kept its attempt
        assert ledger.admits.empty()


async def test_a_pause_that_a_provider_asked_for_is_over_when_the_ledger_knew_it_and_says_that_there_is_none(
    ledger: FakeLedgerService, evaluator: FakeEvaluator
) -> None:
    async with running_worker(ledger, ThrottlingProvider(30), max_tries=3, timings=FAST):
        ledger.unanswered.add("heartbeat")
        await evaluator.send_request()
        await next_pause_heartbeat(ledger)
        ledger.unanswered.clear()
        await wait_until(lambda: "a" in ledger.paused and bool(queued_correlation_ids(ledger)))
        await wait_for_renewal(ledger)
        assert (queued_correlation_ids(ledger), consumer_count(ledger)) == (["c1"], 0)
        ledger.paused = {}
        assert (await next_result(evaluator)).raw_text == "yes"


async def test_a_pause_that_the_ledger_has_not_heard_of_is_kept_whatever_it_says(
    ledger: FakeLedgerService, evaluator: FakeEvaluator
) -> None:
    ledger.known = False
    async with running_worker(ledger, ThrottlingProvider(30), max_tries=3, timings=FAST):
        await evaluator.send_request()
        await wait_until(lambda: bool(queued_correlation_ids(ledger)))
        await wait_for_renewal(ledger)
        assert (queued_correlation_ids(ledger), consumer_count(ledger), ledger.paused) == (["c1"], 0, {})


async def test_a_worker_that_starts_in_a_pause_hears_of_it_before_it_takes_anything(
    ledger: FakeLedgerService, evaluator: FakeEvaluator
) -> None:
    gate = GatedProvider()
    ledger.paused = {"a": ledger.now() + 60_000}
    await evaluator.send_request()
    async with running_worker(ledger, gate, timings=FAST):
        assert consumer_count(ledger) == 0
        ledger.paused = {}
        assert (await next_result(evaluator)).raw_text == "yes"


async def test_a_pause_is_told_until_the_ledger_has_heard_it(
    ledger: FakeLedgerService, evaluator: FakeEvaluator
) -> None:
    throttling = ThrottlingProvider(1.0)
    ledger.unanswered.add("heartbeat")
    async with running_worker(ledger, throttling, timings=FAST):
        await evaluator.send_request()
        told = [await next_pause_heartbeat(ledger) for _ in range(3)]
        lefts = [(beat.pauses or {})["a"] for beat in told]
        assert 1000 >= lefts[0] > lefts[1] > lefts[2]
        ledger.unanswered.clear()
        ledger.known = False  # a ledger that knows no targets has not heard it either
        await next_pause_heartbeat(ledger)
        await next_pause_heartbeat(ledger)
        ledger.known = True
        await next_pause_heartbeat(ledger)
        while not ledger.heartbeats.empty():
            ledger.heartbeats.get_nowait()
        for _ in range(3):
            assert (await next_item(ledger.heartbeats)).pauses is None
        assert consumer_count(ledger) == 0  # heard or not, its own provider's word holds


async def test_a_pause_longer_than_a_call_may_be_held_gives_the_call_back_and_nothing_spins(
    ledger: FakeLedgerService, evaluator: FakeEvaluator
) -> None:
    throttling = ThrottlingProvider(30)
    async with running_worker(ledger, throttling, max_tries=3, timings=FAST):
        await evaluator.send_request("c1", headers={"traceparent": "t"})
        settle = await next_item(ledger.settles)
        assert (settle.outcome, settle.fault) == (AttemptOutcome.REFUND, None)
        await wait_until(lambda: queued_correlation_ids(ledger) == ["c1"])
        await wait_for_renewal(ledger)
        assert (ledger.admits.qsize(), ledger.settles.qsize(), throttling.requests.qsize()) == (1, 0, 1)
        assert evaluator.replies.empty()
        (copy,) = ledger.memory.queue(target_queue("a").name).ready
        assert (copy.headers["traceparent"], copy.headers[TOKEN_HEADER]) == ("t", evaluator.token)
        assert copy.return_count == 0
        assert copy.envelope.expiration_ms is not None
        assert copy.envelope.expiration_ms <= 60_000
    ledger.paused = {}
    async with running_worker(ledger, GatedProvider(), timings=FAST):
        assert (await next_result(evaluator)).raw_text == "yes"


async def test_what_waits_for_admission_is_held_through_a_short_pause_and_given_back_in_a_long_one(
    ledger: FakeLedgerService, evaluator: FakeEvaluator
) -> None:
    ledger.admit_policy = lambda _: "held"
    neighbour = FakeEvaluator(ledger.bus, "b")
    await neighbour.start()
    async with running_worker(ledger, GatedProvider(), GatedProvider(), timings=FAST):
        for number in range(3):
            await evaluator.send_request(f"c{number}")
        await neighbour.send_request("n")
        admits = {admit.request_id: admit for admit in [await next_item(ledger.admits) for _ in range(4)]}
        ledger.paused = {"a": ledger.now() + 1500}
        await wait_until(lambda: not consumer_count(ledger))
        await wait_for_renewal(ledger)
        assert ledger.settles.empty()
        await ledger.answer_last_admit(
            grant(admits["r-c0"])
        )  # granted before the ledger knew of the pause: it waits all the same
        ledger.paused = {"a": ledger.now() + 30_000}
        settles = {settle.request_id: settle for settle in [await next_item(ledger.settles) for _ in range(3)]}
        assert {(settle.request_id, settle.outcome, settle.fault) for settle in settles.values()} == {
            ("r-c0", AttemptOutcome.REFUND, None),
            ("r-c1", AttemptOutcome.NEVER_SENT, None),
            ("r-c2", AttemptOutcome.NEVER_SENT, None),
        }
        await wait_until(lambda: sorted(str(each) for each in queued_correlation_ids(ledger)) == ["c0", "c1", "c2"])
        await ledger.answer_last_admit(grant(admits["r-n"]))
        assert (await next_result(neighbour)).raw_text == "yes"
        assert evaluator.replies.empty()
        ledger.admit_policy, ledger.paused = grant, {}
        assert [(await next_result(evaluator)).raw_text for _ in range(3)] == ["yes"] * 3


async def test_a_drain_waits_for_what_was_taken_before_a_pause_and_after_it(
    ledger: FakeLedgerService, evaluator: FakeEvaluator, closed_gate: GatedProvider
) -> None:
    async with running_worker(ledger, closed_gate, timings=FAST) as (worker, _):
        for number in range(3):
            await evaluator.send_request(f"c{number}")
            await next_item(closed_gate.requests)
            ledger.paused = {"a": ledger.now() + 60_000}
            await wait_until(lambda: not consumer_count(ledger))
            ledger.paused = {}
            await wait_until(lambda: consumer_count(ledger) == 1)
        stopping = asyncio.get_running_loop().create_task(worker.stop(grace_seconds=5))
        await wait_until(lambda: not consumer_count(ledger))
        await evaluator.send_request("late")
        assert not stopping.done()
        closed_gate.open.set()
        await stopping
        assert {(await next_item(evaluator.replies)).correlation_id for _ in range(3)} == {"c0", "c1", "c2"}
        assert [(await next_item(ledger.settles)).outcome for _ in range(3)] == [AttemptOutcome.RESULT] * 3
    assert queued_correlation_ids(ledger) == ["late"]


async def test_a_drain_in_a_pause_gives_back_at_once_what_waits_for_its_end(
    ledger: FakeLedgerService, evaluator: FakeEvaluator
) -> None:
    throttling = ThrottlingProvider(1.9)
    loop = asyncio.get_running_loop()
    async with running_worker(ledger, throttling, max_tries=3, timings=FAST) as (worker, _):
        await evaluator.send_request()
        await next_pause_heartbeat(ledger)
        began = loop.time()
        await worker.stop(grace_seconds=5)
        assert loop.time() - began < 1
        assert (await next_item(ledger.settles)).outcome is AttemptOutcome.REFUND
    assert queued_correlation_ids(ledger) == ["c1"]
    assert evaluator.replies.empty()


async def test_what_outlives_the_grace_on_a_consumer_of_before_is_delivered_again(
    ledger: FakeLedgerService, evaluator: FakeEvaluator, caplog: pytest.LogCaptureFixture, closed_gate: GatedProvider
) -> None:
    async with running_worker(ledger, closed_gate, timings=FAST) as (worker, _):
        await evaluator.send_request()
        await next_item(closed_gate.requests)
        ledger.paused = {"a": ledger.now() + 60_000}
        await wait_until(lambda: not consumer_count(ledger))
        await worker.stop(grace_seconds=0.05)
    assert queued_correlation_ids(ledger) == ["c1"]
    assert "A call did not end within" in caplog.text


async def test_a_row_of_pauses_does_not_heap_up_calls(
    ledger: FakeLedgerService, evaluator: FakeEvaluator, closed_gate: GatedProvider
) -> None:
    async with running_worker(ledger, closed_gate, max_concurrency=2, timings=FAST):
        for number in range(9):
            await evaluator.send_request(f"c{number}")
        for _ in range(4):
            ledger.paused = {"a": ledger.now() + 60_000}
            await wait_until(lambda: not consumer_count(ledger))
            ledger.paused = {}
            await wait_for_renewal(ledger)
        assert len(queued_correlation_ids(ledger)) == 5  # twice what it takes at once, and no more
        closed_gate.open.set()
        assert [(await next_result(evaluator)).raw_text for _ in range(9)] == ["yes"] * 9


async def test_a_worker_with_its_hands_full_after_a_pause_takes_more_as_soon_as_they_are_free(
    ledger: FakeLedgerService, evaluator: FakeEvaluator, closed_gate: GatedProvider
) -> None:
    async with running_worker(ledger, closed_gate, max_concurrency=1) as (worker, _):
        for number in range(3):
            await evaluator.send_request(f"c{number}")
        for _ in range(2):
            await next_item(closed_gate.requests)
            worker._consumers["a"].pause.apply_ledger_pause(60)
            await wait_until(lambda: not consumer_count(ledger))
            worker._consumers["a"].pause.apply_ledger_pause(None)
        await asyncio.sleep(0.05)
        assert (queued_correlation_ids(ledger), consumer_count(ledger)) == (["c2"], 0)
        closed_gate.open.set()
        async with asyncio.timeout(1):  # and not with the next heartbeat
            for _ in range(3):
                await next_result(evaluator)


async def test_a_call_delivered_in_a_long_pause_is_requeued_without_an_admit(
    ledger: FakeLedgerService, evaluator: FakeEvaluator
) -> None:
    throttling = ThrottlingProvider(30)
    throttling.open.clear()
    answer = throttling.answer

    async def when_let(
        request: InvokeRequest, *, timeout_seconds: float, on_text: OnText | None = None
    ) -> ProviderAnswer:
        await throttling.open.wait()
        return await answer(request, timeout_seconds=timeout_seconds)

    throttling.answer = when_let  # type: ignore[method-assign]
    async with running_worker(ledger, throttling, max_tries=3, timings=FAST):
        same = {REQUEST_ID_HEADER: "r"}
        await evaluator.send_request("c0", headers=same)
        await next_item(ledger.admits)
        await evaluator.send_request(
            "c1", headers=same
        )  # it joins, and is let go when the call it joined is given back
        await wait_until(lambda: not queued_correlation_ids(ledger))
        throttling.open.set()
        assert [(await next_item(ledger.settles)).outcome for _ in range(2)] == [
            AttemptOutcome.REFUND,
            AttemptOutcome.NEVER_SENT,
        ]
        await wait_until(lambda: sorted(str(each) for each in queued_correlation_ids(ledger)) == ["c0", "c1"])
        assert ledger.admits.empty()


async def test_a_consumer_that_cannot_begin_again_is_tried_again(
    ledger: FakeLedgerService,
    evaluator: FakeEvaluator,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    refusals = iter([True, True])
    consume: Callable[..., Awaitable[Consumer]] = MemoryBus.consume

    async def refused(bus: MemoryBus, queue: Queue, handler: Handler, **more: object) -> Consumer:
        if next(refusals, False):
            raise BrokerUnavailable("not now")
        return await consume(bus, queue, handler, **more)

    async with running_worker(ledger, GatedProvider(), timings=FAST):
        ledger.paused = {"a": ledger.now() + 60_000}
        await wait_until(lambda: not consumer_count(ledger))
        monkeypatch.setattr(MemoryBus, "consume", refused)
        ledger.paused = {}
        await evaluator.send_request()
        assert (await next_result(evaluator)).raw_text == "yes"
    assert caplog.text.count("Target a is not resumed: not now") == 1
    assert caplog.text.count("Target a is resumed after") == 1
