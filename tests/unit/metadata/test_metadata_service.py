"""The metadata service at the ledger's exchange: nothing it hears stops it, and nothing it hears is lost."""

from __future__ import annotations

import asyncio
import contextlib
import json
import zlib
from collections.abc import AsyncIterator

import pytest

from quintain.bus.base import Delivery, Envelope
from quintain.contracts.headers import PROTOCOL_VERSION
from quintain.contracts.invoke import FaultReply, TokenUsage
from quintain.contracts.ledger import (
    Admission,
    Admit,
    AdmitBatch,
    AdmitReply,
    Heartbeat,
    LeaseRenewed,
    Register,
    Settle,
    SettleBatch,
    TargetCard,
)
from quintain.contracts.message import LARGE_REPLY_BYTES
from quintain.contracts.session import SessionOpened
from quintain.errors import ForbiddenTarget, Unroutable
from quintain.routes import HEARTBEAT, REGISTER
from quintain.rpc.requests import RpcClient
from quintain.topology import LEDGER, target_queue
from quintain_metadata.store.sqlite import SqliteLedger
from support.ledger_driver import admit_request, result, settle_request
from support.metadata_service import ADMIN_TOKEN, Metadata, next_delivery, run_metadata_service
from support.quick import timings
from support.waiting import wait_until


@pytest.fixture
async def metadata(request: pytest.FixtureRequest) -> AsyncIterator[Metadata]:
    """A service that sweeps fifty times a second, unless a test names its own timings."""
    quick = timings(sweep_seconds=0.02, ledger_quiet_seconds=0.05)
    async with run_metadata_service(getattr(request, "param", quick)) as alone:
        for worker in ("w1", "w2"):
            await alone.driver.register(worker)
        yield alone


class Worker:
    """What a worker would publish and hear."""

    def __init__(self, metadata: Metadata) -> None:
        self.metadata = metadata
        self.replies: asyncio.Queue[Delivery] = asyncio.Queue()
        metadata.rpc_client.subscribe("admit", self.replies.put_nowait)

    async def admit(self, *requests: Admit, incarnation: str = "w1", body: bytes | None = None) -> None:
        batch = AdmitBatch(incarnation=incarnation, items=list(requests)).to_wire()
        await self.publish("admit", batch if body is None else body)

    async def settle(self, *items: Settle) -> None:
        await self.publish("settle", SettleBatch(incarnation="w1", items=list(items)).to_wire())

    async def publish(self, key: str, body: bytes, *, names_user: bool = True) -> None:
        reply_to = self.metadata.rpc_client.reply_key
        envelope = Envelope(body=body, type=key, correlation_id="admit", reply_to=reply_to, names_user=names_user)
        await self.metadata.bus.publish(LEDGER, key, envelope)

    async def next_reply(self) -> AdmitReply:
        reply = await next_delivery(self.replies)
        assert reply.type == "result", reply.body
        return AdmitReply.from_wire(reply.body)

    async def admit_granted(self, request: Admit) -> Admission:
        await self.admit(request)
        (item,) = (await self.next_reply()).items
        assert item.fault is None
        return item


@pytest.fixture
def worker(metadata: Metadata) -> Worker:
    return Worker(metadata)


async def wait_for_counters(metadata: Metadata, session: SessionOpened, **counters: int) -> None:
    """Until the session's counters are these."""
    async with asyncio.timeout(5):
        while True:
            info = await metadata.driver.info(session)
            if {name: getattr(info, name) for name in counters} == counters:
                return
            await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def failing_updates(metadata: Metadata, request_id: str) -> AsyncIterator[None]:
    """While inside, the store refuses every change to a call of this name."""
    assert isinstance(metadata.driver.ledger, SqliteLedger)
    connection = metadata.driver.ledger._connection
    connection.execute(
        "CREATE TRIGGER curse BEFORE UPDATE ON call WHEN old.request_id = "
        f"'{request_id}' BEGIN SELECT RAISE(ABORT, 'cursed'); END"
    )
    yield
    connection.execute("DROP TRIGGER curse")


