"""Heartbeats: which leases may lapse, and how a heartbeat that is read late or not taken keeps all of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from quintain.bus.base import Delivery, Envelope
from quintain.contracts.ledger import Heartbeat, HeartbeatProbe, LeaseRenewed
from quintain.contracts.session import SessionOpened
from quintain.routes import HEARTBEAT_PROBE
from quintain.topology import HEARTBEAT_QUEUE, LEDGER
from quintain_metadata.heartbeats import HEARTBEAT_PREFETCH
from quintain_metadata.ledger import leases
from quintain_metadata.ledger.decisions import Deferred
from quintain_metadata.store.base import Operation
from quintain_metadata.store.sqlite import SqliteLedger
from support.ledger_driver import Driver, admit_request
from support.metadata_service import Metadata, next_delivery, run_metadata_service
from support.quick import QUICK, timings
from support.waiting import wait_until

#: The service publishes no probe by itself.
NO_PROBES = timings(sweep_seconds=60)


@pytest.fixture(params=[NO_PROBES])
async def metadata(request: pytest.FixtureRequest) -> AsyncIterator[Metadata]:
    async with run_metadata_service(request.param) as alone:
        for worker in ("w1", "w2"):
            await alone.driver.register(worker)
        alone.driver.ledger.lease_expiry.suspended_until = 0  # the lease that follows every start is over
        yield alone


async def end_lease_now(driver: Driver, incarnation: str) -> None:
    """The worker's lease ends in this millisecond."""
    heartbeat = Heartbeat(worker_id=incarnation, incarnation=incarnation)
    of_users = [(heartbeat, leases.DEFAULT_USER)]
    await driver.ledger.transact(lambda moment: leases.renew_leases(moment.now, of_users, 1))
    await asyncio.sleep(0.005)


async def is_taken_over(driver: Driver, session: SessionOpened) -> bool:
    """Whether another worker is granted the call."""
    return not isinstance(await driver.ask(admit_request(session, "r1"), "w2"), Deferred)


async def publish_probe(metadata: Metadata) -> None:
    """Publish a probe as a metadata service does, and wait until it was read."""
    probe = HeartbeatProbe(sent_at=await metadata.driver.ledger.now())
    envelope = Envelope(body=probe.to_wire(), type=HEARTBEAT_PROBE.key)
    await metadata.bus.publish(HEARTBEAT_PROBE.exchange, HEARTBEAT_PROBE.key, envelope)
    await send_heartbeat(metadata, "w2")  # it is answered after what came before it


async def publish_heartbeat(metadata: Metadata, incarnation: str, correlation_id: str) -> None:
    body = Heartbeat(worker_id=incarnation, incarnation=incarnation).to_wire()
    reply_to = metadata.rpc_client.reply_key
    envelope = Envelope(body=body, type="heartbeat", correlation_id=correlation_id, reply_to=reply_to, names_user=True)
    await metadata.bus.publish(LEDGER, "heartbeat", envelope)


async def send_heartbeat(metadata: Metadata, incarnation: str) -> Delivery:
    replies: asyncio.Queue[Delivery] = asyncio.Queue()
    unsubscribe = metadata.rpc_client.subscribe("beat", replies.put_nowait)
    await publish_heartbeat(metadata, incarnation, "beat")
    reply = await next_delivery(replies)
    unsubscribe()
    return reply


async def test_no_lease_lapses_while_a_heartbeat_sent_before_its_end_may_be_unread(
    metadata: Metadata, session: SessionOpened
) -> None:
    driver = metadata.driver
    await driver.ask(admit_request(session, "r1"))
    await end_lease_now(driver, "w1")
    assert not await is_taken_over(driver, session)
    await publish_probe(metadata)
    assert await is_taken_over(driver, session)


@pytest.mark.parametrize("metadata", [timings(sweep_seconds=60, gap_seconds=0.05)], indirect=True)
async def test_after_heartbeats_were_read_late_no_lease_lapses_for_a_lease(
    metadata: Metadata, session: SessionOpened
) -> None:
    driver = metadata.driver
    await driver.ask(admit_request(session, "r1"))
    await driver.expire_lease("w1")
    await asyncio.sleep(0.06)
    await publish_probe(metadata)
    assert not await is_taken_over(driver, session)


async def test_after_a_heartbeat_that_the_ledger_did_not_take_no_lease_lapses_for_a_lease(
    metadata: Metadata, session: SessionOpened, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = metadata.driver
    await driver.ask(admit_request(session, "r1"))
    await driver.expire_lease("w1")
    assert isinstance(driver.ledger, SqliteLedger)
    with monkeypatch.context() as away:
        away.setattr(driver.ledger, "_closed", True)
        assert (await send_heartbeat(metadata, "w1")).type == "fault"
    await publish_probe(metadata)
    assert not await is_taken_over(driver, session)


@pytest.mark.parametrize("metadata", [QUICK], indirect=True)
async def test_a_running_service_reads_its_own_probes(metadata: Metadata, session: SessionOpened) -> None:
    driver = metadata.driver
    await driver.ask(admit_request(session, "r1"))
    await end_lease_now(driver, "w1")
    async with asyncio.timeout(5):
        while not await is_taken_over(driver, session):
            await send_heartbeat(metadata, "w2")
            await asyncio.sleep(0.01)


async def test_heartbeats_that_wait_are_renewed_in_one_operation_and_one_of_each_worker_is_taken(
    metadata: Metadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, workers = metadata.driver.ledger, [f"worker {number}" for number in range(20)]
    free, operations = asyncio.Event(), 0
    transact = ledger.transact

    async def slow_transact(operation: Operation[object]) -> object:
        nonlocal operations
        operations += 1
        await free.wait()
        return await transact(operation)

    monkeypatch.setattr(ledger, "transact", slow_transact)
    for worker in ["first", *workers]:
        await publish_heartbeat(metadata, worker, "batch")
    replies: asyncio.Queue[Delivery] = asyncio.Queue()
    metadata.rpc_client.subscribe("batch", replies.put_nowait)
    queue = metadata.memory.queue(HEARTBEAT_QUEUE.name)
    await wait_until(lambda: not queue.ready)
    for _ in range(3 * HEARTBEAT_PREFETCH):
        await publish_heartbeat(metadata, "first", "again")
    await asyncio.sleep(0.05)
    assert len(queue.ready) == 2 * HEARTBEAT_PREFETCH
    assert operations == 1
    free.set()
    answers = [LeaseRenewed.from_wire((await next_delivery(replies)).body) for _ in range(21)]
    assert not any(answer.known for answer in answers)
    assert operations < 10
