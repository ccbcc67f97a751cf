"""A request of 40 MB over RabbitMQ, with workers in processes of their own: it arrives whole, after a kill too."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import quintain
from quintain.client.connect import connect_admin
from quintain.contracts.limits import MAX_BODY_BYTES
from quintain.contracts.session import OpenSession
from support.model_server import ModelServer, ScriptedResponse, model_server
from support.model_wires import CHAT
from support.process_fleet import ADMIN_TOKEN, ProcessFleet, process_fleet
from support.quick import lease_variable

LIMIT = 64 * 1024 * 1024

CONFIG = """
targets:
  model: {provider: openai, model: served, base_url: "%s/v1"}
"""

DOCUMENT = base64.b64encode(hashlib.shake_256(b"document").digest(30_000_000)).decode()


@pytest.fixture
async def provider() -> AsyncIterator[ModelServer]:
    async with model_server() as server:
        yield server


async def open_session(fleet: ProcessFleet, max_body_bytes: int) -> str:
    async with connect_admin(fleet.broker_url, ADMIN_TOKEN) as admin:
        return (await admin.open(OpenSession(default_target="model", max_body_bytes=max_body_bytes))).token


@pytest.mark.timeout(300)
async def test_a_large_request_outlives_its_worker_and_is_deleted_after_its_answer(
    broker_url: str, provider: ModelServer, tmp_path: Path
) -> None:
    provider.set_responses(ScriptedResponse(stall=True), ScriptedResponse(body=CHAT.answer("Read")))
    with process_fleet(broker_url, CONFIG % provider.url, targets=["model"]) as fleet:
        fleet.extra_env |= {**lease_variable(), "QUINTAIN_CONTENT_STORE": str(tmp_path / "store")}
        _, doomed = await asyncio.to_thread(fleet.start_services, "metadata", "worker")
        messages = [quintain.ChatMessage(role="user", content=DOCUMENT)]
        async with quintain.connect(broker_url, await open_session(fleet, LIMIT)) as client:
            call = asyncio.create_task(client.invoke(messages=messages, timeout=300))
            async with asyncio.timeout(240):
                await provider.arrived.wait()
            doomed.kill()
            await asyncio.to_thread(fleet.start_service, "worker")
            answer = await call
            info = await client.get_info()
        assert (answer.raw_text, answer.attempts) == ("Read", 2)
        assert (info.call_count, info.committed) == (1, 1)
        bodies = [json.loads(request.raw)["messages"] for request in provider.requests]
        assert bodies == [[{"role": "user", "content": DOCUMENT}]] * 2
        async with asyncio.timeout(60):
            while list((tmp_path / "store").iterdir()):
                await asyncio.sleep(0.1)


async def test_without_a_store_a_session_has_at_most_what_one_message_may_have(
    broker_url: str, provider: ModelServer
) -> None:
    with process_fleet(broker_url, CONFIG % provider.url, targets=["model"]) as fleet:
        await asyncio.to_thread(fleet.start_service, "metadata")
        with pytest.raises(quintain.BadRequest, match="QUINTAIN_CONTENT_STORE"):
            await open_session(fleet, LIMIT)
        async with quintain.connect(broker_url, await open_session(fleet, MAX_BODY_BYTES)) as client:
            with pytest.raises(quintain.PayloadTooLarge, match="QUINTAIN_CONTENT_STORE") as refused:
                await client.invoke("x" * MAX_BODY_BYTES, target="model")
            assert refused.value.charged is False
            assert (await client.get_info()).call_count == 0
