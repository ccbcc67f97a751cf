"""Every service stopped and started anew, one after another, while clients over AMQP and HTTP call without pause."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

import quintain
from faults.invariants import InvariantChecker
from faults.ledger_calls import read_calls
from faults.scenario import (
    BOT,
    CONFIG,
    CallOutcome,
    FaultScenario,
    ScenarioResult,
    send_until_accepted,
    wait_until_idle,
)
from quintain.contracts.invoke import InvokeRequest
from quintain.contracts.session import SessionOpened
from support.process_fleet import Process, ProcessFleet, process_fleet
from support.recording_bus import recording_client
from support.servers.ports import free_port
from support.servers.rabbitmq_admin import BrokerUnderTest

#: A target that runs hosted: it writes down what it is asked, as `BOT` does.
AGENT = """
import pathlib, secrets

def answer(prompt: str) -> str:
    with pathlib.Path(__file__).with_name("provider-count").open("a") as count:
        count.write(prompt + "\\n")
    return f"answer {secrets.token_hex(4)} to {prompt}"
"""

HOSTED = "  agent: {provider: target, host: rolling, max_concurrency: 2}\n"

#: Loops that ask one call after another: their way, and their target.
CALLERS = [("amqp", "bot")] * 3 + [("http", "bot")] * 3 + [("amqp", "agent"), ("http", "agent")]

#: How many answers show that the fleet is at work, before the next service is restarted.
ANSWERS_BETWEEN = 30

MAX_CALLS = 100_000


@dataclass
class RestartableFleet:
    """A whole fleet, each service of which can be had anew."""

    fleet: ProcessFleet
    gateway_port: int = field(default_factory=free_port)
    running: dict[str, Process] = field(default_factory=dict)

    @property
    def gateway_url(self) -> str:
        return f"http://127.0.0.1:{self.gateway_port}"

    def start(self, name: str) -> None:
        """Start this service, and wait until it answers."""
        service = name.rstrip("12")
        words = {
            "gateway": ("--port", str(self.gateway_port)),
            "host": ("agent:answer", "--name", "rolling", "--slots", "2"),
        }
        self.running[name] = self.fleet.start("serve", service, *words.get(service, ()))
        self.running[name].wait_for_output(f"ready  {service}")

    def restart(self, name: str) -> None:
        """SIGTERM, its end, and another one in its place."""
        assert self.running[name].stop() == 0, self.running[name].read_output()
        self.start(name)


@pytest.fixture
def restartable_fleet(breakable_broker: BrokerUnderTest, fast_queue_stats: None) -> Iterator[RestartableFleet]:
    with process_fleet(breakable_broker.url, CONFIG + HOSTED, targets=["bot", "agent"]) as fleet:
        (fleet.folder / "bot.py").write_text(BOT)
        (fleet.folder / "agent.py").write_text(AGENT)
        rolling = RestartableFleet(fleet)
        for name in ("metadata", "worker1", "worker2", "gateway", "host"):
            rolling.start(name)
        yield rolling


@dataclass
class CallerLoad:
    """Loops that ask without pause until they are told to stop; each question once, until its answer is there."""

    outcomes: dict[str, list[CallOutcome]] = field(default_factory=dict)
    stopped: bool = False
    numbers: Iterator[int] = field(default_factory=itertools.count)

    async def call_until_stopped(self, client: quintain.Client, target: str) -> None:
        while not self.stopped:
            question = f"q{next(self.numbers)}"
            self.outcomes[question] = []
            request = InvokeRequest(question=question, target=target)
            self.outcomes[question].append(await call_with_retry(client, request))

    async def wait_for_answers(self) -> None:
        """Wait for more answers."""
        wanted = len(self.outcomes) + ANSWERS_BETWEEN
        async with asyncio.timeout(60):
            while len(self.outcomes) < wanted:
                await asyncio.sleep(0.05)


async def call_with_retry(client: quintain.Client, request: InvokeRequest) -> CallOutcome:
    """One call; where no gateway answers, or its connection is lost, asked again under the same id."""
    while True:
        try:
            return await send_until_accepted(client, request, deadline_seconds=60)
        except quintain.GatewayUnavailable:
            await asyncio.sleep(0.2)


@pytest.mark.long
async def test_every_service_is_restarted_and_no_call_is_lost(
    restartable_fleet: RestartableFleet, invariants: InvariantChecker
) -> None:
    fleet, load = restartable_fleet.fleet, CallerLoad()
    session: SessionOpened = await asyncio.to_thread(fleet.open_session, "bot", MAX_CALLS)
    async with (
        recording_client(fleet.broker_url, session.token) as over_amqp,
        quintain.connect(restartable_fleet.gateway_url, session.token) as over_http,
    ):
        ways = {"amqp": over_amqp.client, "http": over_http}
        loops = [asyncio.create_task(load.call_until_stopped(ways[way], target)) for way, target in CALLERS]
        for name in list(restartable_fleet.running):
            await load.wait_for_answers()
            await asyncio.to_thread(restartable_fleet.restart, name)
        await load.wait_for_answers()
        load.stopped = True
        await asyncio.gather(*loops)
        info = await wait_until_idle(over_amqp.client)
        heard = {question: list(over_amqp.reply_texts[question]) for question in load.outcomes}
    after = ScenarioResult(
        fault="every service restarted in turn",
        max_calls=MAX_CALLS,
        session=session,
        outcomes=load.outcomes,
        reply_texts=heard,
        repeated_outcomes={},
        info=info,
        ledger_calls=await read_calls(fleet.ledger_url, session.session_id),
        provider_calls=FaultScenario(fleet, ()).provider_count(),
    )
    assert set(after.provider_calls.values()) == {1}
    assert info.call_count == info.committed == len(load.outcomes)
    # It goes first: each of its slots has connections of its own.
    assert await asyncio.to_thread(restartable_fleet.running["host"].stop) == 0
    await invariants.check(fleet, after)
