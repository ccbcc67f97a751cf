"""The operation `cancel`: recorded, fanned out to the workers, and told at the desk to whoever waits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import cast

import pytest

from quintain.bus.base import Bus, Delivery
from quintain.contracts.credentials import SessionToken
from quintain.contracts.ledger import CallKey, CancelBroadcast, Heartbeat, LeaseRenewed
from quintain.contracts.session import SessionOpened
from quintain.errors import BadRequest, BrokerUnavailable, BudgetUnavailable
from quintain.topology import CANCEL, Exchange, cancel_topology
from quintain_metadata import handlers
from quintain_metadata.admission import AdmissionQueue
from quintain_metadata.fleet import FleetStatus
from quintain_metadata.handlers import MetadataRequestHandler
from quintain_metadata.ledger import calls, leases, sessions
from quintain_metadata.store.base import Moment
from support.ledger_driver import Driver, admit_request, memory_ledger_driver
from support.metadata_service import Metadata, next_delivery


async def cancellation_queues(metadata: Metadata, *names: str) -> list[asyncio.Queue[Delivery]]:
    """The queues of so many workers that hear cancellations."""
    queues: list[asyncio.Queue[Delivery]] = []
    for name in names:
        topology = cancel_topology(name)
        await metadata.bus.declare(topology)
        queues.append(await metadata.consume_queue(topology.queues[0]))
    return queues


async def cancel(metadata: Metadata, session: SessionOpened, *request_ids: str) -> object:
    answer = await metadata.call_operation("cancel", session.token, {"requestIds": list(request_ids)})
    return answer["cancelled"]


async def test_a_running_call_that_is_cancelled_is_fanned_out_to_every_worker_once(
    metadata: Metadata, session: SessionOpened
) -> None:
    queues = await cancellation_queues(metadata, "w1", "w2")
    for name in ("r1", "r2", "ended"):
        await metadata.driver.ask(admit_request(session, name, attempt_id=name))
    await metadata.driver.end(session, admit_request(session, "ended", attempt_id="ended"))
    assert await cancel(metadata, session, "r2", "ended", "r1", "unknown", "r1") == 3
    for queue in queues:
        delivery = await next_delivery(queue)
        assert (delivery.type, delivery.exchange) == ("cancel", CANCEL.name)
        taken_back = CancelBroadcast.from_wire(delivery.body)
        assert taken_back.calls == [CallKey(session_id=session.session_id, request_id=name) for name in ("r1", "r2")]
    # What was fanned out before is in the heartbeats, and what does not run is nobody's.
    assert await cancel(metadata, session, "r1", "r2", "another") == 1
    assert all(queue.empty() for queue in queues)


async def test_a_cancellation_that_no_worker_hears_is_no_error_and_comes_with_the_heartbeat(
    metadata: Metadata, session: SessionOpened
) -> None:
    await metadata.driver.ask(admit_request(session, "r1"))
    assert await cancel(metadata, session, "r1") == 1
    beat = Heartbeat(worker_id="w1", incarnation="w1")
    renewed: LeaseRenewed = await metadata.driver.ledger.transact(lambda moment: leases.renew_lease(moment.now, beat))
    assert renewed.taken_back == [CallKey(session_id=session.session_id, request_id="r1")]


async def test_ten_thousand_calls_are_cancelled_at_once_and_no_more(metadata: Metadata, session: SessionOpened) -> None:
    names = [f"r{number}" for number in range(10_000)]
    assert await cancel(metadata, session, *names) == 10_000
    with pytest.raises(BadRequest, match="requestIds"):
        await cancel(metadata, session, *names, "one more")


class UnavailableBus:
    """A bus that no broker takes anything from."""

    async def publish(self, exchange: Exchange, *_: object, timeout_seconds: float) -> None:
        raise BrokerUnavailable(f"{exchange.name} is out of reach, waited {timeout_seconds:.0f} s")


@pytest.fixture
async def ledger_driver() -> AsyncIterator[Driver]:
    async with memory_ledger_driver() as kept:
        await kept.register(limit=1)
        yield kept


async def cancel_and_count(
    ledger_driver: Driver, admission_queue: AdmissionQueue, session: SessionOpened, *request_ids: str
) -> int:
    bus, ledger = cast(Bus, UnavailableBus()), ledger_driver.ledger
    handler = MetadataRequestHandler(bus, ledger, admission_queue, FleetStatus(bus, ledger, "x", list), None)
    token = SessionToken.parse(session.token)
    owner = await ledger_driver.ledger.transact(lambda moment: sessions.authenticate(moment.now, token))
    return (await handler.cancel(owner, request_ids)).cancelled


async def test_what_was_recorded_stands_where_the_broker_takes_nothing(
    ledger_driver: Driver, caplog: pytest.LogCaptureFixture
) -> None:
    session = await ledger_driver.open_session()
    await ledger_driver.ask(admit_request(session, "r1"))
    assert await cancel_and_count(ledger_driver, AdmissionQueue(ledger_driver.ledger), session, "r1") == 1
    assert "with their next heartbeats: quintain.cancel is out of reach" in caplog.text


async def test_pages_that_were_recorded_before_the_ledger_went_away_stand(
    ledger_driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await ledger_driver.open_session()
    monkeypatch.setattr(handlers, "MAX_CALLS_PER_TRANSACTION", 2)
    real, pages = calls.cancel, 0

    def failing(moment: Moment, **asked: object) -> object:
        nonlocal pages
        pages += 1
        if pages == 2:
            raise BudgetUnavailable
        return real(moment, **asked)  # type: ignore[arg-type]

    monkeypatch.setattr(calls, "cancel", failing)
    with pytest.raises(BudgetUnavailable):
        await cancel_and_count(ledger_driver, AdmissionQueue(ledger_driver.ledger), session, "r1", "r2", "r3")
    # Asked again, it does what is left.
    assert await cancel_and_count(ledger_driver, AdmissionQueue(ledger_driver.ledger), session, "r1", "r2", "r3") == 1
