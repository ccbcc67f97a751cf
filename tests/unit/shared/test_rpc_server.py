"""Answering: whatever becomes of the answer, the request is not answered again and again."""

from __future__ import annotations

import logging

import pytest

from quintain.bus.base import Delivery, Envelope
from quintain.bus.memory import MemoryBroker
from quintain.contracts.invoke import InvokeRequest
from quintain.contracts.session import GetInfo
from quintain.errors import BadRequest
from quintain.rpc.server import send_reply
from quintain.topology import METADATA, REPLY, Binding, Queue, Topology


@pytest.mark.parametrize("most", [None, 0], ids=["gone", "full"])
async def test_a_client_that_takes_no_answer_is_no_error(caplog: pytest.LogCaptureFixture, most: int | None) -> None:
    broker = MemoryBroker()
    bus = broker.connect()
    asked, theirs = Queue("asked", "classic"), Queue("theirs", "classic", max_length=most)
    bindings = [Binding(METADATA, asked, "info")]
    if most is not None:
        bindings.append(Binding(REPLY, theirs, "theirs"))
    await bus.declare(Topology((METADATA, REPLY), (asked, theirs), tuple(bindings)))
    answered: list[Delivery] = []

    async def answer(request: Delivery) -> None:
        await send_reply(bus, request, GetInfo())
        answered.append(request)
        await request.ack()

    consumer = await bus.consume(asked, answer, prefetch=1)
    with caplog.at_level(logging.INFO):
        await bus.publish(METADATA, "info", Envelope(body=b"{}", type="info", correlation_id="c", reply_to="theirs"))
        assert await consumer.drain(5)
    assert [request.redelivered for request in answered] == [False]
    assert "the client's reply queue is gone or full" in caplog.text
    await bus.close()
    broker.close()


def test_half_a_character_is_a_bad_request_and_no_defect() -> None:
    with pytest.raises(BadRequest, match="no Unicode"):
        InvokeRequest(question="half \ud83d").to_wire()
