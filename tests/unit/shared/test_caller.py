"""Asking over the bus: one reply queue, many questions, and every one of them ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from quintain.bus.base import Bus, Delivery, Envelope
from quintain.bus.memory import MemoryBroker
from quintain.caller import Caller, Question
from quintain.contracts.metadata import AskInfo, CallsReleased, ReleaseCalls
from quintain.errors import BusError, InternalFault, NoAnswer, Overloaded, Unroutable
from quintain.routes import INFO, RELEASE
from quintain.service import reply
from quintain.topology import METADATA, METADATA_QUEUE, METADATA_TOPOLOGY, REPLY, UNROUTED


class Service:
    """Whoever consumes the metadata queue, as a test wants it: keeps what it is asked until told what to answer."""

    def __init__(self, bus: Bus) -> None:
        self.bus = bus
        self.asked: asyncio.Queue[Delivery] = asyncio.Queue()

    async def start(self) -> None:
        await self.bus.declare(METADATA_TOPOLOGY)
        await self.bus.consume(METADATA_QUEUE, self._take, prefetch=100)

    async def _take(self, delivery: Delivery) -> None:
        await delivery.ack()
        self.asked.put_nowait(delivery)

    async def say(self, to: Delivery, kind: str, body: bytes) -> None:
        envelope = Envelope(body=body, type=kind, correlation_id=to.correlation_id)
        await self.bus.publish(REPLY, to.reply_to or "", envelope)


@pytest.fixture
async def memory() -> AsyncIterator[MemoryBroker]:
    memory = MemoryBroker()
    yield memory
    memory.close()


@pytest.fixture
async def service(memory: MemoryBroker) -> AsyncIterator[Service]:
    bus = memory.connect()
    service = Service(bus)
    await service.start()
    yield service
    await bus.close()


@pytest.fixture
async def caller(memory: MemoryBroker) -> AsyncIterator[Caller]:
    bus = memory.connect()
    caller = Caller(bus)
    await caller.start()
    yield caller
    await caller.close()
    await bus.close()


def released(caller: Caller, name: str, *, seconds: float = 10) -> asyncio.Task[CallsReleased]:
    ask = ReleaseCalls(request_ids=[name])
    return asyncio.get_running_loop().create_task(caller.request(RELEASE, ask, {}, timeout_seconds=seconds))


async def test_many_questions_are_answered_out_of_order_each_with_its_own(caller: Caller, service: Service) -> None:
    asking = [released(caller, f"r{number}") for number in range(20)]
    asked = [await service.asked.get() for _ in asking]
    assert caller.in_flight == 20
    for delivery in reversed(asked):
        number = int(ReleaseCalls.from_wire(delivery.body).request_ids[0][1:])
        await reply(service.bus, delivery, CallsReleased(released=number))
    assert [(await one).released for one in asking] == list(range(20))
    assert (caller.in_flight, caller.unmatched) == (0, 0)


async def test_a_question_carries_what_its_answer_needs(caller: Caller, service: Service) -> None:
    asking = released(caller, "r1", seconds=5)
    delivery = await service.asked.get()
    assert (delivery.type, delivery.routing_key, delivery.reply_to) == ("release", "release", caller.reply_key)
    assert delivery.expiration_ms is not None
    assert 4000 < delivery.expiration_ms <= 5000
    assert len(delivery.correlation_id or "") >= 22  # 128 bits and more: nobody guesses it
    await reply(service.bus, delivery, CallsReleased(released=1))
    await asking


async def test_a_reply_nobody_waits_for_is_acknowledged_and_counted(memory: MemoryBroker, service: Service) -> None:
    bus = memory.connect()
    caller = Caller(bus)
    await caller.start()
    asking = released(caller, "r1")
    delivery = await service.asked.get()
    stray = Envelope(body=b"{}", type="result", correlation_id="nobody's")
    await service.bus.publish(REPLY, caller.reply_key, stray)
    await service.bus.publish(REPLY, caller.reply_key, Envelope(body=b"{}", type="result"))
    for _ in range(2):
        await reply(service.bus, delivery, CallsReleased(released=1))
    assert (await asking).released == 1
    # The replies come in order: when a later question is answered, the earlier ones have been dealt with.
    later = released(caller, "r2")
    await reply(service.bus, await service.asked.get(), CallsReleased(released=2))
    await later
    assert caller.unmatched == 3
    await bus.close()  # what was not acknowledged comes back now
    assert not memory.queue(f"quintain.reply.{caller.reply_key}").ready


async def test_a_message_of_an_unknown_type_is_not_the_answer(caller: Caller, service: Service) -> None:
    asking = released(caller, "r1")
    delivery = await service.asked.get()
    for kind in ("progress", "chunk", "of a later version", ""):
        await service.say(delivery, kind, b"not even JSON")
    await reply(service.bus, delivery, CallsReleased(released=1))
    assert (await asking).released == 1


async def test_a_question_without_an_answer_ends_with_its_deadline(caller: Caller, service: Service) -> None:
    with pytest.raises(NoAnswer, match=r"No answer to release within 0\.\d s"):
        await released(caller, "r1", seconds=0.05)
    assert caller.in_flight == 0
    late = await service.asked.get()
    await reply(service.bus, late, CallsReleased(released=1))
    await asyncio.sleep(0)
    assert caller.unmatched == 1


async def test_whoever_is_cancelled_leaves_nothing_pending(caller: Caller, service: Service) -> None:
    asking = released(caller, "r1")
    await service.asked.get()
    assert caller.in_flight == 1
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert caller.in_flight == 0


async def test_a_question_that_cannot_be_published_leaves_nothing_pending(caller: Caller) -> None:
    question = Question(exchange=METADATA, key="info", type="info", body=b"", headers={}, deadline_seconds=5)
    with pytest.raises(Unroutable):
        await caller.ask(question)
    unknown = Question(exchange=UNROUTED, key="", type="invoke", body=b"", headers={}, deadline_seconds=5)
    with pytest.raises(BusError):
        await caller.ask(unknown)
    assert caller.in_flight == 0


async def test_a_service_that_comes_up_late_is_waited_for(memory: MemoryBroker, caller: Caller) -> None:
    asking = released(caller, "r1")
    await asyncio.sleep(0.01)
    assert not asking.done()
    bus = memory.connect()
    service = Service(bus)
    await service.start()
    async with asyncio.timeout(5):
        await reply(bus, await service.asked.get(), CallsReleased(released=3))
        assert (await asking).released == 3
    await bus.close()


async def test_a_service_that_never_comes_up_is_said_with_its_mend(caller: Caller) -> None:
    with pytest.raises(NoAnswer, match=r"nothing consumes quintain\.metadata.*`quintain serve metadata`"):
        await released(caller, "r1", seconds=0.1)
    assert caller.in_flight == 0


async def test_the_wait_for_a_service_and_for_its_answer_share_one_deadline(
    memory: MemoryBroker, caller: Caller
) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    asking = released(caller, "r1", seconds=0.6)
    await asyncio.sleep(0.3)
    bus = memory.connect()
    await Service(bus).start()  # it takes the question, and never answers
    with pytest.raises(NoAnswer):
        await asking
    assert loop.time() - began < 0.85
    await bus.close()


async def test_a_fault_is_raised_as_what_it_is(caller: Caller, service: Service) -> None:
    asking = released(caller, "r1")
    await reply(service.bus, await service.asked.get(), Overloaded("paused", retry_after_ms=70))
    with pytest.raises(Overloaded, match="^paused$") as fault:
        await asking
    assert fault.value.retry_after_ms == 70


@pytest.mark.parametrize(("kind", "body"), [("result", b"{}"), ("result", b"junk"), ("fault", b'{"error": 7}')])
async def test_an_answer_nobody_can_read_is_not_the_askers_mistake(
    caller: Caller, service: Service, kind: str, body: bytes
) -> None:
    asking = released(caller, "r1")
    await service.say(await service.asked.get(), kind, body)
    with pytest.raises(InternalFault, match="cannot be read") as fault:
        await asking
    assert not fault.value.retryable


async def test_the_reply_queue_lost_and_found_again_loses_no_question(
    memory: MemoryBroker, caller: Caller, service: Service
) -> None:
    asking = released(caller, "r1")
    delivery = await service.asked.get()
    memory.delete_queue(f"quintain.reply.{caller.reply_key}")
    async with asyncio.timeout(5):
        while True:
            try:
                await service.say(delivery, "result", b'{"released": 4}')
                break
            except Unroutable:
                await asyncio.sleep(0)
        assert (await asking).released == 4


async def test_two_clients_never_share_a_reply_key(memory: MemoryBroker) -> None:
    bus = memory.connect()
    keys = {Caller(bus, user="alice").reply_key for _ in range(50)}
    assert len(keys) == 50
    assert all(key.startswith("alice.") and len(key) >= len("alice.") + 22 for key in keys)
    await bus.close()


async def test_whoever_goes_leaves_a_queue_that_is_not_consumed(memory: MemoryBroker, service: Service) -> None:
    bus = memory.connect()
    caller = Caller(bus)
    await caller.start()
    await caller.close()
    await service.bus.publish(REPLY, caller.reply_key, Envelope(body=b"{}", type="result", correlation_id="x"))
    assert len(memory.queue(f"quintain.reply.{caller.reply_key}").ready) == 1
    assert caller.unmatched == 0
    await bus.close()


async def test_the_routes_answer_is_what_it_promises(caller: Caller, service: Service) -> None:
    asking = asyncio.get_running_loop().create_task(caller.request(INFO, AskInfo(), {"x-quintain-session": "t"}))
    delivery = await service.asked.get()
    assert dict(delivery.headers) == {"x-quintain-session": "t"}
    wire = (
        b'{"sessionId": "s", "targetName": "a", "maxCalls": 1, "callCount": 0, "availableTargets": [],'
        b' "tokenUsage": {"input": 0, "output": 0}, "state": "open", "now": 5}'
    )
    await service.say(delivery, "result", wire)
    assert (await asking).now == 5