@pytest.mark.parametrize(
    "change", [{"redelivered": "often"}, {"deadline": "soon"}, {"target": ""}, {"requestId": ""}, {"attemptId": 7}]
)
async def test_an_item_that_cannot_be_read_harms_no_other_of_its_batch(
    metadata: Metadata, session: SessionOpened, worker: Worker, change: dict[str, object]
) -> None:
    bad, good = admit_request(session, "bad"), admit_request(session, "good")
    broken = json.dumps({**json.loads(bad.to_wire()), **change}).encode()
    await worker.publish("admit", b'{"incarnation":"w1","items":[%s,7,%s]}' % (broken, good.to_wire()))
    told = list[Admission]()
    while len(told) < 1 + ("attemptId" not in change):
        told += (await worker.next_reply()).items
    codes = {item.attempt_id: item.fault and item.fault.code for item in told}
    refused = {} if "attemptId" in change else {bad.attempt_id: "bad_request"}
    assert codes == {**refused, good.attempt_id: None}
    settle = settle_request(session, good).to_wire()
    unread = json.dumps({**json.loads(settle), "outcome": "lucky"}).encode()
    await worker.publish("settle", b'{"incarnation":"w1","items":[%s,%s]}' % (unread, settle))
    await wait_for_counters(metadata, session, committed=1, running=0)


def large_settle(session: SessionOpened, admit: Admit) -> bytes:
    """What a worker says of a large result: the reply is compressed."""
    text = admit.request_id * LARGE_REPLY_BYTES
    compressed = zlib.compress(result(text).to_wire())
    return settle_request(session, admit).with_fields(reply=None, compressed_reply=compressed).to_wire()


async def test_large_replays_are_sent_one_by_one_and_once_however_often_they_are_asked_for(
    metadata: Metadata, session: SessionOpened, worker: Worker
) -> None:
    first = [admit_request(session, name) for name in ("r1", "r2", "small")]
    for each in first:
        await worker.admit_granted(each)
    settles = [*(large_settle(session, each) for each in first[:2]), settle_request(session, first[2]).to_wire()]
    await worker.publish("settle", b'{"incarnation":"w1","items":[%s]}' % b",".join(settles))
    await wait_for_counters(metadata, session, committed=3)
    again = [admit_request(session, each.request_id) for each in first]
    async with metadata.service._admits._large_replays.lock:
        for _ in range(2):  # as workers repeat what is not answered
            await worker.admit(*again)
            assert [item.attempt_id for item in (await worker.next_reply()).items] == [again[2].attempt_id]
    for each in again[:2]:
        (item,) = (await worker.next_reply()).items
        assert item.attempt_id == each.attempt_id
        assert item.replay is not None
        assert (item.replay.raw_text, item.replay.replayed) == (each.request_id * LARGE_REPLY_BYTES, True)
    await worker.admit(again[2])
    assert len((await worker.next_reply()).items) == 1
    assert worker.replies.empty()


async def test_a_settle_the_ledger_can_never_take_loses_none_of_its_batch_and_does_not_come_again(
    metadata: Metadata, session: SessionOpened, worker: Worker, caplog: pytest.LogCaptureFixture
) -> None:
    bad, good = admit_request(session, "bad"), admit_request(session, "good")
    for ask in (bad, good):
        await worker.admit_granted(ask)
    async with failing_updates(metadata, "bad"):
        await worker.settle(settle_request(session, bad), settle_request(session, good))
        await wait_for_counters(metadata, session, committed=1, running=1)
        await worker.admit_granted(admit_request(session, "another"))  # it goes on
    assert caplog.text.count("A defect while settling call 'bad'") == 1


async def test_a_count_of_tokens_that_cannot_be_true_does_not_stop_a_settle(
    metadata: Metadata, session: SessionOpened, worker: Worker
) -> None:
    ask = admit_request(session, "r1")
    await worker.admit_granted(ask)
    usage = TokenUsage(input=10**30, output=-5, cached=7)
    await worker.settle(settle_request(session, ask).model_copy(update={"token_usage": usage}))
    await wait_for_counters(metadata, session, committed=1)
    told = (await metadata.driver.info(session)).token_usage
    assert (told.output, told.cached) == (0, 7)
    assert 0 < told.input < 2**53


