"""Providers that misbehave over real HTTP, each in its own way, in one siege: what each call cost is known exactly."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter
from collections.abc import Iterator

import pytest

from faults.conftest import is_long
from faults.harness import Aftermath, Siege, nothing
from faults.reckoning import Reckoning
from quintain.timings import DEFAULT_TIMINGS
from quintain_metadata.lifecycle import State
from support.fleet import ProcessFleet, process_fleet
from support.model_server import Asked, ModelServer, Script, model_server
from support.model_wires import CHAT
from support.servers.rabbitmq_admin import BrokerUnderTest

TRIES = 3
PAUSE_SECONDS = 10
TIMEOUT_SECONDS = 6.0

CONFIG = """
targets:
  model: {{provider: openai, model: m, base_url: "{url}/v1", timeout_seconds: {timeout}, max_tries: {tries}}}
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manner:
    """How a provider answers the tries at one question (the last for ever), and what must come of the call."""

    scripts: tuple[Script, ...]
    asked: int
    state: State
    fault: str | None = None


FINE = Script(body=CHAT.answer("Fine."))
THROTTLING = Script(status=429, headers={"retry-after": "1"}, body={"error": {"message": "slow down"}})
BUSY = Script(status=503, body={"error": {"message": "overloaded"}})
CLOSES = Script(body=CHAT.answer("Fine."), close_after=120)
GARBAGE = Script(body=b"\x00<html>\xff not JSON")

MANNERS = {
    "is fine": Manner(scripts=(FINE,), asked=1, state=State.COMMITTED),
    "stalls": Manner(scripts=(Script(stall=True),), asked=1, state=State.IN_DOUBT, fault="timeout"),
    "trickles": Manner(
        scripts=(dataclasses.replace(FINE, trickle_seconds=1),), asked=1, state=State.IN_DOUBT, fault="timeout"
    ),
    "answers garbage": Manner(scripts=(GARBAGE,), asked=TRIES, state=State.IN_DOUBT, fault="provider_error"),
    "answers garbage once": Manner(scripts=(GARBAGE, FINE), asked=2, state=State.COMMITTED),
    "throttles once": Manner(scripts=(THROTTLING, FINE), asked=2, state=State.COMMITTED),
    "throttles for ever": Manner(scripts=(THROTTLING,), asked=TRIES, state=State.REFUNDED, fault="throttled"),
    "is busy once": Manner(scripts=(BUSY, FINE), asked=2, state=State.COMMITTED),
    "is busy for ever": Manner(scripts=(BUSY,), asked=TRIES, state=State.REFUNDED, fault="provider_error"),
    "closes half-way": Manner(scripts=(CLOSES,), asked=TRIES, state=State.IN_DOUBT, fault="provider_error"),
    "closes half-way once": Manner(scripts=(CLOSES, FINE), asked=2, state=State.COMMITTED),
    "breaks": Manner(
        scripts=(Script(status=500, body={}),), asked=TRIES, state=State.COMMITTED, fault="provider_error"
    ),
    "rejects": Manner(
        scripts=(Script(status=400, body={"error": {"message": "no"}}),),
        asked=1,
        state=State.COMMITTED,
        fault="rejected",
    ),
    "knows no key": Manner(
        scripts=(Script(status=401, body={"error": {"message": "who?"}}),),
        asked=1,
        state=State.REFUNDED,
        fault="target_unavailable",
    ),
}


class Provider:
    """Scripts by what is asked: a question is its manner and a number. It keeps its own count."""

    def __init__(self, server: ModelServer) -> None:
        self.count: Counter[str] = Counter()
        server.script_for = self.script_for

    def script_for(self, asked: Asked) -> Script:
        messages = asked.body["messages"]
        assert isinstance(messages, list)
        question = str(messages[-1]["content"])
        scripts = MANNERS[manner_of(question)].scripts
        self.count[question] += 1
        return scripts[min(self.count[question], len(scripts)) - 1]


def manner_of(question: str) -> str:
    return question.rpartition(" ")[0]


def as_it_should_be(after: Aftermath, question: str) -> bool:
    """Whether one call cost what its provider's manner is worth, and no more."""
    manner, book, (said,) = MANNERS[manner_of(question)], after.books[question], after.said[question]
    return (
        after.provider[question] == manner.asked
        and (book.state, book.fault) == (manner.state, manner.fault)
        and book.granted == 1
        and (said.text == manner.fault if said.fault else manner.fault is None)
    )


@pytest.fixture
def folder_fleet(breakable_broker: BrokerUnderTest, quick_counts: None) -> Iterator[ProcessFleet]:
    """A fleet whose configuration is written once the provider's port is known."""
    with process_fleet(breakable_broker.url, "targets: {}", targets=["model"]) as fleet:
        yield fleet


async def test_a_provider_misbehaves_in_every_way_at_once(folder_fleet: ProcessFleet, reckoning: Reckoning) -> None:
    fleet = folder_fleet
    questions = [f"{manner} {number}" for number in range(8 if is_long() else 2) for manner in MANNERS]
    async with model_server() as server:
        provider = Provider(server)
        config = CONFIG.format(url=server.url, timeout=TIMEOUT_SECONDS, tries=TRIES)
        (fleet.folder / "quintain.yaml").write_text(config)
        await asyncio.to_thread(fleet.start_services, "metadata", "worker", "worker")
        siege = Siege(fleet, questions, target="model", count=lambda: provider.count)
        after = await siege.run("provider misbehaves", nothing)
        strange = [question for question in questions if not as_it_should_be(after, question)]
        assert strange == [], [(after.said[name], after.books[name], after.provider[name]) for name in strange]
        faults = frozenset(manner.fault for manner in MANNERS.values() if manner.fault)
        await reckoning.hold(fleet, after, tries=TRIES, faults=faults)


@pytest.mark.long
async def test_a_provider_asks_for_a_long_pause(
    folder_fleet: ProcessFleet, questions: list[str], reckoning: Reckoning
) -> None:
    fleet, loop = folder_fleet, asyncio.get_running_loop()
    count: Counter[str] = Counter()
    asked_at: list[float] = []

    def script_for(asked: Asked) -> Script:
        messages = asked.body["messages"]
        assert isinstance(messages, list)
        count[str(messages[-1]["content"])] += 1
        asked_at.append(loop.time())
        return dataclasses.replace(THROTTLING, headers={"retry-after": str(PAUSE_SECONDS)}) if is_early() else FINE

    def is_early() -> bool:
        return loop.time() < asked_at[0] + PAUSE_SECONDS

    async with model_server() as server:
        server.script_for = script_for
        config = CONFIG.format(url=server.url, timeout=TIMEOUT_SECONDS, tries=TRIES)
        (fleet.folder / "quintain.yaml").write_text(config)
        await asyncio.to_thread(fleet.start_services, "metadata", "worker", "worker")
        after = await Siege(fleet, questions, target="model", count=lambda: count).run(
            "provider asks for a pause", nothing
        )
        # The first refusal pauses the target where it was heard; the other worker hears of it with its next heartbeat.
        since = [moment - asked_at[0] for moment in asked_at]
        kept = [seconds for seconds in since if DEFAULT_TIMINGS.heartbeat_seconds + 2 < seconds < PAUSE_SECONDS]
        assert kept == [], f"asked {kept} seconds after a provider asked for {PAUSE_SECONDS}"
        await reckoning.hold(fleet, after, tries=TRIES)
