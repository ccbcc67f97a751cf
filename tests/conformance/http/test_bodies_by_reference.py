"""Requests that are larger than a message, over every transport: stored, read by the worker, and deleted."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import AsyncIterator

import openai
import pytest
import pytest_asyncio

from quintain.client.connect import connect
from quintain.contracts.invoke import ChatMessage, InvokeRequest
from quintain.contracts.limits import MAX_BODY_BYTES
from quintain.errors import BadRequest, PayloadTooLarge
from support.model_fleet import ModelFleet, model_fleet
from support.model_server import ScriptedResponse
from support.model_wires import CHAT
from support.official_clients import openai_client

pytestmark = pytest.mark.asyncio(loop_scope="module")

LIMIT = 64 * 1024 * 1024
TEXT = "x" * (MAX_BODY_BYTES + 1)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(bus_url: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ModelFleet]:
    """A fleet with a content store, behind which a scripted model answers."""
    folder = tmp_path_factory.mktemp("fleet")
    env = {"QUINTAIN_CONTENT_STORE": str(folder / "store")}
    async with model_fleet(folder, broker_url=bus_url, env=env) as fleet:
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


async def test_a_stored_body_that_is_no_request_for_its_target_is_not_charged(fleet: ModelFleet) -> None:
    running = fleet.fleet.running
    request = InvokeRequest.model_validate({"embedding": {"input": [TEXT]}, "target": "fixed"})
    async with connect(running.broker_url, await fleet.token(max_body_bytes=LIMIT), memory=running.memory) as client:
        with pytest.raises(BadRequest) as refused:
            await client.send(request)
        assert refused.value.charged is False
        info = await client.get_info()
        assert (info.call_count, info.refunded) == (0, 1)
