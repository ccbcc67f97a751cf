"""Providers that misbehave over real HTTP, each in its own way: what each call cost is known exactly."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter
from collections.abc import Iterator

import pytest

from faults.invariants import InvariantChecker
from faults.load import is_long
from faults.scenario import FaultScenario, ScenarioResult, no_fault
from quintain.timings import DEFAULT_TIMINGS
from quintain_metadata.ledger.lifecycle import CallState
from support.model_server import ModelServer, ReceivedRequest, ScriptedResponse, model_server
from support.model_wires import CHAT
from support.process_fleet import ProcessFleet, process_fleet
from support.servers.rabbitmq_admin import BrokerUnderTest

TRIES = 3
PAUSE_SECONDS = 10
TIMEOUT_SECONDS = 6.0

#: Each question has a manner of its own: with a quota, calls to all of them would wait for those that fail.
CONFIG = """
targets:
  model:
    {{provider: openai, model: m, base_url: "{url}/v1", adaptive: false,
      timeout_seconds: {timeout}, max_tries: {tries}}}
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProviderBehavior:
    """How a provider answers the tries at one question (the last for ever), and what must come of the call."""

    responses: tuple[ScriptedResponse, ...]
    expected_requests: int
    state: CallState
    fault: str | None = None


FINE = ScriptedResponse(body=CHAT.answer("Fine."))
THROTTLING = ScriptedResponse(status=429, headers={"retry-after": "1"}, body={"error": {"message": "slow down"}})
BUSY = ScriptedResponse(status=503, body={"error": {"message": "overloaded"}})
CLOSES = ScriptedResponse(body=CHAT.answer("Fine."), close_after=120)
GARBAGE = ScriptedResponse(body=b"\x00<html>\xff not JSON")

BEHAVIORS = {
    "is fine": ProviderBehavior(responses=(FINE,), expected_requests=1, state=CallState.COMMITTED),
    "stalls": ProviderBehavior(
        responses=(ScriptedResponse(stall=True),), expected_requests=1, state=CallState.IN_DOUBT, fault="timeout"
    ),
    "trickles": ProviderBehavior(
        responses=(dataclasses.replace(FINE, trickle_seconds=1),),
        expected_requests=1,
        state=CallState.IN_DOUBT,
        fault="timeout",
    ),
    "answers garbage": ProviderBehavior(
        responses=(GARBAGE,), expected_requests=TRIES, state=CallState.IN_DOUBT, fault="provider_error"
    ),
    "answers garbage once": ProviderBehavior(responses=(GARBAGE, FINE), expected_requests=2, state=CallState.COMMITTED),
    "throttles once": ProviderBehavior(responses=(THROTTLING, FINE), expected_requests=2, state=CallState.COMMITTED),
    "throttles for ever": ProviderBehavior(
        responses=(THROTTLING,), expected_requests=TRIES, state=CallState.REFUNDED, fault="throttled"
    ),
    "is busy once": ProviderBehavior(responses=(BUSY, FINE), expected_requests=2, state=CallState.COMMITTED),
    "is busy for ever": ProviderBehavior(
        responses=(BUSY,), expected_requests=TRIES, state=CallState.REFUNDED, fault="provider_error"
    ),
    "closes half-way": ProviderBehavior(
        responses=(CLOSES,), expected_requests=TRIES, state=CallState.IN_DOUBT, fault="provider_error"
    ),
    "closes half-way once": ProviderBehavior(responses=(CLOSES, FINE), expected_requests=2, state=CallState.COMMITTED),
    "breaks": ProviderBehavior(
        responses=(ScriptedResponse(status=500, body={}),),
        expected_requests=TRIES,
        state=CallState.COMMITTED,
        fault="provider_error",
    ),
    "rejects": ProviderBehavior(
        responses=(ScriptedResponse(status=400, body={"error": {"message": "no"}}),),
        expected_requests=1,
        state=CallState.COMMITTED,
        fault="rejected",
    ),
    "knows no key": ProviderBehavior(
        responses=(ScriptedResponse(status=401, body={"error": {"message": "who?"}}),),
        expected_requests=1,
        state=CallState.REFUNDED,
        fault="target_unavailable",
    ),
}


