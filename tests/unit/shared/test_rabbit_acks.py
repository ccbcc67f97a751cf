"""Acknowledgements of one channel: together where deliveries came one after another, and never one too many."""

from __future__ import annotations

import asyncio
import random
from typing import cast

import aiormq
import pytest
from aiormq.exceptions import ChannelInvalidStateError

from quintain.bus.rabbit_consumer import ChannelAcks


class BrokerChannel:
    """A channel that checks every frame as RabbitMQ does: what is settled must be outstanding."""

    def __init__(self, deliveries: int = 0) -> None:
        self.outstanding = set(range(1, deliveries + 1))
        self.acked: set[int] = set()
        self.nacked: set[int] = set()
        self.frames: list[tuple[int, bool]] = []
        self.is_closed = False

    async def basic_ack(self, tag: int, multiple: bool = False, wait: bool = True) -> None:
        if self.is_closed:
            raise ChannelInvalidStateError("closed")
        await asyncio.sleep(0)
        assert tag in self.outstanding
        settled = {each for each in self.outstanding if each <= tag} if multiple else {tag}
        self.outstanding -= settled
        self.acked |= settled
        self.frames.append((tag, multiple))

    async def basic_nack(self, tag: int, requeue: bool = True, wait: bool = True) -> None:
        await asyncio.sleep(0)
        self.outstanding.remove(tag)
        self.nacked.add(tag)


def acks_of(channel: BrokerChannel) -> ChannelAcks:
    return ChannelAcks(cast("aiormq.abc.AbstractChannel", channel))


async def test_deliveries_that_are_done_together_take_one_frame() -> None:
    channel = BrokerChannel(10)
    acks = acks_of(channel)
    for tag in (2, 1, 3, 7):
        acks.ack(tag)
    await acks.wait_sent()
    assert channel.frames == [(3, True), (7, False)]
    for tag in (4, 5, 6):
        acks.ack(tag)
    await acks.wait_sent()
    assert channel.frames[2:] == [(6, True)]
    assert channel.outstanding == {8, 9, 10}


@pytest.mark.parametrize("seed", range(5))
async def test_in_any_order_each_delivery_is_settled_once_and_as_it_was_said(seed: int) -> None:
    chance, channel = random.Random(seed), BrokerChannel(300)
    acks, given_back = acks_of(channel), set(random.Random(seed).sample(range(1, 301), 30))

    async def settle(tag: int) -> None:
        for _ in range(chance.randrange(20)):
            await asyncio.sleep(0)
        await acks.nack(tag, requeue=True) if tag in given_back else acks.ack(tag)

    await asyncio.gather(*(settle(tag) for tag in range(1, 301)))
    await acks.wait_sent()
    assert (channel.outstanding, channel.nacked) == (set(), given_back)
    assert len(channel.frames) < 270


async def test_a_lost_channel_settles_nothing_and_raises_nothing() -> None:
    channel = BrokerChannel(2)
    channel.is_closed = True
    acks = acks_of(channel)
    acks.ack(1)
    await acks.wait_sent()
    acks.ack(2)
    await acks.wait_sent()
    assert channel.outstanding == {1, 2}
