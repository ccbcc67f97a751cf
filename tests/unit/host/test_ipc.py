"""What a slot's process says to its parent: every word in order, junk passed over, and nobody held up."""

from __future__ import annotations

import asyncio
import os

from quintain.programs.program import read_pipe
from quintain_host.counters import (
    LEASE_ENDED,
    LEASE_GIVEN,
    MAX_MESSAGE_BYTES,
    READY,
    RUN_OUTCOMES,
    HostCounters,
    IpcReader,
    IpcWriter,
)
from support.waiting import wait_until

WORDS = [READY, LEASE_GIVEN, *RUN_OUTCOMES, LEASE_ENDED]


async def test_every_word_is_heard_in_its_order() -> None:
    words: list[str] = []
    async with read_pipe(IpcReader(words.append)) as said:
        saying = IpcWriter(said.fileno())
        for word in WORDS:
            saying.send(word)
        saying.send_address("lease", "key")
        await wait_until(lambda: len(words) > len(WORDS))
    assert words == [*WORDS, '["lease", "key"]']


async def test_what_is_still_on_its_way_at_the_end_is_heard_and_junk_is_bounded() -> None:
    words: list[str] = []
    reader = IpcReader(words.append)
    async with read_pipe(reader) as said:
        for _ in range(5_000):
            IpcWriter(said.fileno()).send(LEASE_GIVEN)
        os.write(said.fileno(), b"\0junk?\n" + 3 * MAX_MESSAGE_BYTES * b"x" + b"\n")
        IpcWriter(said.fileno()).send(LEASE_ENDED)
        os.write(said.fileno(), 3 * MAX_MESSAGE_BYTES * b"x")
        said.close()
        await reader.ended
    assert words[:5_001] == [LEASE_GIVEN] * 5_000 + ["\0junk?"]
    assert words[-1] == LEASE_ENDED
    assert len(reader.data) == MAX_MESSAGE_BYTES


async def test_a_parent_that_does_not_listen_or_has_ended_holds_nobody_up() -> None:
    heard, said = os.pipe()
    for _ in range(70_000):
        IpcWriter(said).send(LEASE_GIVEN)
    os.close(heard)
    IpcWriter(said).send(LEASE_GIVEN)
    async with asyncio.timeout(5):
        await IpcWriter(said).wait_parent_exit()
    os.close(said)


def test_a_tally_counts_what_is_held_and_tells_it_on() -> None:
    above = HostCounters()
    tally = HostCounters(on_count=above.count)
    for word in (LEASE_GIVEN, "ended", "ended", "failed", LEASE_ENDED, LEASE_GIVEN):
        tally.count(word)
    for each in (tally, above):
        assert (each.leases, each.active_leases, dict(each.runs)) == (2, 1, {"ended": 2, "failed": 1})