class CountingProvider:
    """Scripts by what is asked: a question is its manner and a number. It keeps its own count."""

    def __init__(self, server: ModelServer) -> None:
        self.count: Counter[str] = Counter()
        server.response_for = self.response_for

    def response_for(self, request: ReceivedRequest) -> ScriptedResponse:
        messages = request.body["messages"]
        assert isinstance(messages, list)
        question = str(messages[-1]["content"])
        scripts = BEHAVIORS[behavior_of(question)].responses
        self.count[question] += 1
        return scripts[min(self.count[question], len(scripts)) - 1]


def behavior_of(question: str) -> str:
    return question.rpartition(" ")[0]


def is_as_expected(result: ScenarioResult, question: str) -> bool:
    """Whether one call cost what its provider's manner is worth, and no more."""
    manner, call, (said,) = BEHAVIORS[behavior_of(question)], result.ledger_calls[question], result.outcomes[question]
    return (
        result.provider_calls[question] == manner.expected_requests
        and (call.state, call.fault) == (manner.state, manner.fault)
        and call.granted_attempts == 1
        and (said.text == manner.fault if said.is_fault else manner.fault is None)
    )


@pytest.fixture
def folder_fleet(breakable_broker: BrokerUnderTest, fast_queue_stats: None) -> Iterator[ProcessFleet]:
    """A fleet whose configuration is written once the provider's port is known."""
    with process_fleet(breakable_broker.url, "targets: {}", targets=["model"]) as fleet:
        yield fleet


@pytest.mark.every_broker
async def test_a_provider_misbehaves_in_every_way_at_once(
    folder_fleet: ProcessFleet, invariants: InvariantChecker
) -> None:
    fleet = folder_fleet
    questions = [f"{manner} {number}" for number in range(8 if is_long() else 2) for manner in BEHAVIORS]
    async with model_server() as server:
        provider = CountingProvider(server)
        config = CONFIG.format(url=server.url, timeout=TIMEOUT_SECONDS, tries=TRIES)
        (fleet.folder / "quintain.yaml").write_text(config)
        await asyncio.to_thread(fleet.start_services, "metadata", "worker", "worker")
        scenario = FaultScenario(fleet, questions, target="model", provider_counter=lambda: provider.count)
        after = await scenario.run("provider misbehaves", no_fault)
        strange = [question for question in questions if not is_as_expected(after, question)]
        assert strange == [], [
            (after.outcomes[name], after.ledger_calls[name], after.provider_calls[name]) for name in strange
        ]
        faults = frozenset(manner.fault for manner in BEHAVIORS.values() if manner.fault)
        await invariants.check(fleet, after, tries=TRIES, faults=faults)


@pytest.mark.long
async def test_a_provider_asks_for_a_long_pause(
    folder_fleet: ProcessFleet, questions: list[str], invariants: InvariantChecker
) -> None:
    fleet, loop = folder_fleet, asyncio.get_running_loop()
    count: Counter[str] = Counter()
    asked_at: list[float] = []

    def script_for(asked: ReceivedRequest) -> ScriptedResponse:
        messages = asked.body["messages"]
        assert isinstance(messages, list)
        count[str(messages[-1]["content"])] += 1
        asked_at.append(loop.time())
        return dataclasses.replace(THROTTLING, headers={"retry-after": str(PAUSE_SECONDS)}) if is_early() else FINE

    def is_early() -> bool:
        return loop.time() < asked_at[0] + PAUSE_SECONDS

    async with model_server() as server:
        server.response_for = script_for
        config = CONFIG.format(url=server.url, timeout=TIMEOUT_SECONDS, tries=TRIES)
        (fleet.folder / "quintain.yaml").write_text(config)
        await asyncio.to_thread(fleet.start_services, "metadata", "worker", "worker")
        after = await FaultScenario(fleet, questions, target="model", provider_counter=lambda: count).run(
            "provider asks for a pause", no_fault
        )
        # The first refusal pauses the target where it was heard; the other worker hears of it with its next heartbeat.
        since = [moment - asked_at[0] for moment in asked_at]
        kept = [seconds for seconds in since if DEFAULT_TIMINGS.heartbeat_seconds + 2 < seconds < PAUSE_SECONDS]
        assert kept == [], f"asked {kept} seconds after a provider asked for {PAUSE_SECONDS}"
        await invariants.check(fleet, after, tries=TRIES)
