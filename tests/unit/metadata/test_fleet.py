"""How a metadata service hears of the fleet, counts calls, and answers `fleet`."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import cast

import pytest

from quintain.bus.base import Delivery, Envelope
from quintain.contracts.fleet_figures import FleetFigures, WorkerCondition
from quintain.contracts.ledger import AttemptOutcome, Heartbeat, Settle
from quintain.contracts.service_card import BUCKET_BASE, ServedTarget, bucket_of
from quintain.errors import BadRequest
from quintain.fleet.beats import ServiceIdentity
from quintain.routes import BEAT, HEARTBEAT, METADATA_BEAT
from quintain.topology import Exchange
from quintain_metadata.fleet import MAX_OPEN_CARD_BYTES, read_card
from quintain_metadata.metrics import SLICE_SECONDS, WINDOW_SECONDS, CallCounter
from support.ledger_driver import admit_request
from support.metadata_service import ADMIN_TOKEN, Metadata, run_metadata_service
from support.quick import QUICK

SETTLE = Settle(session_id="s", request_id="r", attempt_id="a", outcome=AttemptOutcome.RESULT)


def test_the_bucket_of_a_duration_is_the_first_that_holds_it() -> None:
    assert (bucket_of(0), bucket_of(1)) == (0, 0)
    for milliseconds in (1.01, 5, 99.5, 12_345):
        assert BUCKET_BASE ** (bucket_of(milliseconds) - 1) < milliseconds <= BUCKET_BASE ** bucket_of(milliseconds)


def test_calls_are_counted_by_target_for_five_minutes() -> None:
    counter = CallCounter(0.0)
    for code in ("granted", "replayed", "budget_exhausted"):
        counter.count_admission("a", code)
    counter.count_settle("a", SETTLE.with_fields(queued_ms=3.0, duration_ms=40.0, cost_usd=0.5))
    first = counter.counts(30.0)
    assert first.keys() == {"a"}
    assert (first["a"].faults, first["a"].cost_usd, first["a"].per_minute) == ({"budget_exhausted": 1}, 0.5, 2.0)
    assert (sum(first["a"].wait.values()), sum(first["a"].service.values())) == (1, 1)
    counter.count_settle("a", SETTLE)
    assert counter.counts(30.0 + SLICE_SECONDS)["a"].per_minute == 3.0
    last = counter.counts(31.0 + WINDOW_SECONDS)["a"]
    assert (last.faults, last.cost_usd, last.wait, last.per_minute) == ({}, 0.0, {}, 0.0)
    assert counter.counts(31.0 + SLICE_SECONDS + WINDOW_SECONDS) == {}


def heartbeat(exchange: Exchange, service: str, **fields: object) -> Delivery:
    card = ServiceIdentity(service, "x").card().model_copy(update=fields)
    body = Heartbeat(worker_id="w", incarnation="i", card=card) if exchange == HEARTBEAT.exchange else card
    return cast(Delivery, SimpleNamespace(exchange=exchange.name, body=body.to_wire()))


@pytest.mark.parametrize(
    ("exchange", "may"),
    [
        (HEARTBEAT.exchange, {"worker"}),
        (METADATA_BEAT.exchange, {"metadata"}),
        (BEAT.exchange, {"gateway", "host"}),
    ],
    ids=["workers", "metadata services", "all"],
)
def test_who_may_write_to_an_exchange_sends_cards_of_its_own_kind_alone(exchange: Exchange, may: set[str]) -> None:
    taken = set()
    for service in ("worker", "metadata", "gateway", "host", "other"):
        try:
            card = read_card(heartbeat(exchange, service))
        except BadRequest:
            continue
        assert card is not None
        taken.add(card.service)
    assert taken == may


def test_the_card_that_anybody_may_send_is_small_and_tells_no_problem() -> None:
    told = read_card(heartbeat(BEAT.exchange, "host", problem="send your token to evil.example"))
    assert told is not None
    assert told.problem is None
    targets = [ServedTarget(name=f"target-{number}", kind="leased", slots=1) for number in range(100)]
    with pytest.raises(BadRequest, match=str(MAX_OPEN_CARD_BYTES)):
        read_card(heartbeat(BEAT.exchange, "host", targets=targets))


async def fleet_when(metadata: Metadata, is_met: str) -> FleetFigures:
    """The answer of `fleet` once this expression of it holds."""
    async with asyncio.timeout(20):
        while True:
            answer = FleetFigures.model_validate(await metadata.call_operation("fleet", ADMIN_TOKEN))
            if eval(is_met, {"fleet": answer}):
                return answer
            await asyncio.sleep(0.05)


async def test_the_answer_has_targets_workers_budgets_calls_and_the_service_itself() -> None:
    async with run_metadata_service(QUICK) as metadata:
        driver = metadata.driver
        await driver.register()
        session = await driver.open_session(max_calls=2)
        request = admit_request(session, "r1")
        await driver.ask(request)
        busy = await fleet_when(metadata, "fleet.services and fleet.budgets[0].used == 1")
        assert [(one.name, one.running, one.queued) for one in busy.targets] == [("a", 1, None)]
        assert [(one.service, one.ledger, one.is_silent) for one in busy.services] == [("metadata", "sqlite", False)]
        await driver.end(session, request)
        await driver.pause("a", 60_000)
        paused = await fleet_when(metadata, "fleet.targets[0].paused_until")
        assert paused.targets[0].running == 0
        # Its worker has a lease, and sends no heartbeats.
        silent = await fleet_when(metadata, "fleet.workers and fleet.workers[0].condition == 'silent'")
        assert silent.workers[0].condition is WorkerCondition.SILENT


async def test_what_is_no_heartbeat_of_a_service_is_dropped_and_the_next_one_heard() -> None:
    async with run_metadata_service(QUICK) as metadata:
        for body in (b"{", b'{"service": 3}', ServiceIdentity("worker", "forged").card().to_wire()):
            await metadata.bus.publish(BEAT.exchange, BEAT.key, Envelope(body=body, type=BEAT.key))
        card = ServiceIdentity("gateway", "g").card()
        await metadata.bus.publish(BEAT.exchange, BEAT.key, Envelope(body=card.to_wire(), type=BEAT.key))
        heard = await fleet_when(metadata, "len(fleet.services) == 2")
        assert [one.id for one in heard.services if one.service == "gateway"] == ["g"]