async def test_a_settle_waits_for_a_ledger_that_is_out_of_reach(
    metadata: Metadata, session: SessionOpened, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = admit_request(session, "r1")
    await worker.admit_granted(ask)
    with monkeypatch.context() as away:
        away.setattr(metadata.driver.ledger, "_closed", True)
        await worker.settle(settle_request(session, ask))
        await asyncio.sleep(0.05)
    await wait_for_counters(metadata, session, committed=1, running=0)


async def test_a_renewal_names_the_services_own_queue_of_admits_until_it_stops(
    metadata: Metadata, session: SessionOpened
) -> None:
    worker = Worker(metadata)
    beat = Heartbeat(worker_id="w1", incarnation="w1")
    renewed = await metadata.rpc_client.call_route(HEARTBEAT, beat, {})
    assert renewed.admit_key is not None
    await worker.publish(
        renewed.admit_key, AdmitBatch(incarnation="w1", items=[admit_request(session, "r1")]).to_wire()
    )
    assert [item.fault for item in (await worker.next_reply()).items] == [None]
    await metadata.service.stop()
    with pytest.raises(Unroutable):
        await worker.publish(renewed.admit_key, b"{}")


async def test_a_registered_targets_queue_is_there_before_the_worker_hears_so(
    metadata: Metadata, worker: Worker
) -> None:
    card = b'{"name": "new", "provider": "mock", "maxConcurrency": 1}'
    await worker.publish("register", b'{"workerId": "w", "incarnation": "w9", "protocol": 1, "targets": [%s]}' % card)
    assert (await next_delivery(worker.replies)).type == "result"
    assert metadata.memory.queue(target_queue("new").name).spec == target_queue("new")


async def test_a_worker_that_speaks_another_version_of_the_protocol_is_refused(
    metadata: Metadata, worker: Worker
) -> None:
    await worker.publish("register", b'{"workerId": "w", "incarnation": "w9", "protocol": 2, "targets": []}')
    fault = FaultReply.from_wire((await next_delivery(worker.replies)).body)
    assert fault.code == "bad_request"
    assert "version 2" in fault.error


@pytest.mark.parametrize("key", ["register", "heartbeat"])
async def test_a_workers_message_that_names_no_user_is_refused(worker: Worker, key: str) -> None:
    body = b'{"workerId": "w", "incarnation": "w9", "protocol": 1, "targets": []}'
    await worker.publish(key, body, names_user=False)
    fault = FaultReply.from_wire((await next_delivery(worker.replies)).body)
    assert fault.code == "bad_request"
    assert "user_id" in fault.error


async def test_a_users_record_holds_for_its_workers_and_harms_no_other(metadata: Metadata) -> None:
    assert await metadata.call_operation("set_user", ADMIN_TOKEN, {"user": "worker-l", "targets": ["l"]})
    bus = metadata.memory.connect("worker-l")
    async with RpcClient(bus) as limited:
        refused = Register(worker_id="x", incarnation="x", targets=[card_of("secret")], protocol=PROTOCOL_VERSION)
        with pytest.raises(ForbiddenTarget, match="secret"):
            await limited.call_route(REGISTER, refused, {})
        assert not metadata.memory.has_queue(target_queue("secret").name)
        await limited.call_route(REGISTER, refused.with_fields(targets=[card_of("l")]), {})
        beat = Heartbeat(worker_id="x", incarnation="x")
        assert await metadata.call_operation("set_user", ADMIN_TOKEN, {"user": "worker-l", "targets": ["m"]})
        # One batch of heartbeats, which another worker's is in.
        answers = await asyncio.gather(
            limited.call_route(HEARTBEAT, beat, {}),
            metadata.rpc_client.call_route(HEARTBEAT, Heartbeat(worker_id="w1", incarnation="w1"), {}),
            return_exceptions=True,
        )
        assert isinstance(answers[0], ForbiddenTarget)
        assert isinstance(answers[1], LeaseRenewed)
    await bus.close()


def card_of(name: str) -> TargetCard:
    return TargetCard(name=name, provider="mock", max_concurrency=1)


async def test_the_sweep_ends_what_time_has_ended_and_outlives_a_defect(
    metadata: Metadata, session: SessionOpened, caplog: pytest.LogCaptureFixture
) -> None:
    async with failing_updates(metadata, "r1"):
        body = {"requestIds": ["r1"], "deadline": await metadata.driver.ledger.now() + 20}
        await metadata.call_operation("reserve", session.token, body)
        await wait_until(lambda: "A defect while sweeping" in caplog.text)
        assert (await metadata.driver.info(session)).reserved == 1
    await wait_for_counters(metadata, session, reserved=0, call_count=0)


# The sweep does not come first.
@pytest.mark.parametrize("metadata", [timings(sweep_seconds=60)], indirect=True)
async def test_a_held_admit_hears_at_once_that_its_call_is_cancelled(
    session: SessionOpened, metadata: Metadata, worker: Worker
) -> None:
    await metadata.call_operation("pause", ADMIN_TOKEN, {"target": "a", "forSeconds": 60})
    waiting = admit_request(session, "r1")
    await worker.admit(waiting)
    assert (await worker.next_reply()).held == [waiting.attempt_id]
    assert await metadata.call_operation("cancel", session.token, {"requestIds": ["r1"]}) == {"cancelled": 1}
    (told,) = (await worker.next_reply()).items
    assert told.fault is not None
    assert (told.fault.code, told.fault.charged) == ("cancelled", False)
