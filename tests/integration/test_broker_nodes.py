"""A broker's URL with several nodes: whichever answers is taken, whoever does not is passed over."""

from __future__ import annotations

import asyncio

import pytest

from quintain.bus.connect import connect_bus
from quintain.errors import BrokerUnavailable
from quintain.topology import EVALUATOR_TOPOLOGY

NOBODY = "amqp://me:secret@127.0.0.1:9/"


async def test_nodes_that_are_away_are_passed_over(broker_url: str) -> None:
    async with asyncio.timeout(30):
        for _ in range(4):  # each begins anywhere
            bus = await connect_bus(f"{NOBODY},{broker_url},{NOBODY}")
            await bus.declare(EVALUATOR_TOPOLOGY)
            await bus.close()


async def test_where_no_node_answers_all_are_named_and_no_password() -> None:
    with pytest.raises(BrokerUnavailable) as unavailable:
        await connect_bus(f"{NOBODY},{NOBODY}", timeout_seconds=1)
    assert "No broker at amqp://me@127.0.0.1:9/, amqp://me@127.0.0.1:9/ within 1.0 s" in unavailable.value.message
    assert "secret" not in unavailable.value.message
