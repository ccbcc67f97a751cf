"""Streams whose pieces are lost, repeated or begun again on their way: what their readers are told."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from quintain.apis.streams import translate_answer
from quintain.bus.base import Delivery, Envelope
from quintain.bus.memory import MemoryBroker
from quintain.contracts.api_request import ApiName, ApiRequest, read_request
from quintain.contracts.headers import ACCEPT_CHUNKS, ACCEPT_HEADER, CHUNK_TYPE
from quintain.contracts.invoke import Chunk, Result
from quintain.errors import Fault
from quintain.rpc.server import send_reply
from quintain.topology import REPLY, target_queue, target_topology
from support.gateway_client import open_gateway_client
from support.memory_fleet import MemoryFleet, memory_fleet
from support.model_wires import chat_answer, chat_calls
from support.official_clients import anthropic_client, openai_client


def result_of(text: str, *calls: tuple[str, str, str]) -> Result:
    """A result with this text, and calls of tools (id, name, arguments): a chat completion, the first call of ten."""
    body: dict[str, Any] = chat_answer(text)
    if calls:
        [choice] = chat_calls(calls)["choices"]  # type: ignore[misc]
        choice["message"]["content"] = text
        body["choices"] = [choice]
    return Result(output=[], body=body, target="scripted", call_count=1, max_calls=10)


class ScriptedWorker:
    """Serves the target scripted: every call is answered by these pieces of text, and this, in the caller's API."""

    def __init__(self) -> None:
        self.chunks: Sequence[Chunk | bytes] = ()
        self.reply: Result | Fault = result_of("")
        self.accepts_chunks: list[bool] = []


def _with_events(api: ApiName, chunk: Chunk) -> Chunk:
    """The chunk with its text as events of this API; the first one of an attempt begins the answer."""
    if api == "chat":
        choice = {"index": 0, "delta": {"content": chunk.delta}, "finish_reason": None}
        events: list[dict[str, Any]] = [{"object": "chat.completion.chunk", "model": "m", "choices": [choice]}]
    else:
        usage = {"input_tokens": 1, "output_tokens": 0}
        message = {"type": "message", "role": "assistant", "content": [], "model": "m", "usage": usage}
        block = {"type": "text", "text": ""}
        events = [
            {"type": "message_start", "message": message},
            {"type": "content_block_start", "index": 0, "content_block": block},
        ]
        delta = {"type": "text_delta", "text": chunk.delta}
        events = [*events[: 2 * (chunk.seq == 0)], {"type": "content_block_delta", "index": 0, "delta": delta}]
    return chunk.model_copy(update={"delta": "", "events": events})


@contextlib.asynccontextmanager
async def scripted_worker(memory: MemoryBroker) -> AsyncIterator[ScriptedWorker]:
    """The worker, at work until the end."""
    bus, scripted = memory.connect(), ScriptedWorker()

    async def handle(delivery: Delivery) -> None:
        scripted.accepts_chunks.append(ACCEPT_CHUNKS in str(delivery.headers.get(ACCEPT_HEADER)).split(", "))
        request = read_request(delivery.body)
        assert isinstance(request, ApiRequest)
        reply = scripted.reply
        if isinstance(reply, Result):
            reply = reply.model_copy(update={"body": translate_answer("chat", request.api, reply.body or {})})
        for chunk in scripted.chunks:
            body = chunk if isinstance(chunk, bytes) else _with_events(request.api, chunk).to_wire()
            envelope = Envelope(body=body, type=CHUNK_TYPE, correlation_id=delivery.correlation_id, persistent=False)
            await bus.publish(REPLY, delivery.reply_to or "", envelope)
        await send_reply(bus, delivery, reply)
        await delivery.ack()

    await bus.declare(target_topology("scripted"))
    consumer = await bus.consume(target_queue("scripted"), handle, prefetch=10)
    try:
        yield scripted
    finally:
        await consumer.drain(1)
        await bus.close()


