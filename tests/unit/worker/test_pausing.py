"""Targets whose provider asks for a long wait: nobody consumes them meanwhile, and no call of them is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from quintain.bus.base import Consumer, Handler
from quintain.bus.memory import MemoryBus
from quintain.contracts.invoke import InvokeRequest
from quintain.contracts.ledger import Heartbeat, Outcome
from quintain.errors import BrokerUnavailable, Throttled
from quintain.routes import REQUEST_ID_HEADER, TOKEN_HEADER
from quintain.topology import Queue, target_queue
from quintain_worker.port import Answer, Billing, Heard, ProviderFailure
from support.ledger_stand_in import Evaluator, LedgerStandIn, grant, soon, stand_in
from support.model_server import ModelServer, Script, model_server
from support.model_wires import CHAT
from support.quick import timings
from support.working import Gate, fault_for, result_for, working


class Throttling(Gate):
    """A gate that asks to come again after ``seconds``, so many times, before it says what it says."""

    def __init__(self, seconds: float, *, times: int = 1) -> None:
        super().__init__()
        self.seconds, self.times = seconds, times

    async def answer(self, request: InvokeRequest, *, timeout_seconds: float, heard: Heard | None = None) -> Answer:
        if self.times > 0:
            self.times -= 1
            self.asked.put_nowait(request)
            fault = Throttled("slow down", retry_after_ms=int(self.seconds * 1000))
            raise ProviderFailure(fault, Billing.UNBILLED, again=True, retry_after_seconds=self.seconds)
        return await super().answer(request, timeout_seconds=timeout_seconds)


@pytest.fixture
async def ledger() -> AsyncIterator[LedgerStandIn]:
    async with stand_in() as ledger:
        yield ledger


@pytest.fixture
async def evaluator(ledger: LedgerStandIn) -> Evaluator:
    evaluator = Evaluator(ledger.bus, "a")
    await evaluator.start()
    return evaluator


@pytest.fixture
async def server() -> AsyncIterator[ModelServer]:
    async with model_server() as server:
        yield server


#: A pause begins at 0.1 s, a call is held for 2 s at most, and a heartbeat comes every 0.05 s.
FAST = timings(shared_pause_seconds=0.1, held_call_seconds=2.0, heartbeat_seconds=0.05, consume_pause_seconds=0.01)


def waiting(ledger: LedgerStandIn, target: str = "a") -> list[str | None]:
    """The correlation ids in the target's queue."""
    return [stored.envelope.correlation_id for stored in ledger.memory.queue(target_queue(target).name).ready]


def consumed(ledger: LedgerStandIn, target: str = "a") -> int:
    """How many consume the target's queue."""
    return len(ledger.memory.queue(target_queue(target).name).takers)


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not true():
            await asyncio.sleep(0.005)


async def telling(ledger: LedgerStandIn) -> Heartbeat:
    """The next heartbeat that tells of a pause."""
    async with asyncio.timeout(5):
        while (beat := await ledger.heartbeats.get()).pauses is None:
            pass
    return beat


async def renewed(ledger: LedgerStandIn) -> None:
    """Wait until the worker has heard the ledger again, whatever it had heard before."""
    while not ledger.heartbeats.empty():
        ledger.heartbeats.get_nowait()
    for _ in range(3):
        await soon(ledger.heartbeats)


async def test_a_provider_that_asks_for_a_long_wait_is_left_alone_and_the_call_tries_again(
    ledger: LedgerStandIn, server: ModelServer, evaluator: Evaluator
) -> None:
    server.reply(Script(status=429, headers={"retry-after-ms": "2300"}, body={}), Script(body=CHAT.answer("Fine.")))
    async with working(ledger, CHAT.provider(server.url), most_tries=2):
        loop = asyncio.get_running_loop()
        await evaluator.ask("c1")
        async with asyncio.timeout(5):
            await server.arrived.wait()
        began = loop.time()
        beat = await telling(ledger)
        assert loop.time() - began < 1  # at once, and not with the next beat
        assert beat.pauses is not None
        assert 1800 < beat.pauses["a"] <= 2300
        await until(lambda: not consumed(ledger))
        await evaluator.ask("c2")
        await asyncio.sleep(1)
        assert waiting(ledger) == ["c2"]
        assert len(server.asked) == 1
        first = await result_for(evaluator)
        assert 2 < loop.time() - began < 3.5
        assert (first.raw_text, first.attempts) == ("Fine.", 2)
        assert (await result_for(evaluator)).raw_text == "Fine."
        admits = [await ledger.admits.get() for _ in range(2)]
        assert [admit.request_id for admit in admits] == ["r-c1", "r-c2"]  # it kept its attempt
        assert ledger.admits.empty()


