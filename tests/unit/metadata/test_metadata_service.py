"""The metadata service at the ledger's exchange: nothing it hears stops it, and nothing it hears is lost."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator

import pytest

from quintain.bus.base import Delivery, Envelope
from quintain.contracts.invoke import FaultReply, TokenUsage
from quintain.contracts.ledger import Admission, Admit, AdmitAnswer, AdmitBatch, LeaseRenewed, Settle, SettleBatch
from quintain.contracts.metadata import SessionOpened
from quintain.topology import LEDGER, target_queue
from quintain_metadata.sqlite import SqliteLedger
from support.books import asked, settled
from support.metadata_alone import MetadataAlone, heard, metadata_alone
from support.quick import timings


@pytest.fixture
async def alone(request: pytest.FixtureRequest) -> AsyncIterator[MetadataAlone]:
    """A service that sweeps fifty times a second, unless a test names its own timings."""
    quick = timings(sweep_seconds=0.02, ledger_quiet_seconds=0.05)
    async with metadata_alone(getattr(request, "param", quick)) as alone:
        for worker in ("w1", "w2"):
            await alone.books.register("a", incarnation=worker)
        yield alone


@pytest.fixture
async def session(alone: MetadataAlone) -> SessionOpened:
    return await alone.books.open(max_calls=5)


class Worker:
    """What a worker would publish and hear."""

    def __init__(self, alone: MetadataAlone) -> None:
        self.alone = alone
        self.replies: asyncio.Queue[Delivery] = asyncio.Queue()
        alone.caller.subscribe("admit", self.replies.put_nowait)

    async def admit(self, *asks: Admit, incarnation: str = "w1", body: bytes | None = None) -> None:
        batch = AdmitBatch(incarnation=incarnation, items=list(asks)).to_wire()
        await self.say("admit", batch if body is None else body)

    async def settle(self, *items: Settle) -> None:
        await self.say("settle", SettleBatch(incarnation="w1", items=list(items)).to_wire())

    async def say(self, key: str, body: bytes) -> None:
        envelope = Envelope(body=body, type=key, correlation_id="admit", reply_to=self.alone.caller.reply_key)
        await self.alone.bus.publish(LEDGER, key, envelope)

    async def answer(self) -> AdmitAnswer:
        reply = await heard(self.replies)
        assert reply.type == "result", reply.body
        return AdmitAnswer.from_wire(reply.body)

    async def granted(self, ask: Admit) -> Admission:
        await self.admit(ask)
        (item,) = (await self.answer()).items
        assert item.fault is None
        return item


@pytest.fixture
def worker(alone: MetadataAlone) -> Worker:
    return Worker(alone)


async def counted(alone: MetadataAlone, session: SessionOpened, **counters: int) -> None:
    """Until the session's counters are these."""
    async with asyncio.timeout(5):
        while True:
            info = await alone.books.info(session)
            if {name: getattr(info, name) for name in counters} == counters:
                return
            await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def cursed(alone: MetadataAlone, request_id: str) -> AsyncIterator[None]:
    """While inside, the store refuses every change to a call of this name."""
    assert isinstance(alone.books.ledger, SqliteLedger)
    connection = alone.books.ledger._connection
    connection.execute(
        "CREATE TRIGGER curse BEFORE UPDATE ON call WHEN old.request_id = "
        f"'{request_id}' BEGIN SELECT RAISE(ABORT, 'cursed'); END"
    )
    yield
    connection.execute("DROP TRIGGER curse")


async def test_a_held_admit_is_answered_when_the_call_is_settled(
    alone: MetadataAlone, session: SessionOpened, worker: Worker
) -> None:
    first, second = asked(session, "r1"), asked(session, "r1")
    await worker.admit(first, second)
    answer = await worker.answer()
    assert [item.attempt_id for item in answer.items] == [first.attempt_id]
    assert answer.held == [second.attempt_id]
    await worker.settle(settled(session, first))
    (told,) = (await worker.answer()).items
    assert told.attempt_id == second.attempt_id
    assert told.replay is not None
    assert told.replay.raw_text == "yes"


async def test_a_settle_the_ledger_can_never_take_loses_none_of_its_batch_and_does_not_come_again(
    alone: MetadataAlone, session: SessionOpened, worker: Worker, caplog: pytest.LogCaptureFixture
) -> None:
    bad, good = asked(session, "bad"), asked(session, "good")
    for ask in (bad, good):
        await worker.granted(ask)
    async with cursed(alone, "bad"):
        await worker.settle(settled(session, bad), settled(session, good))
        await counted(alone, session, committed=1, running=1)
        await worker.granted(asked(session, "another"))  # it goes on
    assert caplog.text.count("A defect while settling call 'bad'") == 1


async def test_a_count_of_tokens_that_cannot_be_true_does_not_stop_a_settle(
    alone: MetadataAlone, session: SessionOpened, worker: Worker
) -> None:
    ask = asked(session, "r1")
    await worker.granted(ask)
    usage = TokenUsage(input=10**30, output=-5, cached=7)
    await worker.settle(settled(session, ask).model_copy(update={"token_usage": usage}))
    await counted(alone, session, committed=1)
    told = (await alone.books.info(session)).token_usage
    assert (told.output, told.cached) == (0, 7)
    assert 0 < told.input < 2**53


