"""Whoever reads a message of a queue can make no other call with it: it has a proof, and no token."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from quintain.bus.base import Bus, Delivery, HeaderValue
from quintain.bus.connect import connect_bus
from quintain.contracts.group import INVOKE_GROUP_TYPE
from quintain.contracts.headers import DEADLINE_HEADER, PROOF_HEADER, REQUEST_ID_HEADER, TOKEN_HEADER
from quintain.contracts.invoke import FaultReply, Result
from quintain.contracts.session import GetInfo, OpenSession
from quintain.errors import Unauthorized
from quintain.routes import INFO, OPEN
from quintain.rpc.groups import split_group
from quintain.rpc.requests import RpcClient, RpcRequest
from quintain.rpc.server import copyable_headers
from quintain.topology import INVOKE, Binding, Queue, Topology
from support.memory_fleet import MemoryFleet, memory_fleet

CONFIG = """
targets:
  model: {provider: mock}
  other: {provider: mock}
"""


@dataclass
class QueueReader:
    """Reads a copy of each call of target ``model``, and publishes what it likes."""

    fleet: MemoryFleet
    rpc_client: RpcClient
    taken: asyncio.Queue[Delivery]

    async def take(self, count: int = 1) -> list[Delivery]:
        calls: list[Delivery] = []
        async with asyncio.timeout(30):
            while len(calls) < count:
                delivery = await self.taken.get()
                calls += split_group(delivery) if delivery.type == INVOKE_GROUP_TYPE else [delivery]
        return calls

    async def publish(
        self, call: Delivery, *, key: str = "model", body: bytes | None = None, **altered: HeaderValue
    ) -> Result:
        """Publish the call with these headers. Raises the `Fault` of its answer."""
        headers: Mapping[str, HeaderValue] = {**copyable_headers(call.headers), "x-quintain-protocol": 1}
        names = {"request_id": REQUEST_ID_HEADER, "deadline": DEADLINE_HEADER, "proof": PROOF_HEADER}
        reply = await self.rpc_client.call(
            RpcRequest(
                exchange=INVOKE,
                key=key,
                type="invoke",
                body=call.body if body is None else body,
                headers={**headers, **{names[name]: value for name, value in altered.items()}},
                deadline_seconds=30,
            )
        )
        if reply.type == "fault":
            raise FaultReply.from_wire(reply.body).to_fault()
        return Result.from_wire(reply.body)


@pytest.fixture(params=["memory", "rabbit"])
async def reader(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[QueueReader]:
    url = request.getfixturevalue("broker_url") if request.param == "rabbit" else "memory://"
    async with memory_fleet(tmp_path, CONFIG, broker_url=url) as fleet:
        bus: Bus = await connect_bus(url, "reader", memory=fleet.running.memory)
        taken = asyncio.Queue[Delivery]()
        queue = Queue(f"reader-{secrets.token_hex(4)}", "classic", exclusive=True)
        await bus.declare(Topology((INVOKE,), (queue,), (Binding(INVOKE, queue, "model"),)))

        async def take(delivery: Delivery) -> None:
            await delivery.ack()
            taken.put_nowait(delivery)

        await bus.consume(queue, take, prefetch=100)
        rpc_client = RpcClient(bus)
        await rpc_client.start()
        yield QueueReader(fleet, rpc_client, taken)
        await rpc_client.close()
        await bus.close()


async def test_a_taken_message_makes_its_own_call_and_no_other(reader: QueueReader) -> None:
    session = await reader.fleet.open_session("model", 9)
    async with reader.fleet.client_of(session) as client:
        await client.invoke("hello")
        [call] = await reader.take()
        deadline = call.headers[DEADLINE_HEADER]
        assert isinstance(deadline, int)
        assert call.headers[TOKEN_HEADER] == session.session_id
        assert session.token.split("_")[3] not in f"{dict(call.headers)} {call.body!r}"
        assert (await reader.publish(call)).replayed
        for altered in ({"request_id": "another"}, {"deadline": deadline + 1}, {"proof": "0" * 64}):
            with pytest.raises(Unauthorized):
                await reader.publish(call, **altered)
        with pytest.raises(Unauthorized):
            await reader.publish(call, body=b'{"question": "another"}')
        for key in ("other", ""):
            with pytest.raises(Unauthorized):
                await reader.publish(call, key=key)
        assert (await client.get_info()).call_count == 1


async def test_what_a_message_has_is_no_token_for_operations(reader: QueueReader) -> None:
    session = await reader.fleet.open_session("model", 9)
    async with reader.fleet.client_of(session) as client:
        await client.invoke("hello")
        [call] = await reader.take()
        headers = copyable_headers(call.headers)
        with pytest.raises(Unauthorized):
            await reader.rpc_client.call_route(INFO, GetInfo(), headers, timeout_seconds=30)
        with pytest.raises(Unauthorized):
            request = OpenSession(default_target="model")
            await reader.rpc_client.call_route(OPEN, request, headers, timeout_seconds=30)
