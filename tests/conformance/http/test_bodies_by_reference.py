"""Requests that are larger than a message: stored, read by the worker, and deleted.

Over RabbitMQ they are in ``integration/test_stored_bodies.py``.
"""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import hashlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass

import openai
import pytest
import pytest_asyncio

from quintain.client.connect import connect
from quintain.contracts.invoke import ChatMessage, InvokeRequest
from quintain.contracts.limits import MAX_BODY_BYTES
from quintain.errors import BadRequest, PayloadTooLarge
from quintain.routes import PROTOCOL_HEADER, REQUEST_ID_HEADER, TOKEN_HEADER
from quintain.rpc.client import RpcClient
from quintain.rpc.request import RpcRequest
from quintain.topology import INVOKE, METADATA, Exchange
from support.metadata_service import result_body
from support.model_fleet import ModelFleet, model_fleet
from support.model_server import ScriptedResponse
from support.model_wires import CHAT
from support.official_clients import openai_client

pytestmark = pytest.mark.asyncio(loop_scope="module")

LIMIT = 64 * 1024 * 1024
TEXT = "x" * (MAX_BODY_BYTES + 1)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ModelFleet]:
    """A fleet with a content store, behind which a scripted model answers."""
    folder = tmp_path_factory.mktemp("fleet")
    env = {"QUINTAIN_CONTENT_STORE": str(folder / "store")}
    async with model_fleet(folder, env=env) as fleet:
        fleet.provider.set_responses(ScriptedResponse(body=CHAT.answer("Read")))
        yield fleet


def request_for(target: str, text: str = TEXT) -> InvokeRequest:
    return InvokeRequest(messages=[ChatMessage(role="user", content=text)], target=target)


def stored(fleet: ModelFleet) -> set[str]:
    """The names of the contents that are stored."""
    return {path.name for path in (fleet.folder / "store").iterdir()}


async def wait_until_deleted(fleet: ModelFleet, before: set[str]) -> None:
    """Wait until nothing is stored that was not there before."""
    async with asyncio.timeout(60):
        while stored(fleet) - before:
            await asyncio.sleep(0.05)


async def test_a_body_arrives_whole_and_is_deleted_after_the_answer(fleet: ModelFleet) -> None:
    before = stored(fleet)
    fleet.provider.requests.clear()
    running = fleet.fleet.running
    async with connect(running.broker_url, await fleet.token(max_body_bytes=LIMIT), memory=running.memory) as client:
        first = await client.send(request_for("model"), request_id="the same")
        again = await client.send(request_for("model"), request_id="the same")
        info = await client.get_info()
    assert (first.raw_text, first.replayed, again.replayed) == ("Read", False, True)
    assert (info.call_count, info.max_body_bytes) == (1, LIMIT)
    [received] = fleet.provider.requests
    assert received.body["messages"] == [{"role": "user", "content": TEXT}]
    await wait_until_deleted(fleet, before)


async def test_a_document_arrives_whole_through_the_gateway(fleet: ModelFleet) -> None:
    before = stored(fleet)
    fleet.provider.requests.clear()
    pdf = b"%PDF-1.7\n" + hashlib.shake_256(b"document").digest(13_000_000)
    encoded = base64.b64encode(pdf).decode()
    part = {"type": "file", "file": {"filename": "a.pdf", "file_data": f"data:application/pdf;base64,{encoded}"}}
    async with openai_client(fleet.url, await fleet.token(max_body_bytes=LIMIT)) as (client, _):
        answer = await client.chat.completions.create(
            model="model",
            messages=[{"role": "user", "content": [part]}],  # type: ignore[list-item, misc]
        )
    assert answer.choices[0].message.content == "Read"
    [received] = fleet.provider.requests
    assert encoded in received.raw.decode()
    await wait_until_deleted(fleet, before)


async def test_the_session_limits_what_is_stored(fleet: ModelFleet) -> None:
    before = stored(fleet)
    running = fleet.fleet.running
    for limit in (None, MAX_BODY_BYTES):
        token = await fleet.token(max_body_bytes=limit)
        async with connect(running.broker_url, token, memory=running.memory) as client:
            with pytest.raises(PayloadTooLarge) as refused:
                await client.send(request_for("model"))
            assert refused.value.charged is False
            assert (await client.get_info()).call_count == 0
    assert stored(fleet) == before


async def test_the_session_limits_bodies_of_http_requests(fleet: ModelFleet) -> None:
    async with openai_client(fleet.url, await fleet.token(max_body_bytes=MAX_BODY_BYTES)) as (client, _):
        with pytest.raises(openai.APIStatusError) as refused:
            await client.chat.completions.create(model="model", messages=[{"role": "user", "content": TEXT}])
    assert (refused.value.status_code, refused.value.code) == (413, "payload_too_large")


@dataclass(frozen=True)
class PlainClient:
    """A client that follows the protocol's words; bodies that it stores may be small."""

    rpc_client: RpcClient
    token: str
    request_id: str = "r1"

    async def call(self, exchange: Exchange, key: str, message_type: str, message: object) -> dict[str, object]:
        headers = {TOKEN_HEADER: self.token, REQUEST_ID_HEADER: self.request_id, PROTOCOL_HEADER: 2}
        request = RpcRequest(exchange, key, message_type, json.dumps(message).encode(), headers, 60)
        return result_body(await self.rpc_client.call(request))

    async def put(self, body: bytes) -> None:
        put = {**reference_to(body), "requestId": self.request_id}
        assert await self.call(METADATA, "put_content", "put_content", put) == {"complete": False, "missing": [0]}
        piece = {**put, "piece": 0, "data": base64.b64encode(body).decode()}
        await self.call(METADATA, "put_content", "put_content", piece)
        assert await self.call(METADATA, "put_content", "put_content", put) == {"complete": True}

    async def invoke(self, key: str, body: bytes) -> dict[str, object]:
        return await self.call(INVOKE, key, "invoke_content", reference_to(body))


def reference_to(body: bytes) -> dict[str, object]:
    return {"sha256": hashlib.sha256(body).hexdigest(), "size": len(body)}


@pytest_asyncio.fixture(loop_scope="module")
async def plain_client(fleet: ModelFleet) -> AsyncIterator[PlainClient]:
    rpc_client = RpcClient(fleet.fleet.running.bus)
    await rpc_client.start()
    session = await fleet.fleet.open_session("fixed", 1, max_body_bytes=LIMIT)
    yield PlainClient(rpc_client, session.token)
    await rpc_client.close()


@pytest.mark.parametrize("key", ["fixed", ""])
async def test_a_body_that_is_not_stored_is_not_charged_and_can_be_put_then(
    plain_client: PlainClient, key: str
) -> None:
    body = b'{"question": "What is this?"}'
    with pytest.raises(BadRequest) as refused:
        await plain_client.invoke(key, body)
    assert refused.value.charged is False
    await plain_client.put(body)
    result = await plain_client.invoke(key, body)
    assert (result["rawText"], result["callCount"]) == ("A fixed answer", 1)


async def test_a_stored_body_that_is_no_request_for_its_target_is_not_charged(plain_client: PlainClient) -> None:
    for body in (b'{"embedding": {"input": ["x"]}}', b'{"question": "x", "target": "echo"}', b"no JSON"):
        client = dataclasses.replace(plain_client, request_id=str(len(body)))
        await client.put(body)
        with pytest.raises(BadRequest) as refused:
            await client.invoke("fixed", body)
        assert refused.value.charged is False
    info = await plain_client.call(METADATA, "info", "info", {})
    assert info["callCount"] == 0
