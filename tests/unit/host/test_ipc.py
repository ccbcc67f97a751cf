"""What a slot's process says to its parent: every word in order, junk passed over, and nobody held up."""

from __future__ import annotations

import asyncio
import os

from quintain_host.counters import (
    LEASE_ENDED,
    LEASE_GIVEN,
    READY,
    RUN_OUTCOMES,
    HostCounters,
    IpcWriter,
    make_pipe,
    read_ipc,
)

WORDS = [READY, LEASE_GIVEN, *RUN_OUTCOMES, LEASE_ENDED]


async def test_every_word_is_heard_in_its_order() -> None:
    heard, said = make_pipe()
    words: list[str] = []
    saying = IpcWriter(said)
    with read_ipc(heard, words.append):
        for word in WORDS:
            saying.send(word)
        async with asyncio.timeout(10):
            while len(words) < len(WORDS):
                await asyncio.sleep(0)
    assert words == WORDS
    # Nobody listens any more, and that is nobody's error.
    saying.send(LEASE_GIVEN)
    os.close(said)


async def test_what_is_still_on_its_way_at_the_end_is_heard() -> None:
    heard, said = make_pipe()
    words: list[str] = []
    with read_ipc(heard, words.append):
        for _ in range(9_000):
            IpcWriter(said).send(LEASE_GIVEN)
        os.write(said, b"\0junk?\n")
        IpcWriter(said).send(LEASE_ENDED)
        os.close(said)
    assert words == [LEASE_GIVEN] * 9_000 + ["\0junk?", LEASE_ENDED]


async def test_the_end_of_whoever_speaks_is_noticed_once() -> None:
    heard, said = make_pipe()
    with read_ipc(heard, lambda _: None):
        os.close(said)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        # A loop that is still told of the end is never idle.
        assert not asyncio.get_running_loop().remove_reader(heard)


async def test_a_parent_that_does_not_listen_holds_nobody_up() -> None:
    heard, said = make_pipe()
    for _ in range(70_000):
        IpcWriter(said).send(LEASE_GIVEN)
    os.close(heard)
    os.close(said)


def test_a_tally_counts_what_is_held_and_tells_it_on() -> None:
    above = HostCounters()
    tally = HostCounters(on_count=above.count)
    for word in (LEASE_GIVEN, "ended", "ended", "failed", LEASE_ENDED, LEASE_GIVEN):
        tally.count(word)
    for each in (tally, above):
        assert (each.leases, each.active_leases, dict(each.runs)) == (2, 1, {"ended": 2, "failed": 1})
