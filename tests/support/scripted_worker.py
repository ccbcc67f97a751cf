"""A worker that answers by a script, over the memory transport: pieces lost, repeated, of a later attempt."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence

from quintain.bus.base import Delivery, Envelope
from quintain.bus.memory import MemoryBroker
from quintain.contracts.chunk import Chunk
from quintain.contracts.invoke import OutputMessage, Result, ToolCall
from quintain.errors import Fault
from quintain.routes import ACCEPT_CHUNKS, ACCEPT_HEADER, CHUNK_TYPE
from quintain.rpc.server import send_reply
from quintain.topology import REPLY, target_queue, target_topology


def result_of(text: str, *calls: ToolCall) -> Result:
    """A result with this text, the first call of ten."""
    output = [OutputMessage(content=text, tool_calls=list(calls) or None)]
    return Result(output=output, raw_text=text, target="scripted", call_count=1, max_calls=10)


class ScriptedWorker:
    """Serves the target scripted: every call is answered by these pieces, and then this."""

    def __init__(self) -> None:
        self.chunks: Sequence[Chunk | bytes] = ()
        self.reply: Result | Fault = result_of("")
        self.accepts_chunks: list[bool] = []


@contextlib.asynccontextmanager
async def scripted_worker(memory: MemoryBroker) -> AsyncIterator[ScriptedWorker]:
    """The worker, at work until the end."""
    bus, scripted = memory.connect(), ScriptedWorker()

    async def handle(delivery: Delivery) -> None:
        scripted.accepts_chunks.append(delivery.headers.get(ACCEPT_HEADER) == ACCEPT_CHUNKS)
        for chunk in scripted.chunks:
            body = chunk if isinstance(chunk, bytes) else chunk.to_wire()
            envelope = Envelope(body=body, type=CHUNK_TYPE, correlation_id=delivery.correlation_id, persistent=False)
            await bus.publish(REPLY, delivery.reply_to or "", envelope)
        await send_reply(bus, delivery, scripted.reply)
        await delivery.ack()

    await bus.declare(target_topology("scripted"))
    consumer = await bus.consume(target_queue("scripted"), handle, prefetch=10)
    try:
        yield scripted
    finally:
        await consumer.drain(1)
        await bus.close()