@pytest.mark.parametrize("absurd", ["-5", "nan", "1e308", "9" * 400, "-1e308", "soon", "99999999999"])
@pytest.mark.parametrize("header", ["retry-after", "retry-after-ms"])
async def test_an_absurd_retry_after_breaks_nothing(
    ledger: LedgerStandIn, server: ModelServer, evaluator: Evaluator, absurd: str, header: str
) -> None:
    server.reply(Script(status=429, headers={header: absurd}, body={}))
    async with working(ledger, CHAT.provider(server.url)):
        await evaluator.ask()
        fault, settle = await fault_for(evaluator), await soon(ledger.settles)
        assert (fault.code, fault.charged, settle.outcome) == ("throttled", False, Outcome.REFUND)
        assert fault.retry_after_ms is None or 0 <= fault.retry_after_ms <= 24 * 3600 * 1000


async def test_every_worker_pauses_what_the_ledger_says_and_goes_on_by_the_ledgers_clock(
    ledger: LedgerStandIn, evaluator: Evaluator
) -> None:
    ledger.ahead_ms = 3_600_000
    ledger.judge = lambda ask: grant(ask, seconds=3660)
    first, second = Gate(), Gate()
    async with working(ledger, first, Gate(), timings=FAST), working(ledger, second, Gate(), timings=FAST):
        assert (consumed(ledger), consumed(ledger, "b")) == (2, 2)
        ledger.paused = {"a": ledger.now() + 700, "another": ledger.now() + 700}
        began = asyncio.get_running_loop().time()
        await until(lambda: not consumed(ledger))
        assert consumed(ledger, "b") == 2
        await evaluator.ask(seconds=3660)
        await asyncio.sleep(0.2)
        assert waiting(ledger) == ["c1"]
        assert (await result_for(evaluator)).raw_text == "yes"
        assert 0.5 < asyncio.get_running_loop().time() - began < 1.5
        await until(lambda: consumed(ledger) == 2)


async def test_a_pause_that_the_ledger_takes_back_is_over(ledger: LedgerStandIn) -> None:
    async with working(ledger, Gate(), timings=FAST):
        ledger.paused = {"a": ledger.now() + 60_000}
        await until(lambda: not consumed(ledger))
        ledger.paused = {}
        await until(lambda: consumed(ledger) == 1)


async def test_a_pause_that_a_provider_asked_for_is_over_when_the_ledger_knew_it_and_says_that_there_is_none(
    ledger: LedgerStandIn, evaluator: Evaluator
) -> None:
    async with working(ledger, Throttling(30), most_tries=3, timings=FAST):
        ledger.deaf_to.add("heartbeat")
        await evaluator.ask()
        await telling(ledger)
        ledger.deaf_to.clear()
        await until(lambda: "a" in ledger.paused and bool(waiting(ledger)))
        await renewed(ledger)
        assert (waiting(ledger), consumed(ledger)) == (["c1"], 0)
        ledger.paused = {}
        assert (await result_for(evaluator)).raw_text == "yes"


async def test_a_pause_that_the_ledger_has_not_heard_of_is_kept_whatever_it_says(
    ledger: LedgerStandIn, evaluator: Evaluator
) -> None:
    ledger.known = False
    async with working(ledger, Throttling(30), most_tries=3, timings=FAST):
        await evaluator.ask()
        await until(lambda: bool(waiting(ledger)))
        await renewed(ledger)
        assert (waiting(ledger), consumed(ledger), ledger.paused) == (["c1"], 0, {})


async def test_a_worker_that_starts_in_a_pause_hears_of_it_before_it_takes_anything(
    ledger: LedgerStandIn, evaluator: Evaluator
) -> None:
    gate = Gate()
    ledger.paused = {"a": ledger.now() + 60_000}
    await evaluator.ask()
    async with working(ledger, gate, timings=FAST):
        assert consumed(ledger) == 0
        ledger.paused = {}
        assert (await result_for(evaluator)).raw_text == "yes"


async def test_a_pause_is_told_until_the_ledger_has_heard_it(ledger: LedgerStandIn, evaluator: Evaluator) -> None:
    throttling = Throttling(1.0)
    ledger.deaf_to.add("heartbeat")
    async with working(ledger, throttling, timings=FAST):
        await evaluator.ask()
        told = [await telling(ledger) for _ in range(3)]
        lefts = [(beat.pauses or {})["a"] for beat in told]
        assert 1000 >= lefts[0] > lefts[1] > lefts[2]
        ledger.deaf_to.clear()
        ledger.known = False  # a ledger that knows no targets has not heard it either
        await telling(ledger)
        await telling(ledger)
        ledger.known = True
        await telling(ledger)
        while not ledger.heartbeats.empty():
            ledger.heartbeats.get_nowait()
        for _ in range(3):
            assert (await soon(ledger.heartbeats)).pauses is None
        assert consumed(ledger) == 0  # heard or not, its own provider's word holds


