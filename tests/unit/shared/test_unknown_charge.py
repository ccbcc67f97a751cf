"""What no ledger decided: the client asks again under the same request id, and claims nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import pytest

from quintain.bus.base import Delivery
from quintain.bus.memory import MemoryBroker, MemoryBus
from quintain.client import amqp_transport
from quintain.client.amqp_transport import AmqpTransport
from quintain.client.client import Client
from quintain.contracts.credentials import SessionToken
from quintain.contracts.headers import DEADLINE_HEADER, REQUEST_ID_HEADER
from quintain.contracts.invoke import InvokeRequest, OutputMessage, Result
from quintain.contracts.message import Message
from quintain.errors import BudgetUnavailable, Cancelled, Expired, Fault, Overloaded
from quintain.rpc.requests import RpcClient
from quintain.rpc.server import send_reply
from quintain.topology import target_queue, target_topology

ANSWER = Result(output=[OutputMessage(content="yes")], target="a", call_count=1, max_calls=2)


@dataclass
class ScriptedFleet:
    """Answers each request with the next word of a script; the last one is repeated."""

    bus: MemoryBus
    client: Client
    script: list[Message | Fault] = field(default_factory=list)
    heard: list[Delivery] = field(default_factory=list)

    async def on_delivery(self, delivery: Delivery) -> None:
        self.heard.append(delivery)
        answer = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        await send_reply(self.bus, delivery, answer)
        await delivery.ack()

    async def send(self, *, deadline_seconds: float = 5) -> Result:
        return await self.client.send(InvokeRequest(question="x", target="a"), deadline_seconds=deadline_seconds)


@pytest.fixture
async def fleet(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ScriptedFleet]:
    monkeypatch.setattr(amqp_transport, "FIRST_PAUSE_SECONDS", 0.02)
    memory = MemoryBroker()
    bus = memory.connect()
    rpc_client = RpcClient(bus)
    await bus.declare(target_topology("a"))
    await rpc_client.start()
    scripted = ScriptedFleet(bus, Client(AmqpTransport(rpc_client, SessionToken.mint().text)))
    await bus.consume(target_queue("a"), scripted.on_delivery, prefetch=10)
    yield scripted
    await rpc_client.close()
    await bus.close()
    memory.close()


@pytest.mark.parametrize(
    "unknown", [BudgetUnavailable, lambda: Overloaded(charge_unknown=True)], ids=["ledger away", "many duplicates"]
)
async def test_the_same_request_is_sent_again_until_a_ledger_has_spoken(
    fleet: ScriptedFleet, unknown: Callable[[], Fault]
) -> None:
    fleet.script = [unknown(), unknown(), ANSWER]
    assert (await fleet.send()).raw_text == "yes"
    assert len(fleet.heard) == 3
    same = {(seen.body, seen.headers[REQUEST_ID_HEADER], seen.headers[DEADLINE_HEADER]) for seen in fleet.heard}
    assert len(same) == 1


async def test_at_the_deadline_the_caller_is_told_that_nothing_is_known(fleet: ScriptedFleet) -> None:
    fleet.script = [BudgetUnavailable()]
    began = asyncio.get_running_loop().time()
    with pytest.raises(BudgetUnavailable) as told:
        await fleet.send(deadline_seconds=0.3)
    assert told.value.charged is None
    assert asyncio.get_running_loop().time() - began <= 0.5
    assert len(fleet.heard) > 2


@pytest.mark.parametrize(
    "word",
    [Overloaded("the session is paused"), Cancelled(charged=True), Expired(), Expired(charge_unknown=True)],
    ids=["paused", "charged", "uncharged", "past its deadline"],
)
async def test_words_of_a_ledger_and_the_end_of_the_time_are_passed_on(fleet: ScriptedFleet, word: Fault) -> None:
    fleet.script = [word]
    with pytest.raises(type(word)) as told:
        await fleet.send()
    assert told.value.charged == word.charged
    assert len(fleet.heard) == 1
