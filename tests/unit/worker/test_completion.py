"""The end of calls: settled, then answered, then acknowledged, whatever the broker says in between."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from quintain.bus.base import Bus, Delivery, Envelope
from quintain.bus.memory import MemoryBroker, MemoryBus
from quintain.contracts.group import MAX_GROUP_BYTES, REPLY_GROUP_TYPE, decode_group
from quintain.contracts.invoke import FaultReply
from quintain.contracts.ledger import AttemptOutcome, Settle, SettleBatch
from quintain.contracts.message import Message
from quintain.errors import (
    BadRequest,
    BrokerRefused,
    BrokerUnavailable,
    BusError,
    Cancelled,
    Fault,
    QueueFull,
    Unroutable,
)
from quintain.rpc.requests import RpcClient
from quintain.topology import REPLY, Exchange
from quintain_worker.completion import Completion, Reply
from quintain_worker.ledger_port import BusLedgerPort
from support.quick import timings

FAULT = Cancelled("no")

#: Whether the caller reads groups of replies.
either_way = pytest.mark.parametrize("may_share", [True, False], ids=["shared", "alone"])


@dataclass
class ScriptedBus:
    """A broker that confirms what it gets unless ``refusals`` has an error for it; ``said`` is all that happened."""

    said: list[str] = field(default_factory=list)
    refusals: dict[str, list[BusError]] = field(default_factory=dict)
    batches: list[int] = field(default_factory=list)
    connected: bool = True

    async def publish(self, exchange: Exchange, key: str, envelope: Envelope, **_: object) -> None:
        names = self._names(exchange, envelope)
        self.said += [f"{name} sent" for name in names]
        await asyncio.sleep(0)  # the broker's confirm takes its time
        for name in names:
            if errors := self.refusals.get(name):
                raise errors.pop(0)
        self.said += [f"{name} confirmed" for name in names]

    def _names(self, exchange: Exchange, envelope: Envelope) -> list[str]:
        if exchange is not REPLY:
            items = SettleBatch.from_wire(envelope.body).items
            self.batches.append(len(items))
            return [f"settle {item.request_id}" for item in items]
        if envelope.type == REPLY_GROUP_TYPE:
            return [f"reply {item.correlation_id}" for item in decode_group(envelope.body)]
        return [f"reply {envelope.correlation_id}"]


class FakeDelivery:
    """A delivery that notes its acknowledgement."""

    def __init__(self, bus: ScriptedBus, name: str) -> None:
        self._bus, self.correlation_id, self.reply_to, self.exchange = bus, name, "caller", "invoke"

    async def ack(self) -> None:
        self._bus.said.append(f"{self.correlation_id} acknowledged")


@pytest.fixture
def bus() -> ScriptedBus:
    return ScriptedBus()


@pytest.fixture
def completion(bus: ScriptedBus) -> Completion:
    quick = timings(publish_pause_seconds=0.001)
    port = BusLedgerPort(cast(Bus, bus), RpcClient(cast(Bus, MemoryBus(MemoryBroker()))), quick)
    return Completion(cast(Bus, bus), port, "worker", quick)


def settle(name: str, padding: int = 0, said: str = "no") -> Settle:
    fields: dict[str, Any] = {"session_id": "s", "request_id": name, "attempt_id": "a" + name}
    fault = FaultReply.from_fault(Cancelled(said))
    return Settle(outcome=AttemptOutcome.CHARGED, fault=fault, reply="x" * padding, **fields)


def reply_to(bus: ScriptedBus, name: str, *, may_share: bool, answer: Message | Fault = FAULT) -> Reply:
    delivery = FakeDelivery(bus, name)
    return Reply(cast(Delivery, delivery), answer, name, delivery.ack, may_share_message=may_share)


@either_way
async def test_each_step_follows_the_broker_s_confirm_of_the_one_before(
    bus: ScriptedBus, completion: Completion, may_share: bool
) -> None:
    def note_settled(name: str) -> Callable[[], None]:
        return lambda: bus.said.append(f"{name} settled")

    await asyncio.gather(
        *(
            completion.finish(reply_to(bus, name, may_share=may_share), settle(name), note_settled(name))
            for name in "abc"
        )
    )
    for name in "abc":
        own = [said for said in bus.said if name in said.split()]
        steps = ["settle {} sent", "settle {} confirmed", "{} settled", "reply {} sent", "reply {} confirmed"]
        assert own == [step.format(name) for step in [*steps, "{} acknowledged"]]
    assert bus.batches == [3]


@either_way
@pytest.mark.parametrize("step", ["settle a", "reply a"])
@pytest.mark.parametrize("error", [BrokerUnavailable("away"), BrokerRefused("no")], ids=lambda one: type(one).__name__)
async def test_what_the_broker_did_not_confirm_is_sent_again_and_nothing_follows_before(
    bus: ScriptedBus, completion: Completion, may_share: bool, step: str, error: BusError
) -> None:
    bus.refusals = {step: [error, error]}
    await completion.finish(reply_to(bus, "a", may_share=may_share), settle("a"))
    first, then = ("settle a", "reply a")
    times = {first: 1, then: 1, step: 3}
    expected = [f"{first} sent"] * times[first] + [f"{first} confirmed"]
    assert bus.said == [*expected, *[f"{then} sent"] * times[then], f"{then} confirmed", "a acknowledged"]


@either_way
@pytest.mark.parametrize("gone", [Unroutable("gone"), QueueFull("full")], ids=lambda error: type(error).__name__)
async def test_a_delivery_whose_caller_is_gone_is_acknowledged(
    bus: ScriptedBus, completion: Completion, may_share: bool, gone: BusError
) -> None:
    bus.refusals = {"reply a": [gone]}
    await completion.finish(reply_to(bus, "a", may_share=may_share))
    assert bus.said == ["reply a sent", "a acknowledged"]


@either_way
async def test_an_answer_that_cannot_be_written_ends_its_own_call_alone(
    bus: ScriptedBus, completion: Completion, may_share: bool
) -> None:
    broken = reply_to(bus, "a", may_share=may_share, answer=FaultReply.from_fault(Cancelled("\ud800")))
    found = await asyncio.gather(
        completion.finish(broken, settle("a")),
        completion.finish(reply_to(bus, "b", may_share=may_share), settle("b")),
        return_exceptions=True,
    )
    assert isinstance(found[0], BadRequest)
    assert [said for said in bus.said if said.endswith("acknowledged")] == ["b acknowledged"]


@either_way
async def test_a_settle_that_cannot_be_written_ends_its_own_call_alone(
    bus: ScriptedBus, completion: Completion, may_share: bool
) -> None:
    found = await asyncio.gather(
        completion.finish(reply_to(bus, "a", may_share=may_share), settle("a", said="\ud800")),
        completion.finish(reply_to(bus, "b", may_share=may_share), settle("b")),
        return_exceptions=True,
    )
    assert isinstance(found[0], BadRequest)
    assert [said for said in bus.said if said.endswith("acknowledged")] == ["b acknowledged"]


@either_way
async def test_a_call_that_is_cancelled_is_settled_and_not_sent_again(
    bus: ScriptedBus, completion: Completion, may_share: bool
) -> None:
    bus.refusals = {"settle b": [BrokerUnavailable("away")]}
    tasks = [
        asyncio.ensure_future(completion.finish(reply_to(bus, name, may_share=may_share), settle(name)))
        for name in "ab"
    ]
    while "settle b sent" not in bus.said:
        await asyncio.sleep(0)
    tasks[1].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    # Both were in one message, which was not confirmed: that of the call that goes on is sent again.
    assert bus.batches == [2, 1]
    assert "a acknowledged" in bus.said
    assert not {"reply b sent", "b acknowledged"} & set(bus.said)


async def test_a_large_settle_goes_alone_and_the_others_around_it_together(
    bus: ScriptedBus, completion: Completion
) -> None:
    sizes = (0, 0, MAX_GROUP_BYTES + 1, 0, 0, 0)
    await asyncio.gather(*(completion.settle(settle(str(number), size)) for number, size in enumerate(sizes)))
    assert bus.batches == [2, 1, 3]
    assert [said for said in bus.said if said.endswith("confirmed")] == [f"settle {n} confirmed" for n in range(6)]