async def test_a_pause_longer_than_a_call_may_be_held_gives_the_call_back_and_nothing_spins(
    ledger: LedgerStandIn, evaluator: Evaluator
) -> None:
    throttling = Throttling(30)
    async with working(ledger, throttling, most_tries=3, timings=FAST):
        await evaluator.ask("c1", headers={"traceparent": "t"})
        settle = await soon(ledger.settles)
        assert (settle.outcome, settle.fault) == (Outcome.REFUND, None)
        await until(lambda: waiting(ledger) == ["c1"])
        await renewed(ledger)
        assert (ledger.admits.qsize(), ledger.settles.qsize(), throttling.asked.qsize()) == (1, 0, 1)
        assert evaluator.replies.empty()
        (copy,) = ledger.memory.queue(target_queue("a").name).ready
        assert (copy.headers["traceparent"], copy.headers[TOKEN_HEADER]) == ("t", evaluator.token)
        assert copy.returns == 0
        assert copy.envelope.expiration_ms is not None
        assert copy.envelope.expiration_ms <= 60_000
    ledger.paused = {}
    async with working(ledger, Gate(), timings=FAST):
        assert (await result_for(evaluator)).raw_text == "yes"


async def test_a_pause_that_outlasts_the_deadline_ends_the_call_as_throttled(
    ledger: LedgerStandIn, evaluator: Evaluator
) -> None:
    async with working(ledger, Throttling(90), most_tries=3, timings=FAST):
        await evaluator.ask("c1", seconds=60)
        fault, settle = await fault_for(evaluator), await soon(ledger.settles)
        assert (fault.code, fault.retryable, fault.retry_after_ms) == ("throttled", True, 90_000)
        assert settle.outcome is Outcome.REFUND
        assert waiting(ledger) == []


async def test_what_waits_for_admission_is_held_through_a_short_pause_and_given_back_in_a_long_one(
    ledger: LedgerStandIn, evaluator: Evaluator
) -> None:
    ledger.judge = lambda _: "held"
    neighbour = Evaluator(ledger.bus, "b")
    await neighbour.start()
    async with working(ledger, Gate(), Gate(), timings=FAST):
        for number in range(3):
            await evaluator.ask(f"c{number}")
        await neighbour.ask("n")
        admits = {admit.request_id: admit for admit in [await soon(ledger.admits) for _ in range(4)]}
        ledger.paused = {"a": ledger.now() + 1500}
        await until(lambda: not consumed(ledger))
        await renewed(ledger)
        assert ledger.settles.empty()
        await ledger.tell(grant(admits["r-c0"]))  # granted before the ledger knew of the pause: it waits all the same
        ledger.paused = {"a": ledger.now() + 30_000}
        settles = {settle.request_id: settle for settle in [await soon(ledger.settles) for _ in range(3)]}
        assert {(settle.request_id, settle.outcome, settle.fault) for settle in settles.values()} == {
            ("r-c0", Outcome.REFUND, None),
            ("r-c1", Outcome.NEVER_SENT, None),
            ("r-c2", Outcome.NEVER_SENT, None),
        }
        await until(lambda: sorted(str(each) for each in waiting(ledger)) == ["c0", "c1", "c2"])
        await ledger.tell(grant(admits["r-n"]))
        assert (await result_for(neighbour)).raw_text == "yes"
        assert evaluator.replies.empty()
        ledger.judge, ledger.paused = grant, {}
        assert [(await result_for(evaluator)).raw_text for _ in range(3)] == ["yes"] * 3


async def test_a_drain_waits_for_what_was_taken_before_a_pause_and_after_it(
    ledger: LedgerStandIn, evaluator: Evaluator
) -> None:
    gate = Gate()
    gate.open.clear()
    async with working(ledger, gate, timings=FAST) as (worker, _):
        for number in range(3):
            await evaluator.ask(f"c{number}")
            await soon(gate.asked)
            ledger.paused = {"a": ledger.now() + 60_000}
            await until(lambda: not consumed(ledger))
            ledger.paused = {}
            await until(lambda: consumed(ledger) == 1)
        stopping = asyncio.get_running_loop().create_task(worker.stop(grace_seconds=5))
        await until(lambda: not consumed(ledger))
        await evaluator.ask("late")
        assert not stopping.done()
        gate.open.set()
        await stopping
        assert {(await soon(evaluator.replies)).correlation_id for _ in range(3)} == {"c0", "c1", "c2"}
        assert [(await soon(ledger.settles)).outcome for _ in range(3)] == [Outcome.RESULT] * 3
    assert waiting(ledger) == ["late"]


