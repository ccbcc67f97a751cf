"""The end of calls: settled, then answered, whatever the broker says in between."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from quintain.bus.base import Bus, Delivery, Envelope
from quintain.bus.memory import MemoryBroker, MemoryBus
from quintain.contracts.group import MAX_GROUP_BYTES, REPLY_GROUP_TYPE, decode_group
from quintain.contracts.invoke import FaultReply
from quintain.contracts.ledger import AttemptOutcome, Settle, SettleBatch
from quintain.errors import (
    BadRequest,
    BrokerRefused,
    BrokerUnavailable,
    BusError,
    Cancelled,
    QueueFull,
    Unroutable,
)
from quintain.rpc.requests import RpcClient
from quintain.timings import Clock
from quintain.topology import REPLY, Exchange
from quintain_worker.call import Call, CallMessage
from quintain_worker.call_runner import CallRunner
from quintain_worker.ledger_client import BusLedgerPort
from quintain_worker.response import Reply
from quintain_worker.target import WorkerMetrics, WorkerTarget
from support.quick import timings
from support.running_worker import GatedProvider

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


def call_of(name: str, *, may_share: bool) -> Call:
    delivery = SimpleNamespace(correlation_id=name, reply_to="caller", headers={})
    target = WorkerTarget(name="a", provider=GatedProvider())
    return Call(target, CallMessage(cast(Delivery, delivery)), reads_groups=may_share)


@pytest.fixture
def bus() -> ScriptedBus:
    return ScriptedBus()


@pytest.fixture
def runner(bus: ScriptedBus) -> CallRunner:
    quick = timings(publish_pause_seconds=0.001)
    port = BusLedgerPort(cast(Bus, bus), RpcClient(cast(Bus, MemoryBus(MemoryBroker()))), quick)
    return CallRunner(cast(Bus, bus), port, Clock(), "worker", WorkerMetrics(), quick)


def settle(name: str, padding: int = 0, said: str = "no") -> Settle:
    fields: dict[str, Any] = {"session_id": "s", "request_id": name, "attempt_id": "a" + name}
    fault = FaultReply.from_fault(Cancelled(said))
    return Settle(outcome=AttemptOutcome.CHARGED, fault=fault, reply="x" * padding, **fields)


async def finish(
    runner: CallRunner, name: str, *, may_share: bool, answer: Any = FAULT, settled: Settle | None = None
) -> None:
    """Settle a call, then answer it."""
    await runner.settles.settle(settled or settle(name))
    await runner.answer(call_of(name, may_share=may_share), Reply(answer))


@either_way
async def test_each_step_follows_the_broker_s_confirm_of_the_one_before(
    bus: ScriptedBus, runner: CallRunner, may_share: bool
) -> None:
    await asyncio.gather(*(finish(runner, name, may_share=may_share) for name in "abc"))
    for name in "abc":
        own = [said for said in bus.said if name in said.split()]
        steps = ["settle {} sent", "settle {} confirmed", "reply {} sent", "reply {} confirmed"]
        assert own == [step.format(name) for step in steps]
    assert bus.batches == [3]


@either_way
@pytest.mark.parametrize("step", ["settle a", "reply a"])
@pytest.mark.parametrize("error", [BrokerUnavailable("away"), BrokerRefused("no")], ids=lambda one: type(one).__name__)
async def test_what_the_broker_did_not_confirm_is_sent_again_and_nothing_follows_before(
    bus: ScriptedBus, runner: CallRunner, may_share: bool, step: str, error: BusError
) -> None:
    bus.refusals = {step: [error, error]}
    await finish(runner, "a", may_share=may_share)
    first, then = ("settle a", "reply a")
    times = {first: 1, then: 1, step: 3}
    expected = [f"{first} sent"] * times[first] + [f"{first} confirmed"]
    assert bus.said == [*expected, *[f"{then} sent"] * times[then], f"{then} confirmed"]


@either_way
@pytest.mark.parametrize("gone", [Unroutable("gone"), QueueFull("full")], ids=lambda error: type(error).__name__)
async def test_a_caller_that_is_gone_needs_no_reply(
    bus: ScriptedBus, runner: CallRunner, may_share: bool, gone: BusError
) -> None:
    bus.refusals = {"reply a": [gone]}
    await runner.answer(call_of("a", may_share=may_share), Reply(FAULT))
    assert bus.said == ["reply a sent"]


@either_way
async def test_an_answer_that_cannot_be_written_ends_its_own_call_alone(
    bus: ScriptedBus, runner: CallRunner, may_share: bool
) -> None:
    found = await asyncio.gather(
        finish(runner, "a", may_share=may_share, answer=Cancelled("\ud800")),
        finish(runner, "b", may_share=may_share),
        return_exceptions=True,
    )
    assert (type(found[0]), found[1]) == (BadRequest, None)
    assert [said for said in bus.said if said.startswith("reply")] == ["reply b sent", "reply b confirmed"]


@either_way
async def test_a_settle_that_cannot_be_written_ends_its_own_call_alone(
    bus: ScriptedBus, runner: CallRunner, may_share: bool
) -> None:
    found = await asyncio.gather(
        finish(runner, "a", may_share=may_share, settled=settle("a", said="\ud800")),
        finish(runner, "b", may_share=may_share),
        return_exceptions=True,
    )
    assert (type(found[0]), found[1]) == (BadRequest, None)
    assert [said for said in bus.said if said.startswith("reply")] == ["reply b sent", "reply b confirmed"]


@either_way
async def test_a_call_that_is_cancelled_is_settled_and_not_sent_again(
    bus: ScriptedBus, runner: CallRunner, may_share: bool
) -> None:
    bus.refusals = {"settle b": [BrokerUnavailable("away")]}
    tasks = [asyncio.ensure_future(finish(runner, name, may_share=may_share)) for name in "ab"]
    while "settle b sent" not in bus.said:
        await asyncio.sleep(0)
    tasks[1].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    # Both were in one message, which was not confirmed: that of the call that goes on is sent again.
    assert bus.batches == [2, 1]
    assert "reply a confirmed" in bus.said
    assert "reply b sent" not in bus.said


async def test_a_large_settle_goes_alone_and_the_others_around_it_together(
    bus: ScriptedBus, runner: CallRunner
) -> None:
    sizes = (0, 0, MAX_GROUP_BYTES + 1, 0, 0, 0)
    await asyncio.gather(*(runner.settles.settle(settle(str(number), size)) for number, size in enumerate(sizes)))
    assert bus.batches == [2, 1, 3]
    assert [said for said in bus.said if said.endswith("confirmed")] == [f"settle {n} confirmed" for n in range(6)]
