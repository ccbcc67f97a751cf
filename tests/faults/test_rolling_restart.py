"""Every service stopped and started anew, one after another, while clients over AMQP and HTTP call without pause."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

import quintain
from faults.harness import BOT, CONFIG, Aftermath, Said, Siege, ask, settled
from faults.ledger_books import books_of
from faults.reckoning import Reckoning
from quintain.client.http_client import HttpClient
from quintain.contracts.invoke import InvokeRequest
from quintain.contracts.metadata import SessionOpened
from support.fleet import Process, ProcessFleet, process_fleet
from support.hearing_bus import evaluator
from support.servers.ports import free_port
from support.servers.rabbitmq_admin import BrokerUnderTest

#: A target that runs hosted: it writes down what it is asked, as `BOT` does.
AGENT = """
import pathlib, secrets
from quintain.target import *

USER = SecurityDomainTag("user")
QUESTION = Controllable("question", USER)
COUNT = pathlib.Path(__file__).with_name("provider-count")

class Agent(Target):
    security_domain = SecurityDomain([USER])
    config_specs = []
    query_specs = [QuerySpec("reply", "the last reply")]
    reply = ""

    def set_config(self, name, value):
        raise ValueError(name)

    def query(self, name, **params):
        return self.reply

    def get_controllables(self):
        return [QUESTION]

    def get_observables(self):
        return []

    async def run(self, emit, send_event):
        question = (await send_event(ControllablePreCallEvent(controllable=QUESTION, request="?"))).value
        with COUNT.open("a") as count:
            count.write(question + "\\n")
        self.reply = f"answer {secrets.token_hex(4)} to {question}"

    async def reset_ephemeral_state(self):
        pass

    async def teardown(self):
        pass
"""

HOSTED = "  agent: {provider: target, host: rolling, query: reply, max_concurrency: 2}\n"

#: Loops that ask one call after another: their way, and their target.
CALLERS = [("amqp", "bot")] * 3 + [("http", "bot")] * 3 + [("amqp", "agent"), ("http", "agent")]

#: How many answers show that the fleet is at work, before the next service is restarted.
ANSWERS_BETWEEN = 30

MAX_CALLS = 100_000


@dataclass
class Rolling:
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
            "host": ("agent:Agent", "--name", "rolling", "--slots", "2"),
        }
        self.running[name] = self.fleet.start("serve", service, *words.get(service, ()))
        self.running[name].until(f"ready  {service}")

    def restart(self, name: str) -> None:
        """SIGTERM, its end, and another one in its place."""
        assert self.running[name].stop() == 0, self.running[name].text()
        self.start(name)


@pytest.fixture
def rolling(breakable_broker: BrokerUnderTest, quick_counts: None) -> Iterator[Rolling]:
    with process_fleet(breakable_broker.url, CONFIG + HOSTED, targets=["bot", "agent"]) as fleet:
        (fleet.folder / "bot.py").write_text(BOT)
        (fleet.folder / "agent.py").write_text(AGENT)
        rolling = Rolling(fleet)
        for name in ("metadata", "worker1", "worker2", "gateway", "host"):
            rolling.start(name)
        yield rolling


@dataclass
class Load:
    """Loops that ask without pause until they are told to stop; each question once, until its answer is there."""

    said: dict[str, list[Said]] = field(default_factory=dict)
    over: bool = False
    numbers: Iterator[int] = field(default_factory=itertools.count)

    async def ask_on(self, client: quintain.client.client.Client | HttpClient, target: str) -> None:
        while not self.over:
            question = f"q{next(self.numbers)}"
            self.said[question] = []
            request = InvokeRequest(question=question, target=target)
            self.said[question].append(await ask_patiently(client, request))

    async def more(self) -> None:
        """Wait for more answers."""
        wanted = len(self.said) + ANSWERS_BETWEEN
        async with asyncio.timeout(60):
            while len(self.said) < wanted:
                await asyncio.sleep(0.05)


async def ask_patiently(client: quintain.client.client.Client | HttpClient, request: InvokeRequest) -> Said:
    """One call; where no gateway answers, or its connection is lost, asked again under the same id."""
    while True:
        try:
            return await ask(client, request, deadline_seconds=60)
        except quintain.GatewayUnavailable:
            await asyncio.sleep(0.2)


@pytest.mark.long
async def test_every_service_is_restarted_and_no_call_is_lost(rolling: Rolling, reckoning: Reckoning) -> None:
    fleet, load = rolling.fleet, Load()
    session: SessionOpened = await asyncio.to_thread(fleet.open_session, "bot", MAX_CALLS)
    async with (
        evaluator(fleet.broker_url, session.token) as over_amqp,
        quintain.connect(rolling.gateway_url, session.token) as over_http,
    ):
        ways = {"amqp": over_amqp.client, "http": over_http}
        loops = [asyncio.create_task(load.ask_on(ways[way], target)) for way, target in CALLERS]
        for name in list(rolling.running):
            await load.more()
            await asyncio.to_thread(rolling.restart, name)
        await load.more()
        load.over = True
        await asyncio.gather(*loops)
        info = await settled(over_amqp.client)
        heard = {question: list(over_amqp.heard[question]) for question in load.said}
    after = Aftermath(
        fault="every service restarted in turn",
        max_calls=MAX_CALLS,
        session=session,
        said=load.said,
        heard=heard,
        again={},
        info=info,
        books=await books_of(fleet.ledger_url, session.session_id),
        provider=Siege(fleet, ()).provider_count(),
    )
    assert set(after.provider.values()) == {1}
    assert info.call_count == info.committed == len(load.said)
    # It goes first: each of its slots has connections of its own.
    assert await asyncio.to_thread(rolling.running["host"].stop) == 0
    await reckoning.hold(fleet, after)
