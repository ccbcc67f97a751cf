"""Three metadata services on one PostgreSQL, and more callers than calls are left."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Iterator

import pytest

from faults.conftest import is_long
from faults.harness import BOT, CONFIG, MOST_AT_ONCE, Aftermath, Said, Siege, ask, settled
from faults.ledger_books import books_of
from faults.reckoning import Reckoning
from quintain.contracts.invoke import InvokeRequest
from support.fleet import ProcessFleet, process_fleet
from support.hearing_bus import Evaluator, evaluator
from support.servers.rabbitmq_admin import BrokerUnderTest

CLIENTS = 64
SERVICES = ("metadata", "metadata", "metadata", "worker", "worker")


@pytest.fixture
def fleet_on_postgres(
    breakable_broker: BrokerUnderTest, quick_counts: None, fresh_postgres_url: str
) -> Iterator[ProcessFleet]:
    config = CONFIG.replace(f"max_concurrency: {MOST_AT_ONCE}", f"max_concurrency: {CLIENTS}")
    with process_fleet(breakable_broker.url, config, targets=["bot"]) as fleet:
        fleet.extra |= {"QUINTAIN_LEDGER_URL": fresh_postgres_url, "TEST_BOT_SECONDS": "0"}
        (fleet.folder / "bot.py").write_text(BOT)
        fleet.start_services(*SERVICES)
        yield fleet


async def test_sixty_four_clients_race_for_a_sessions_last_calls(
    fleet_on_postgres: ProcessFleet, reckoning: Reckoning
) -> None:
    fleet, last = fleet_on_postgres, 1000 if is_long() else 200
    fresh = [f"q{number}" for number in range(last + last // 5)]
    chance = random.Random(20)
    asked = fresh + chance.choices(fresh, k=len(fresh) // 4)  # of all that is asked, one in five is a duplicate
    chance.shuffle(asked)
    session = await asyncio.to_thread(fleet.open_session, "bot", last)
    said: dict[str, list[Said]] = {question: [] for question in fresh}

    async def race(asking: Evaluator) -> None:
        while asked:
            question = asked.pop()
            said[question].append(await ask(asking.client, InvokeRequest(question=question), deadline_seconds=100))

    async with contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(evaluator(fleet.broker_url, session.token)) for _ in range(CLIENTS)]
        await asyncio.gather(*map(race, clients))
        info = await settled(clients[0].client)
        heard: dict[str, list[str]] = {question: [] for question in fresh}
        for each in clients:
            for question, words in each.heard.items():
                heard[question] += words
    after = Aftermath(
        fault="race on 3 services",
        max_calls=last,
        session=session,
        said=said,
        # A call refused for want of budget may be asked again, and is another story then: only answers must agree.
        heard={question: [word for word in words if word != "budget_exhausted"] for question, words in heard.items()},
        again={},
        info=info,
        books=await books_of(fleet.ledger_url, session.session_id),
        provider=Siege(fleet, fresh).provider_count(),
    )
    told = Counter("granted" if not words[0].fault else words[0].text for words in said.values())
    assert told == {"granted": last, "budget_exhausted": len(fresh) - last}
    assert after.provider.total() == len(after.provider) == info.call_count == info.committed == last
    await reckoning.hold(fleet, after, faults=frozenset({"budget_exhausted"}))
