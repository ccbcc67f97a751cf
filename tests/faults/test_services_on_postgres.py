"""Three metadata services on one PostgreSQL, and more callers than calls are left."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Iterator

import pytest

from faults.invariants import InvariantChecker
from faults.ledger_calls import read_calls
from faults.load import is_long
from faults.scenario import (
    BOT,
    CONFIG,
    MAX_CONCURRENCY,
    CallOutcome,
    FaultScenario,
    ScenarioResult,
    send_until_accepted,
    wait_until_idle,
)
from quintain.contracts.invoke import InvokeRequest
from support.process_fleet import ProcessFleet, process_fleet
from support.recording_bus import RecordingClient, recording_client
from support.servers.rabbitmq_admin import BrokerUnderTest

CLIENTS, LAST_CALLS = (64, 1000) if is_long() else (16, 100)
SERVICES = ("metadata", "metadata", "metadata", "worker", "worker")


@pytest.fixture
def fleet_on_postgres(
    breakable_broker: BrokerUnderTest, fast_queue_stats: None, fresh_postgres_url: str
) -> Iterator[ProcessFleet]:
    config = CONFIG.replace(f"max_concurrency: {MAX_CONCURRENCY}", f"max_concurrency: {CLIENTS}")
    with process_fleet(breakable_broker.url, config, targets=["bot"]) as fleet:
        fleet.extra_env |= {"QUINTAIN_LEDGER_URL": fresh_postgres_url, "TEST_BOT_SECONDS": "0"}
        (fleet.folder / "bot.py").write_text(BOT)
        fleet.start_services(*SERVICES)
        yield fleet


@pytest.mark.every_broker
async def test_clients_race_for_a_sessions_last_calls(
    fleet_on_postgres: ProcessFleet, invariants: InvariantChecker
) -> None:
    fleet, last = fleet_on_postgres, LAST_CALLS
    fresh = [f"q{number}" for number in range(last + last // 5)]
    chance = random.Random(20)
    asked = fresh + chance.choices(fresh, k=len(fresh) // 4)  # of all that is asked, one in five is a duplicate
    chance.shuffle(asked)
    session = await asyncio.to_thread(fleet.open_session, "bot", last)
    said: dict[str, list[CallOutcome]] = {question: [] for question in fresh}

    async def race(asking: RecordingClient) -> None:
        while asked:
            question = asked.pop()
            said[question].append(
                await send_until_accepted(asking.client, InvokeRequest(question=question), deadline_seconds=100)
            )

    async with contextlib.AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(recording_client(fleet.broker_url, session.token)) for _ in range(CLIENTS)
        ]
        await asyncio.gather(*map(race, clients))
        info = await wait_until_idle(clients[0].client)
        heard: dict[str, list[str]] = {question: [] for question in fresh}
        for each in clients:
            for question, words in each.reply_texts.items():
                heard[question] += words
    after = ScenarioResult(
        fault="race on 3 services",
        max_calls=last,
        session=session,
        outcomes=said,
        # A call refused for want of budget may be asked again, and may be granted then: only answers must agree.
        reply_texts={
            question: [word for word in words if word != "budget_exhausted"] for question, words in heard.items()
        },
        repeated_outcomes={},
        info=info,
        ledger_calls=await read_calls(fleet.ledger_url, session.session_id),
        provider_calls=FaultScenario(fleet, fresh).provider_count(),
    )
    told = Counter("granted" if not words[0].is_fault else words[0].text for words in said.values())
    assert told == {"granted": last, "budget_exhausted": len(fresh) - last}
    assert after.provider_calls.total() == len(after.provider_calls) == info.call_count == info.committed == last
    await invariants.check(fleet, after, faults=frozenset({"budget_exhausted"}))
