"""Streams whose pieces are lost, repeated or begun again on their way: what their readers are told."""

from __future__ import annotations

import asyncio
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
from quintain.errors import Fault, ProviderFailed
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


async def test_an_answer_that_was_begun_again_and_differs_ends_with_an_error(
    fleet: MemoryFleet, token: str, worker: ScriptedWorker
) -> None:
    worker.chunks = [Chunk(attempt=1, seq=0, delta="one "), Chunk(attempt=2, seq=0, delta="uno ")]
    worker.reply = result_of("uno dos")
    said: list[str] = []
    async with openai_client(fleet.gateway_url, token) as (of_openai, _):
        with pytest.raises(openai.APIError, match="A retry gave another answer") as differs:
            async for text in chat_deltas(of_openai):
                said.append(text)
    assert ("".join(said), differs.value.code) == ("one ", "provider_error")
    async with anthropic_client(fleet.gateway_url, token) as (of_anthropic, _):
        with pytest.raises(anthropic.APIError, match="A retry gave another answer"):
            async for text in message_deltas(of_anthropic):
                said.append(text)
    assert "".join(said) == "one one "
    async with open_gateway_client(fleet.gateway_url) as nobody, asyncio.timeout(5):
        while "\nquintain_gateway_requests_in_flight 1.0\n" not in (await nobody.http.get("/metrics")).text:
            await asyncio.sleep(0.01)


async def test_a_fault_after_the_first_words_ends_the_stream(
    fleet: MemoryFleet, token: str, worker: ScriptedWorker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "quintain_gateway.access_log")
    worker.chunks = [Chunk(attempt=1, seq=0, delta="one ")]
    worker.reply = ProviderFailed("It broke", charged=True)
    async with openai_client(fleet.gateway_url, token) as (of_openai, _):
        with pytest.raises(openai.APIError, match="It broke"):
            assert [text async for text in chat_deltas(of_openai)]
    async with asyncio.timeout(5):
        while "request " not in caplog.text:
            await asyncio.sleep(0.01)
    assert "route=/v1/chat/completions status=200" in caplog.text
    assert "code=provider_error" in caplog.text


async def test_words_and_then_calls_of_tools_are_blocks_in_this_order(
    fleet: MemoryFleet, token: str, worker: ScriptedWorker
) -> None:
    calls = [("c1", "f", '{"a": 1}'), ("c2", "f", "no json")]
    worker.chunks, worker.reply = [Chunk(attempt=1, seq=0, delta="I look")], result_of("I look it up", *calls)
    async with anthropic_client(fleet.gateway_url, token) as (of_anthropic, _):
        events = [event async for event in await of_anthropic.messages.create(**ASK, stream=True)]
        whole = await of_anthropic.messages.create(**ASK)
    starts = [(event.index, event.content_block.type) for event in events if event.type == "content_block_start"]
    stops = [event.index for event in events if event.type == "content_block_stop"]
    assert starts == [(0, "text"), (1, "tool_use"), (2, "tool_use")]
    assert stops == [0, 1, 2]
    assert [block.type for block in whole.content] == ["text", "tool_use", "tool_use"]
    assert worker.accepts_chunks == [True, False]  # whoever wants the whole answer hears no pieces


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
