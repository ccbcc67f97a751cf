"""The operation `cancel`: recorded, told to the workers concerned, and to whoever waits for an admission."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import cast

import pytest

from quintain.bus.base import Bus, Delivery, Envelope
from quintain.contracts.credentials import SessionToken
from quintain.contracts.ledger import CallKey, Cancellation, ConversationKey, Heartbeat
from quintain.contracts.session import SessionOpened
from quintain.errors import BadRequest, BrokerUnavailable, BudgetUnavailable
from quintain.timings import DEFAULT_TIMINGS
from quintain.topology import LEDGER, Exchange, reply_topology
from quintain_metadata import handlers
from quintain_metadata.admission import AdmissionQueue
from quintain_metadata.cancellations import CancellationSender
from quintain_metadata.fleet import FleetStatus
from quintain_metadata.handlers import MetadataRequestHandler
from quintain_metadata.ledger import calls, sessions
from quintain_metadata.store.base import Moment
from support.ledger_driver import Driver, admit_request, memory_ledger_driver
from support.metadata_service import Metadata, next_delivery


async def reply_queue(metadata: Metadata, incarnation: str, key: str = "") -> asyncio.Queue[Delivery]:
    """The reply queue of a worker whose lease is renewed, after the answer to that."""
    topology = reply_topology(f"quintain.reply.{key or incarnation}", key or incarnation)
    await metadata.bus.declare(topology)
    queue = await metadata.consume_queue(topology.queues[0])
    beat = Heartbeat(worker_id=incarnation, incarnation=incarnation)
    envelope = Envelope(
        body=beat.to_wire(), type="heartbeat", correlation_id="beat", reply_to=key or incarnation, names_user=True
    )
    await metadata.bus.publish(LEDGER, "heartbeat", envelope)
    assert (await next_delivery(queue)).correlation_id == "beat"
    return queue


async def next_cancellation(queue: asyncio.Queue[Delivery]) -> Cancellation:
    delivery = await next_delivery(queue)
    assert (delivery.type, delivery.correlation_id) == ("cancel", "cancel")
    return Cancellation.from_wire(delivery.body)


async def cancel(metadata: Metadata, session: SessionOpened, *request_ids: str) -> object:
    answer = await metadata.call_operation("cancel", session.token, {"requestIds": list(request_ids)})
    return answer["cancelled"]


async def test_each_worker_is_told_once_which_of_the_calls_that_it_runs_were_cancelled(
    metadata: Metadata, session: SessionOpened
) -> None:
    queues = [await reply_queue(metadata, worker) for worker in ("w1", "w2", "w3")]
    for name, worker in (("r1", "w1"), ("r2", "w1"), ("r3", "w2"), ("ended", "w1")):
        await metadata.driver.ask(admit_request(session, name, attempt_id=name), worker)
    await metadata.driver.end(session, admit_request(session, "ended", attempt_id="ended"))
    assert await cancel(metadata, session, "r2", "ended", "r3", "r1", "unknown", "r1") == 4
    for queue, names in zip(queues, [("r1", "r2"), ("r3",)], strict=False):
        told = await next_cancellation(queue)
        assert told.calls == [CallKey(session_id=session.session_id, request_id=name) for name in names]
    # What was told before is in the heartbeats, and what does not run is nobody's.
    assert await cancel(metadata, session, "r1", "r2", "another") == 1
    assert all(queue.empty() for queue in queues)


async def test_every_worker_is_told_which_conversations_are_over(metadata: Metadata, session: SessionOpened) -> None:
    queues = [await reply_queue(metadata, worker) for worker in ("w1", "w2")]
    await metadata.driver.ask(admit_request(session, "r1"))
    ended = ConversationKey(session_id=session.session_id, conversation_id="c")
    await metadata.call_operation("cancel", session.token, {"requestIds": ["r1"], "conversationIds": ["c"]})
    told = [await next_cancellation(queue) for queue in queues]
    assert [len(one.calls) for one in told] == [1, 0]
    assert [one.conversations for one in told] == [[ended], [ended]]


async def test_a_worker_with_a_new_reply_queue_is_told_there(metadata: Metadata, session: SessionOpened) -> None:
    await metadata.driver.ask(admit_request(session, "r1"))
    before = await reply_queue(metadata, "w1")
    queue = await reply_queue(metadata, "w1", "another")
    assert await cancel(metadata, session, "r1") == 1
    assert len((await next_cancellation(queue)).calls) == 1
    assert before.empty()


async def test_a_cancellation_that_no_worker_hears_is_no_error_and_comes_with_the_heartbeat(
    metadata: Metadata, session: SessionOpened
) -> None:
    await metadata.driver.ask(admit_request(session, "r1"))
    assert await cancel(metadata, session, "r1") == 1
    renewed = await metadata.driver.renew("w1")
    assert renewed.taken_back == [CallKey(session_id=session.session_id, request_id="r1")]


async def test_ten_thousand_calls_are_cancelled_at_once_and_no_more(metadata: Metadata, session: SessionOpened) -> None:
    names = [f"r{number}" for number in range(10_000)]
    assert await cancel(metadata, session, *names) == 10_000
    with pytest.raises(BadRequest, match="requestIds"):
        await cancel(metadata, session, *names, "one more")


class UnavailableBus:
    """A bus that no broker takes anything from."""

    def __init__(self) -> None:
        self.published: list[str] = []

    async def publish(self, exchange: Exchange, key: str, _: Envelope, timeout_seconds: float) -> None:
        self.published.append(key)
        raise BrokerUnavailable(f"{exchange.name} is out of reach, waited {timeout_seconds:.0f} s")


@pytest.fixture
async def ledger_driver() -> AsyncIterator[Driver]:
    async with memory_ledger_driver() as kept:
        await kept.register(limit=1)
        yield kept


def renewal(key: str) -> Delivery:
    """A heartbeat that asks for its answer there."""
    return cast(Delivery, SimpleNamespace(reply_to=key))


async def test_a_worker_whose_lease_is_not_renewed_any_more_is_told_nothing() -> None:
    bus = UnavailableBus()
    sender = CancellationSender(cast(Bus, bus), DEFAULT_TIMINGS.scaled(0.001))
    sender.note_renewed("w1", renewal("of w1"))
    await asyncio.sleep(0.1)
    sender.note_renewed("w2", renewal("of w2"))
    ended = ConversationKey(session_id="s", conversation_id="c")
    await sender.send({"w1": [CallKey(session_id="s", request_id="r")]}, [ended])
    assert bus.published == ["of w2"]


async def cancel_and_count(
    ledger_driver: Driver, session: SessionOpened, *request_ids: str, bus: UnavailableBus | None = None
) -> int:
    unavailable, ledger = cast(Bus, bus or UnavailableBus()), ledger_driver.ledger
    fleet = FleetStatus(unavailable, ledger, "x", list)
    handler = MetadataRequestHandler(unavailable, ledger, AdmissionQueue(ledger), fleet, None)
    handler.cancellation_sender.note_renewed("w1", renewal("of w1"))
    token = SessionToken.parse(session.token)
    owner = await ledger_driver.ledger.transact(lambda moment: sessions.authenticate(moment.now, token))
    return (await handler.cancel(owner, request_ids)).cancelled


async def test_what_was_recorded_stands_where_the_broker_takes_nothing(ledger_driver: Driver) -> None:
    bus, session = UnavailableBus(), await ledger_driver.open_session()
    await ledger_driver.ask(admit_request(session, "r1"))
    assert await cancel_and_count(ledger_driver, session, "r1", bus=bus) == 1
    assert bus.published == ["of w1"]


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
        await cancel_and_count(ledger_driver, session, "r1", "r2", "r3")
    # Asked again, it does what is left.
    assert await cancel_and_count(ledger_driver, session, "r1", "r2", "r3") == 1
