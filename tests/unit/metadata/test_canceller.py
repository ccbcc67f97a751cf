"""The operation `cancel`: recorded, fanned out to the workers, and told at the desk to whoever waits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from quintain.bus.base import Delivery
from quintain.contracts.ledger import (
    Admission,
    AdmitBatch,
    CallKey,
    CallsTakenBack,
    Heartbeat,
    LeaseRenewed,
)
from quintain.contracts.metadata import SessionOpened
from quintain.contracts.token import SessionToken
from quintain.errors import BadRequest, BrokerUnavailable, BudgetUnavailable, Unauthorized
from quintain.topology import CANCEL, Exchange, cancel_topology
from quintain_metadata import cancels, sessions, upkeep
from quintain_metadata.canceller import Canceller
from quintain_metadata.desk import Desk
from quintain_metadata.records import Moment
from support.books import Books, asked, books
from support.metadata_alone import MetadataAlone, heard, metadata_alone


@pytest.fixture
async def alone() -> AsyncIterator[MetadataAlone]:
    async with metadata_alone() as alone:
        await alone.books.register("a")
        yield alone


@pytest.fixture
async def session(alone: MetadataAlone) -> SessionOpened:
    return await alone.books.open(max_calls=5)


async def fleet(alone: MetadataAlone, *names: str) -> list[asyncio.Queue[Delivery]]:
    """The queues of so many workers that hear cancellations."""
    queues: list[asyncio.Queue[Delivery]] = []
    for name in names:
        topology = cancel_topology(name)
        await alone.bus.declare(topology)
        queues.append(await alone.watch(topology.queues[0]))
    return queues


async def cancel(alone: MetadataAlone, session: SessionOpened, *request_ids: str) -> object:
    answer = await alone.operate("cancel", session.token, {"requestIds": list(request_ids)})
    return answer["cancelled"]


async def test_a_running_call_that_is_cancelled_is_fanned_out_to_every_worker_once(
    alone: MetadataAlone, session: SessionOpened
) -> None:
    queues = await fleet(alone, "w1", "w2")
    for name in ("r1", "r2", "ended"):
        await alone.books.admit(asked(session, name, attempt_id=name))
    await alone.books.settle(session, asked(session, "ended", attempt_id="ended"))
    assert await cancel(alone, session, "r2", "ended", "r1", "unknown", "r1") == 3
    for queue in queues:
        delivery = await heard(queue)
        assert (delivery.type, delivery.exchange) == ("cancel", CANCEL.name)
        taken_back = CallsTakenBack.from_wire(delivery.body)
        assert taken_back.calls == [CallKey(session_id=session.session_id, request_id=name) for name in ("r1", "r2")]
    # What was fanned out before is in the heartbeats, and what does not run is nobody's.
    assert await cancel(alone, session, "r1", "r2", "another") == 1
    assert all(queue.empty() for queue in queues)


async def test_a_cancellation_that_no_worker_hears_is_no_error_and_comes_with_the_heartbeat(
    alone: MetadataAlone, session: SessionOpened
) -> None:
    await alone.books.admit(asked(session, "r1"))
    assert await cancel(alone, session, "r1") == 1
    beat = Heartbeat(worker_id="w1", incarnation="w1")
    renewed: LeaseRenewed = await alone.books.ledger.do(lambda moment: upkeep.renew(moment.now, beat))
    assert renewed.taken_back == [CallKey(session_id=session.session_id, request_id="r1")]


async def test_a_closed_session_cancels_nothing_and_a_paused_one_does(
    alone: MetadataAlone, session: SessionOpened
) -> None:
    await alone.books.amend(session, state="paused")
    assert await cancel(alone, session, "r1") == 1
    await alone.books.amend(session, state="closed")
    with pytest.raises(Unauthorized):
        await cancel(alone, session, "r2")


async def test_ten_thousand_calls_are_cancelled_at_once_and_no_more(
    alone: MetadataAlone, session: SessionOpened
) -> None:
    names = [f"r{number}" for number in range(10_000)]
    assert await cancel(alone, session, *names) == 10_000
    with pytest.raises(BadRequest, match="requestIds"):
        await cancel(alone, session, *names, "one more")


class Deaf:
    """A bus that no broker takes anything from."""

    async def publish(self, exchange: Exchange, *_: object, timeout: float) -> None:
        raise BrokerUnavailable(f"{exchange.name} is out of reach, waited {timeout:.0f} s")


@pytest.fixture
async def kept() -> AsyncIterator[Books]:
    async with books() as kept:
        await kept.register("a", limit=1)
        yield kept


async def cancelled(kept: Books, desk: Desk, session: SessionOpened, *request_ids: str) -> int:
    canceller = Canceller(Deaf(), kept.ledger, desk)  # type: ignore[arg-type]
    token = SessionToken.parse(session.token)
    owner = await kept.ledger.do(lambda moment: sessions.prove(moment.now, token))
    return (await canceller.cancel(owner, request_ids)).cancelled


async def test_what_was_recorded_stands_where_the_broker_takes_nothing(
    kept: Books, caplog: pytest.LogCaptureFixture
) -> None:
    session = await kept.open()
    await kept.admit(asked(session, "r1"))
    assert await cancelled(kept, Desk(kept.ledger), session, "r1") == 1
    assert "heard with the next heartbeats only: quintain.cancel is out of reach" in caplog.text


async def test_an_admit_that_waits_is_answered_at_once_when_its_call_is_cancelled(kept: Books) -> None:
    session, desk = await kept.open(), Desk(kept.ledger)
    told: list[Admission] = []

    async def reply(items: list[Admission], held: list[str]) -> None:
        told.extend(items)

    running, waiting, other = (asked(session, name) for name in ("r1", "r2", "r3"))
    await desk.admit(AdmitBatch(incarnation="w1", items=[running, waiting, other]), reply)
    assert [one.attempt_id for one in told] == [running.attempt_id]
    assert await cancelled(kept, desk, session, "r2") == 1
    refusal = told[-1].fault
    assert told[-1].attempt_id == waiting.attempt_id
    assert refusal is not None
    assert (refusal.code, refusal.charged) == ("cancelled", False)
    # The other one still waits, and for its own reason.
    await desk.try_again("a")
    assert len(told) == 2
    await kept.settle(session, running)
    await desk.try_again("a")
    assert told[-1].attempt_id == other.attempt_id
    assert told[-1].fault is None


async def test_pages_that_were_recorded_before_the_ledger_went_away_stand(
    kept: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await kept.open()
    monkeypatch.setattr(cancels, "PAGE", 2)
    real, pages = cancels.cancel, 0

    def failing(moment: Moment, **asked: object) -> object:
        nonlocal pages
        pages += 1
        if pages == 2:
            raise BudgetUnavailable
        return real(moment, **asked)  # type: ignore[arg-type]

    monkeypatch.setattr(cancels, "cancel", failing)
    with pytest.raises(BudgetUnavailable):
        await cancelled(kept, Desk(kept.ledger), session, "r1", "r2", "r3")
    # Asked again, it does what is left.
    assert await cancelled(kept, Desk(kept.ledger), session, "r1", "r2", "r3") == 1
