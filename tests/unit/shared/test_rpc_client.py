"""NumberedRequest over the bus: one reply queue, many questions, and every one of them ends."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest

from quintain.bus.base import Bus, Delivery, Envelope
from quintain.bus.memory import MemoryBroker, MemoryBus
from quintain.contracts.session import CallsReleased, ReleaseCalls
from quintain.errors import BusError, InternalFault, NoAnswer, Overloaded, QueueFull, Unroutable
from quintain.routes import RELEASE
from quintain.rpc.requests import RpcClient, RpcRequest
from quintain.rpc.server import send_reply
from quintain.topology import METADATA, METADATA_QUEUE, METADATA_TOPOLOGY, REPLY, UNROUTED, Exchange


class ScriptedService:
    """Whoever consumes the metadata queue, as a test wants it: keeps what it is asked until told what to answer."""

    def __init__(self, bus: Bus) -> None:
        self.bus = bus
        self.requests: asyncio.Queue[Delivery] = asyncio.Queue()

    async def start(self) -> None:
        await self.bus.declare(METADATA_TOPOLOGY)
        await self.bus.consume(METADATA_QUEUE, self._on_request, prefetch=100)

    async def _on_request(self, delivery: Delivery) -> None:
        await delivery.ack()
        self.requests.put_nowait(delivery)

    async def reply(self, to: Delivery, amqp_type: str, body: bytes) -> None:
        envelope = Envelope(body=body, type=amqp_type, correlation_id=to.correlation_id)
        await self.bus.publish(REPLY, to.reply_to or "", envelope)


@pytest.fixture
async def memory() -> AsyncIterator[MemoryBroker]:
    memory = MemoryBroker()
    yield memory
    memory.close()


@pytest.fixture
async def service(memory: MemoryBroker) -> AsyncIterator[ScriptedService]:
    bus = memory.connect()
    service = ScriptedService(bus)
    await service.start()
    yield service
    await bus.close()


@pytest.fixture
async def rpc_client(memory: MemoryBroker) -> AsyncIterator[RpcClient]:
    bus = memory.connect()
    caller = RpcClient(bus)
    await caller.start()
    yield caller
    await caller.close()
    await bus.close()


def start_release(rpc_client: RpcClient, name: str, *, seconds: float = 10) -> asyncio.Task[CallsReleased]:
    ask = ReleaseCalls(request_ids=[name])
    return asyncio.get_running_loop().create_task(rpc_client.call_route(RELEASE, ask, {}, timeout_seconds=seconds))


async def test_many_questions_are_answered_out_of_order_each_with_its_own(
    rpc_client: RpcClient, service: ScriptedService
) -> None:
    asking = [start_release(rpc_client, f"r{number}") for number in range(20)]
    asked = [await service.requests.get() for _ in asking]
    assert rpc_client.in_flight == 20
    for delivery in reversed(asked):
        number = int(ReleaseCalls.from_wire(delivery.body).request_ids[0][1:])
        await send_reply(service.bus, delivery, CallsReleased(released=number))
    assert [(await one).released for one in asking] == list(range(20))
    assert (rpc_client.in_flight, rpc_client.unmatched_replies) == (0, 0)


async def test_a_question_carries_what_its_answer_needs(rpc_client: RpcClient, service: ScriptedService) -> None:
    asking = start_release(rpc_client, "r1", seconds=5)
    delivery = await service.requests.get()
    assert (delivery.type, delivery.routing_key, delivery.reply_to) == ("release", "release", rpc_client.reply_key)
    assert delivery.expiration_ms is not None
    assert 4000 < delivery.expiration_ms <= 5000
    assert len(delivery.correlation_id or "") >= 22  # 128 bits and more: nobody guesses it
    await send_reply(service.bus, delivery, CallsReleased(released=1))
    await asking


async def test_a_reply_nobody_waits_for_is_acknowledged_and_counted(
    memory: MemoryBroker, service: ScriptedService
) -> None:
    bus = memory.connect()
    caller = RpcClient(bus)
    await caller.start()
    asking = start_release(caller, "r1")
    delivery = await service.requests.get()
    stray = Envelope(body=b"{}", type="result", correlation_id="nobody's")
    await service.bus.publish(REPLY, caller.reply_key, stray)
    await service.bus.publish(REPLY, caller.reply_key, Envelope(body=b"{}", type="result"))
    for _ in range(2):
        await send_reply(service.bus, delivery, CallsReleased(released=1))
    assert (await asking).released == 1
    # The replies come in order: when a later question is answered, the earlier ones have been dealt with.
    later = start_release(caller, "r2")
    await send_reply(service.bus, await service.requests.get(), CallsReleased(released=2))
    await later
    assert caller.unmatched_replies == 3
    await bus.close()  # what was not acknowledged comes back now
    assert not memory.queue(f"quintain.reply.{caller.reply_key}").ready


async def test_a_message_of_an_unknown_type_is_not_the_answer(rpc_client: RpcClient, service: ScriptedService) -> None:
    asking = start_release(rpc_client, "r1")
    delivery = await service.requests.get()
    for kind in ("progress", "chunk", "of a later version", ""):
        await service.reply(delivery, kind, b"not even JSON")
    await send_reply(service.bus, delivery, CallsReleased(released=1))
    assert (await asking).released == 1


async def test_a_question_without_an_answer_ends_with_its_deadline(
    rpc_client: RpcClient, service: ScriptedService
) -> None:
    with pytest.raises(NoAnswer, match=r"No answer to release within 0\.\d s"):
        await start_release(rpc_client, "r1", seconds=0.05)
    assert rpc_client.in_flight == 0
    late = await service.requests.get()
    await send_reply(service.bus, late, CallsReleased(released=1))
    await asyncio.sleep(0)
    assert rpc_client.unmatched_replies == 1


async def test_a_question_that_cannot_be_published_leaves_nothing_pending(rpc_client: RpcClient) -> None:
    question = RpcRequest(exchange=METADATA, key="info", type="info", body=b"", headers={}, deadline_seconds=5)
    with pytest.raises(Unroutable):
        await rpc_client.call(question)
    unknown = RpcRequest(exchange=UNROUTED, key="", type="invoke", body=b"", headers={}, deadline_seconds=5)
    with pytest.raises(BusError):
        await rpc_client.call(unknown)
    assert rpc_client.in_flight == 0


async def test_a_full_queue_is_asked_again_until_the_end_of_the_time(
    memory: MemoryBroker, rpc_client: RpcClient, service: ScriptedService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quintain.rpc.requests.FULL_QUEUE_RETRY_SECONDS", 0.001)
    publish, refused = MemoryBus.publish, 3

    async def refuse(bus: MemoryBus, exchange: Exchange, key: str, *args: Any, **options: Any) -> None:
        nonlocal refused
        refused -= 1
        if exchange == METADATA and refused >= 0:
            raise QueueFull("full")
        await publish(bus, exchange, key, *args, **options)

    monkeypatch.setattr(MemoryBus, "publish", refuse)
    asking = start_release(rpc_client, "r1")
    await send_reply(service.bus, await service.requests.get(), CallsReleased(released=1))
    assert (await asking).released == 1
    refused = sys.maxsize
    with pytest.raises(Overloaded) as overloaded:
        await start_release(rpc_client, "r2", seconds=0.02)
    assert (overloaded.value.retryable, overloaded.value.charged) == (True, False)
    assert METADATA.name in overloaded.value.message
    assert rpc_client.in_flight == 0


async def test_a_service_that_never_comes_up_is_said_with_its_mend(rpc_client: RpcClient) -> None:
    with pytest.raises(NoAnswer, match=r"nothing consumes quintain\.metadata.*`quintain serve metadata`"):
        await start_release(rpc_client, "r1", seconds=0.1)
    assert rpc_client.in_flight == 0


@pytest.mark.parametrize(("kind", "body"), [("result", b"{}"), ("result", b"junk"), ("fault", b'{"error": 7}')])
async def test_an_answer_nobody_can_read_is_not_the_askers_mistake(
    rpc_client: RpcClient, service: ScriptedService, kind: str, body: bytes
) -> None:
    asking = start_release(rpc_client, "r1")
    await service.reply(await service.requests.get(), kind, body)
    with pytest.raises(InternalFault, match="cannot be read") as fault:
        await asking
    assert not fault.value.retryable


def lose_reply_queue(memory: MemoryBroker, rpc_client: RpcClient) -> None:
    memory.delete_queue(f"quintain.reply.{rpc_client.reply_key}")


async def replace_reply_queue(memory: MemoryBroker, rpc_client: RpcClient) -> None:
    """Lose the reply queue, and wait until a fresh one is consumed."""
    lost = rpc_client.reply_key
    lose_reply_queue(memory, rpc_client)
    async with asyncio.timeout(5):
        while rpc_client.reply_key == lost or reply_queues(memory) != [f"quintain.reply.{rpc_client.reply_key}"]:
            await asyncio.sleep(0)
        replacing = rpc_client._reply_queue._replace_task
        assert replacing is not None
        await replacing


def reply_queues(memory: MemoryBroker) -> list[str]:
    return [name for name in memory._queues if name.startswith("quintain.reply.")]


async def test_what_waits_when_the_reply_queue_is_lost_is_asked_again_from_a_fresh_one(
    memory: MemoryBroker, rpc_client: RpcClient, service: ScriptedService
) -> None:
    asking = [start_release(rpc_client, f"r{number}") for number in range(20)]
    first = {one.correlation_id: one for one in [await service.requests.get() for _ in asking]}
    old_key = rpc_client.reply_key
    lose_reply_queue(memory, rpc_client)
    again = [await service.requests.get() for _ in asking]
    assert {one.correlation_id for one in again} == first.keys()
    for one in again:
        was = first[one.correlation_id]
        assert (one.body, one.type, dict(one.headers)) == (was.body, was.type, dict(was.headers))
        assert one.reply_to == rpc_client.reply_key != old_key
        assert (one.expiration_ms or 0) <= (was.expiration_ms or 0)
        with pytest.raises(Unroutable):
            await service.reply(was, "result", b'{"released": 99}')
        number = int(ReleaseCalls.from_wire(one.body).request_ids[0][1:])
        for _ in range(2):  # after a loss an answer may come twice
            await send_reply(service.bus, one, CallsReleased(released=number))
    assert [(await one).released for one in asking] == list(range(20))
    await release_and_answer(rpc_client, service)
    assert (rpc_client.in_flight, rpc_client.unmatched_replies) == (0, 20)
    assert reply_queues(memory) == [f"quintain.reply.{rpc_client.reply_key}"]


async def release_and_answer(rpc_client: RpcClient, service: ScriptedService) -> None:
    """Ask and be answered. Replies come in order, so all before this one have been dealt with."""
    later = start_release(rpc_client, "later")
    await send_reply(service.bus, await service.requests.get(), CallsReleased(released=1))
    await later


async def test_who_subscribed_and_sent_is_asked_for_again_until_it_forgets(
    memory: MemoryBroker, rpc_client: RpcClient, service: ScriptedService
) -> None:
    heard: asyncio.Queue[Delivery] = asyncio.Queue()
    question = RpcRequest(exchange=METADATA, key="info", type="info", body=b"1", headers={"h": 1}, deadline_seconds=9)
    stop = rpc_client.subscribe("mine", heard.put_nowait)
    rpc_client.subscribe("silent", heard.put_nowait)  # it sent nothing here: what it needs repeated it repeats itself
    await rpc_client.publish(question, "mine")
    await service.requests.get()
    await replace_reply_queue(memory, rpc_client)
    again = await service.requests.get()
    assert (again.correlation_id, dict(again.headers)) == ("mine", {"h": 1})
    await service.reply(again, "progress", b"{}")
    assert (await heard.get()).type == "progress"
    stop()
    await replace_reply_queue(memory, rpc_client)
    await release_and_answer(rpc_client, service)
    assert service.requests.empty()


async def test_what_the_broker_may_have_dropped_for_its_age_is_not_asked_again(
    memory: MemoryBroker, rpc_client: RpcClient, service: ScriptedService
) -> None:
    question = RpcRequest(
        exchange=METADATA, key="info", type="info", body=b"", headers={}, deadline_seconds=9, expires_seconds=0.01
    )
    asking = asyncio.get_running_loop().create_task(rpc_client.call(question))
    await service.requests.get()
    await asyncio.sleep(0.02)
    await replace_reply_queue(memory, rpc_client)
    await release_and_answer(rpc_client, service)
    assert service.requests.empty()
    assert rpc_client.in_flight == 1  # its own timer ends it
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)


async def test_a_question_nobody_serves_right_now_is_asked_again_until_somebody_does(
    memory: MemoryBroker, rpc_client: RpcClient, service: ScriptedService
) -> None:
    asking = start_release(rpc_client, "r1")
    await service.requests.get()
    await service.bus.close()
    memory.delete_queue(METADATA_QUEUE.name)
    lose_reply_queue(memory, rpc_client)
    await asyncio.sleep(0.05)
    bus = memory.connect()
    returned = ScriptedService(bus)
    await returned.start()
    async with asyncio.timeout(5):
        await send_reply(bus, await returned.requests.get(), CallsReleased(released=1))
        assert (await asking).released == 1
    await bus.close()


async def test_two_hundred_calls_a_lost_reply_queue_and_a_close_leave_nothing_behind(
    memory: MemoryBroker, service: ScriptedService
) -> None:
    tasks, queues = asyncio.all_tasks(), set(memory._queues)
    bus = memory.connect()
    caller = RpcClient(bus)
    await caller.start()
    asking = [start_release(caller, f"r{number}") for number in range(200)]
    first = [await service.requests.get() for _ in asking]
    for one in first[:100]:
        await send_reply(service.bus, one, CallsReleased(released=1))
    await asyncio.gather(*asking[:100])
    lose_reply_queue(memory, caller)
    for _ in asking[100:150]:
        await send_reply(service.bus, await service.requests.get(), CallsReleased(released=2))
    for one in asking[150:]:
        one.cancel()
    await asyncio.gather(*asking, return_exceptions=True)
    await caller.close()
    assert (caller.in_flight, len(bus._consumers), set(memory._queues)) == (0, 0, queues)
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == tasks
    assert bus._redeclared_topology.queues == ()
    assert memory._bindings[REPLY.name] == []
    await bus.close()
