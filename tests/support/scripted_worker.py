"""A worker that answers by a script, over the memory transport: pieces lost, repeated, of a later attempt."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

from quintain.apis.streams import translate_answer
from quintain.bus.base import Delivery, Envelope
from quintain.bus.memory import MemoryBroker
from quintain.contracts.api_request import ApiName, ApiRequest, read_request
from quintain.contracts.headers import ACCEPT_CHUNKS, ACCEPT_HEADER, CHUNK_TYPE
from quintain.contracts.invoke import Chunk, Result
from quintain.errors import Fault
from quintain.rpc.server import send_reply
from quintain.topology import REPLY, target_queue, target_topology
from support.model_wires import chat_answer, chat_calls


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