HELLO: Any = [{"role": "user", "content": "Hello there"}]
ASK: Any = {"model": "scripted", "max_tokens": 5, "messages": HELLO}

#: The pieces that come, and the answer; both clients read the answer.
WHOLE: dict[str, tuple[list[Chunk | bytes], str]] = {
    "none": ([], "one two three"),
    "all": ([Chunk(attempt=1, seq=0, delta="one two "), Chunk(attempt=1, seq=1, delta="three")], "one two three"),
    "the last one lost": ([Chunk(attempt=1, seq=0, delta="one ")], "one two three"),
    "the first one lost": ([Chunk(attempt=1, seq=1, delta="two ")], "one two three"),
    "one repeated": ([Chunk(attempt=1, seq=0, delta="one "), Chunk(attempt=1, seq=0, delta="one ")], "one two three"),
    "unreadable": ([b"{", Chunk(attempt=1, seq=0, delta="one "), b'{"attempt": "x"}'], "one two three"),
    "begun again, alike": (
        [Chunk(attempt=1, seq=0, delta="one "), Chunk(attempt=2, seq=0, delta="one two")],
        "one two 3",
    ),
    "begun again, before a word": (
        [Chunk(attempt=1, seq=0, delta=""), Chunk(attempt=2, seq=0, delta="uno ")],
        "uno dos",
    ),
    "empty": ([], ""),
}


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[MemoryFleet]:
    async with memory_fleet(tmp_path, "targets: {echo: {provider: mock}}\n") as fleet:
        yield fleet


@pytest.fixture
async def token(fleet: MemoryFleet) -> str:
    return (await fleet.open_session("echo")).token


@pytest.fixture
async def worker(fleet: MemoryFleet) -> AsyncIterator[ScriptedWorker]:
    assert fleet.running.memory is not None
    async with scripted_worker(fleet.running.memory) as worker:
        yield worker


async def chat_deltas(client: openai.AsyncOpenAI) -> AsyncIterator[str]:
    async for chunk in await client.chat.completions.create(model="scripted", messages=HELLO, stream=True):
        yield chunk.choices[0].delta.content or ""


async def message_deltas(client: anthropic.AsyncAnthropic) -> AsyncIterator[str]:
    async with client.messages.stream(**ASK) as stream:
        async for text in stream.text_stream:
            yield text
        said = await stream.get_final_message()
    assert said.stop_reason == "end_turn"


@pytest.mark.parametrize("name", WHOLE)
async def test_whatever_is_lost_the_answer_is_whole(
    fleet: MemoryFleet, token: str, worker: ScriptedWorker, name: str
) -> None:
    worker.chunks, answer = WHOLE[name]
    worker.reply = result_of(answer)
    async with openai_client(fleet.gateway_url, token) as (of_openai, _):
        assert "".join([text async for text in chat_deltas(of_openai)]) == answer
    async with anthropic_client(fleet.gateway_url, token) as (of_anthropic, _):
        assert "".join([text async for text in message_deltas(of_anthropic)]) == answer
    assert worker.accepts_chunks == [True, True]


async def test_every_line_of_a_stream_is_what_an_event_stream_may_hold(
    fleet: MemoryFleet, token: str, worker: ScriptedWorker
) -> None:
    text = "line\nline\r\n\r\u2028data: x\n\nevent: y\n"
    worker.chunks, worker.reply = [Chunk(attempt=1, seq=0, delta=text)], result_of(text)
    async with open_gateway_client(fleet.gateway_url, token) as door:
        for path in ("/v1/chat/completions", "/v1/messages"):
            answer = (await door.http.post(path, json={**ASK, "stream": True})).content
            assert all(
                line.startswith((b"data: {", b"data: [DONE]", b"event: ")) for line in answer.split(b"\n") if line
            )
    async with openai_client(fleet.gateway_url, token) as (of_openai, _):
        assert "".join([said async for said in chat_deltas(of_openai)]) == text