async def test_a_drain_in_a_pause_gives_back_at_once_what_waits_for_its_end(
    ledger: LedgerStandIn, evaluator: Evaluator
) -> None:
    throttling = Throttling(1.9)
    loop = asyncio.get_running_loop()
    async with working(ledger, throttling, most_tries=3, timings=FAST) as (worker, _):
        await evaluator.ask()
        await telling(ledger)
        began = loop.time()
        await worker.stop(grace_seconds=5)
        assert loop.time() - began < 1
        assert (await soon(ledger.settles)).outcome is Outcome.REFUND
    assert waiting(ledger) == ["c1"]
    assert evaluator.replies.empty()


async def test_what_outlives_the_grace_on_a_consumer_of_before_is_delivered_again(
    ledger: LedgerStandIn, evaluator: Evaluator, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate()
    gate.open.clear()
    async with working(ledger, gate, timings=FAST) as (worker, _):
        await evaluator.ask()
        await soon(gate.asked)
        ledger.paused = {"a": ledger.now() + 60_000}
        await until(lambda: not consumed(ledger))
        await worker.stop(grace_seconds=0.05)
    assert waiting(ledger) == ["c1"]
    assert "outlived the grace" in caplog.text


async def test_a_row_of_pauses_does_not_heap_up_calls(ledger: LedgerStandIn, evaluator: Evaluator) -> None:
    gate = Gate()
    gate.open.clear()
    async with working(ledger, gate, at_once=2, timings=FAST):
        for number in range(9):
            await evaluator.ask(f"c{number}")
        for _ in range(4):
            ledger.paused = {"a": ledger.now() + 60_000}
            await until(lambda: not consumed(ledger))
            ledger.paused = {}
            await renewed(ledger)
        assert len(waiting(ledger)) == 5  # twice what it takes at once, and no more
        gate.open.set()
        assert [(await result_for(evaluator)).raw_text for _ in range(9)] == ["yes"] * 9


async def test_a_worker_with_its_hands_full_after_a_pause_takes_more_as_soon_as_they_are_free(
    ledger: LedgerStandIn, evaluator: Evaluator
) -> None:
    gate = Gate()
    gate.open.clear()
    async with working(ledger, gate, at_once=1) as (worker, _):
        for number in range(3):
            await evaluator.ask(f"c{number}")
        for _ in range(2):
            await soon(gate.asked)
            worker._intakes["a"].pause.hear(60)
            await until(lambda: not consumed(ledger))
            worker._intakes["a"].pause.hear(None)
        await asyncio.sleep(0.05)
        assert (waiting(ledger), consumed(ledger)) == (["c2"], 0)
        gate.open.set()
        async with asyncio.timeout(1):  # and not with the next heartbeat
            for _ in range(3):
                await result_for(evaluator)


async def test_what_comes_in_a_long_pause_is_given_back_without_a_word_to_the_admission_desk(
    ledger: LedgerStandIn, evaluator: Evaluator
) -> None:
    throttling = Throttling(30)
    throttling.open.clear()
    answer = throttling.answer

    async def when_let(request: InvokeRequest, *, timeout_seconds: float, heard: Heard | None = None) -> Answer:
        await throttling.open.wait()
        return await answer(request, timeout_seconds=timeout_seconds)

    throttling.answer = when_let  # type: ignore[method-assign]
    async with working(ledger, throttling, most_tries=3, timings=FAST):
        same = {REQUEST_ID_HEADER: "r"}
        await evaluator.ask("c0", headers=same)
        await soon(ledger.admits)
        await evaluator.ask("c1", headers=same)  # it joins, and is let go when the call it joined is given back
        await until(lambda: not waiting(ledger))
        throttling.open.set()
        assert [(await soon(ledger.settles)).outcome for _ in range(2)] == [Outcome.REFUND, Outcome.NEVER_SENT]
        await until(lambda: sorted(str(each) for each in waiting(ledger)) == ["c0", "c1"])
        assert ledger.admits.empty()


async def test_a_consumer_that_cannot_begin_again_is_tried_again(
    ledger: LedgerStandIn, evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    refusals = iter([True, True])
    consume: Callable[..., Awaitable[Consumer]] = MemoryBus.consume

    async def refused(bus: MemoryBus, queue: Queue, handler: Handler, **more: object) -> Consumer:
        if next(refusals, False):
            raise BrokerUnavailable("not now")
        return await consume(bus, queue, handler, **more)

    async with working(ledger, Gate(), timings=FAST):
        ledger.paused = {"a": ledger.now() + 60_000}
        await until(lambda: not consumed(ledger))
        monkeypatch.setattr(MemoryBus, "consume", refused)
        ledger.paused = {}
        await evaluator.ask()
        assert (await result_for(evaluator)).raw_text == "yes"
    assert caplog.text.count("Target a does not go on yet: not now") == 2
