"""What a slot's process says to its parent: every word in order, junk passed over, and nobody held up."""

from __future__ import annotations

import asyncio
import os

from quintain_host.said import READY, Saying, hearing, way
from quintain_host.tally import ENDS, LEASE, OVER, Tally

WORDS = [READY, LEASE, *ENDS, OVER]


async def test_every_word_is_heard_in_its_order() -> None:
    heard, said = way()
    words: list[str] = []
    saying = Saying(said)
    with hearing(heard, words.append):
        for word in WORDS:
            saying.say(word)
        async with asyncio.timeout(10):
            while len(words) < len(WORDS):
                await asyncio.sleep(0)
    assert words == WORDS
    # Nobody listens any more, and that is nobody's error.
    saying.say(LEASE)
    os.close(said)


async def test_what_is_still_on_its_way_at_the_end_is_heard() -> None:
    heard, said = way()
    words: list[str] = []
    with hearing(heard, words.append):
        for _ in range(9_000):
            Saying(said).say(LEASE)
        os.write(said, b"\0junk?")
        Saying(said).say(OVER)
        os.close(said)
    assert words == [LEASE] * 9_000 + [OVER]


async def test_the_end_of_whoever_speaks_is_noticed_once() -> None:
    heard, said = way()
    with hearing(heard, lambda _: None):
        os.close(said)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        # A loop that is still told of the end is never idle.
        assert not asyncio.get_running_loop().remove_reader(heard)


async def test_a_parent_that_does_not_listen_holds_nobody_up() -> None:
    heard, said = way()
    for _ in range(70_000):
        Saying(said).say(LEASE)
    os.close(heard)
    os.close(said)


def test_a_tally_counts_what_is_held_and_tells_it_on() -> None:
    above = Tally()
    tally = Tally(told=above.count)
    for word in (LEASE, "ended", "ended", "failed", OVER, LEASE):
        tally.count(word)
    for each in (tally, above):
        assert (each.leases, each.held, dict(each.runs)) == (2, 1, {"ended": 2, "failed": 1})
