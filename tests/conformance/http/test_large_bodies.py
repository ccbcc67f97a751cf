"""Requests and answers of several MB, over a broker: whole where the session allows them, refused elsewhere."""

from __future__ import annotations

import base64
import hashlib
from typing import Any

import openai
import pytest

from quintain.client.client import connect
from quintain.contracts.invoke import ChatMessage, InvokeRequest
from quintain.contracts.message import DEFAULT_REPLY_BYTES, MAX_BODY_BYTES
from quintain.errors import PayloadTooLarge
from support.model_fleet import ModelFleet
from support.model_server import ScriptedResponse
from support.model_wires import CHAT
from support.official_clients import official_clients

pytestmark = pytest.mark.asyncio(loop_scope="module")

PNG = bytes.fromhex("89504e470d0a1a0a")
IMAGE = PNG + hashlib.shake_256(b"image").digest(900_000)
PDF = b"%PDF-1.7\n" + hashlib.shake_256(b"document").digest(10_000_000)
LARGE_ANSWER = "word " * 2_000_000


@pytest.fixture(scope="module")
def bus_url(broker_url: str) -> str:
    return broker_url


def message_with(image: bytes | None = None, pdf: bytes | None = None) -> Any:
    parts: list[object] = [{"type": "text", "text": "What is this?"}]
    if image is not None:
        url = "data:image/png;base64," + base64.b64encode(image).decode()
        parts.append({"type": "image_url", "image_url": {"url": url}})
    if pdf is not None:
        data = "data:application/pdf;base64," + base64.b64encode(pdf).decode()
        parts.append({"type": "file", "file": {"filename": "a.pdf", "file_data": data}})
    return [{"role": "user", "content": parts}]


async def test_an_image_a_document_and_an_answer_arrive_whole(fleet: ModelFleet) -> None:
    fleet.provider.requests.clear()
    async with official_clients(fleet.url, await fleet.token(max_body_bytes=MAX_BODY_BYTES)) as clients:
        fleet.provider.set_responses(ScriptedResponse(body=CHAT.answer(LARGE_ANSWER)))
        answer = await clients.openai.chat.completions.create(model="model", messages=message_with(image=IMAGE))
        assert answer.choices[0].message.content == LARGE_ANSWER
        fleet.provider.set_responses(ScriptedResponse(body=CHAT.answer("A document")))
        await clients.openai.chat.completions.create(model="model", messages=message_with(pdf=PDF))
    first, second = (str(request.body) for request in fleet.provider.requests)
    assert base64.b64encode(IMAGE).decode() in first
    assert base64.b64encode(PDF).decode() in second


async def test_without_a_limit_of_its_own_a_session_sends_1_mib_and_gets_8(fleet: ModelFleet) -> None:
    fleet.provider.requests.clear()
    async with official_clients(fleet.url, await fleet.token()) as clients:
        with pytest.raises(openai.APIStatusError) as refused:
            await clients.openai.chat.completions.create(model="model", messages=message_with(image=IMAGE))
        assert (refused.value.status_code, refused.value.code) == (413, "payload_too_large")
        assert str(1024 * 1024) in refused.value.message
        assert not fleet.provider.requests
        fleet.provider.set_responses(ScriptedResponse(body=CHAT.answer("x" * DEFAULT_REPLY_BYTES)))
        with pytest.raises(openai.APIStatusError) as too_large:
            await clients.openai.chat.completions.create(model="model", messages=message_with())
        assert (too_large.value.status_code, too_large.value.code) == (502, "reply_too_large")


async def test_answers_over_8_mib_pass_where_a_session_allows_them(fleet: ModelFleet) -> None:
    assert len(LARGE_ANSWER) > DEFAULT_REPLY_BYTES
    token = await fleet.token(max_body_bytes=MAX_BODY_BYTES)
    async with connect(fleet.fleet.running.broker_url, token) as client:
        request = InvokeRequest(question=LARGE_ANSWER, target="echo")
        for is_replayed in (False, True):
            result = await client.send(request, request_id="large")
            assert (result.raw_text == LARGE_ANSWER, result.replayed) == (True, is_replayed)
        with pytest.raises(PayloadTooLarge):  # no session may send it: it is not published
            await client.send(InvokeRequest(messages=[ChatMessage(role="user", content="x" * MAX_BODY_BYTES)]))
        assert (await client.invoke(question="And this?", target="echo")).raw_text == "And this?"