async def test_a_settle_waits_for_a_ledger_that_is_out_of_reach(
    alone: MetadataAlone, session: SessionOpened, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = asked(session, "r1")
    await worker.granted(ask)
    with monkeypatch.context() as away:
        away.setattr(alone.books.ledger, "_closed", True)
        await worker.settle(settled(session, ask))
        await asyncio.sleep(0.05)
    await counted(alone, session, committed=1, running=0)


async def test_the_same_settle_twice_counts_once(alone: MetadataAlone, session: SessionOpened, worker: Worker) -> None:
    ask = asked(session, "r1")
    await worker.granted(ask)
    for _ in range(2):
        await worker.settle(settled(session, ask))
    await worker.granted(asked(session, "r2"))
    await counted(alone, session, committed=1, running=1, call_count=2)


async def test_what_nobody_can_read_is_answered_or_dropped_and_the_next_is_heard(
    alone: MetadataAlone, session: SessionOpened, worker: Worker, caplog: pytest.LogCaptureFixture
) -> None:
    await worker.say("settle", b"junk")
    for key in ("admit", "heartbeat", "register"):
        await worker.say(key, b"junk")
        reply = await heard(worker.replies)
        assert FaultReply.from_wire(reply.body).code == "bad_request"
    await worker.granted(asked(session, "r1"))
    assert "A settle nobody can read is dropped" in caplog.text


async def test_a_registered_targets_queue_is_there_before_the_worker_hears_so(
    alone: MetadataAlone, worker: Worker
) -> None:
    card = b'{"name": "new", "provider": "mock", "maxConcurrency": 1}'
    await worker.say("register", b'{"workerId": "w", "incarnation": "w9", "targets": [%s]}' % card)
    assert (await heard(worker.replies)).type == "result"
    assert alone.memory.queue(target_queue("new").name).spec == target_queue("new")


async def test_the_sweep_ends_what_time_has_ended_and_outlives_a_defect(
    alone: MetadataAlone, session: SessionOpened, caplog: pytest.LogCaptureFixture
) -> None:
    async with cursed(alone, "r1"):
        body = {"requestIds": ["r1"], "deadline": await alone.books.ledger.now() + 20}
        await alone.operate("reserve", session.token, body)
        async with asyncio.timeout(5):
            while "A defect while sweeping" not in caplog.text:
                await asyncio.sleep(0.01)
        assert (await alone.books.info(session)).reserved == 1
    await counted(alone, session, reserved=0, call_count=0)


# The sweep does not come first.
@pytest.mark.parametrize("alone", [timings(sweep_seconds=60, gap_seconds=0.05)], indirect=True)
async def test_after_a_gap_of_its_own_the_first_to_ask_finds_nobody_gone(
    session: SessionOpened, alone: MetadataAlone, worker: Worker
) -> None:
    await worker.granted(asked(session, "r1"))
    alone.books.ledger.mourn_from(0)
    await alone.books.lapse("w1")
    await asyncio.sleep(0.06)
    second = asked(session, "r1")
    await worker.admit(second, incarnation="w2")
    assert (await worker.answer()).held == [second.attempt_id]


async def test_a_heartbeat_pauses_its_targets_for_everybody(
    alone: MetadataAlone, session: SessionOpened, worker: Worker
) -> None:
    await worker.say("heartbeat", b'{"workerId": "w1", "incarnation": "w1", "pauses": {"a": 60000}}')
    renewed = LeaseRenewed.from_wire((await heard(worker.replies)).body)
    assert renewed.paused is not None
    assert 50_000 < renewed.paused["a"] - renewed.now <= 60_000
    held = asked(session, "r1")
    await worker.admit(held, incarnation="w2")
    assert (await worker.answer()).held == [held.attempt_id]


# The sweep does not come first.
@pytest.mark.parametrize("alone", [timings(sweep_seconds=60)], indirect=True)
async def test_a_held_admit_hears_at_once_that_its_call_is_cancelled(
    session: SessionOpened, alone: MetadataAlone, worker: Worker
) -> None:
    await alone.books.pause("a", 60_000)
    waiting = asked(session, "r1")
    await worker.admit(waiting)
    assert (await worker.answer()).held == [waiting.attempt_id]
    assert await alone.operate("cancel", session.token, {"requestIds": ["r1"]}) == {"cancelled": 1}
    (told,) = (await worker.answer()).items
    assert told.fault is not None
    assert (told.fault.code, told.fault.charged) == ("cancelled", False)


async def test_an_outage_is_said_once_when_it_begins_and_once_when_it_is_over(
    alone: MetadataAlone,
    session: SessionOpened,
    worker: Worker,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    ask = asked(session, "r1")
    await worker.granted(ask)
    with monkeypatch.context() as away:
        away.setattr(alone.books.ledger, "_closed", True)
        await worker.settle(settled(session, ask))
        await worker.admit(asked(session, "r2"))
        await asyncio.sleep(0.1)  # several sweeps
    async with asyncio.timeout(5):
        while "The ledger answers again" not in caplog.text:
            await asyncio.sleep(0.01)
    await counted(alone, session, committed=1)
    said = [record.message for record in caplog.records if "ledger" in record.message.lower()]
    assert said == [
        "The ledger is out of reach, and everything waits for it: The ledger is closed",
        "The ledger answers again",
    ]
