"""The writer of a ledger file: together what waits together, in its order, and no answer before the commit."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from quintain_metadata.sqlite import MAX_GROUP_OPERATIONS, ThreadWriter, WriteBatch


class CommitRecorder:
    """Counts groups; what a group comes to are the names of what was asked, once it is ``open``."""

    def __init__(self) -> None:
        self.groups: list[list[Any]] = []
        self.open = threading.Event()
        self.open.set()

    def __call__(self, group: list[WriteBatch]) -> list[list[Any]]:
        self.groups.append([asked.operations for asked in group])
        self.open.wait(10)
        return [list(asked.operations) for asked in group]


def write_batch(*names: Any) -> WriteBatch:
    return WriteBatch(names, asyncio.get_running_loop().create_future())


async def test_what_waits_is_committed_in_its_order_and_in_groups_of_bounded_size() -> None:
    commits = CommitRecorder()
    writer = ThreadWriter(commits, asyncio.get_running_loop())
    all_asked = [write_batch(f"{number}", "twice") for number in range(300)]
    for one in all_asked:
        writer.put(one)
    assert [await one.outcomes for one in all_asked] == [[f"{number}", "twice"] for number in range(300)]
    assert [names[0] for group in commits.groups for names in group] == [f"{number}" for number in range(300)]
    assert max(sum(map(len, group)) for group in commits.groups) <= MAX_GROUP_OPERATIONS
    await writer.close()


async def test_what_comes_while_the_thread_commits_is_the_next_group() -> None:
    commits = CommitRecorder()
    commits.open.clear()
    writer = ThreadWriter(commits, asyncio.get_running_loop())
    first, others = write_batch("first"), [write_batch(f"{number}") for number in range(MAX_GROUP_OPERATIONS + 1)]
    writer.put(first)
    while not commits.groups:
        await asyncio.sleep(0)
    for one in others:
        writer.put(one)
    assert not first.outcomes.done()
    commits.open.set()
    await asyncio.gather(*(one.outcomes for one in others))
    assert list(map(len, commits.groups)) == [1, MAX_GROUP_OPERATIONS, 1]
    await writer.close()


async def test_what_was_asked_before_the_end_is_done_whoever_has_gone() -> None:
    commits = CommitRecorder()
    writer = ThreadWriter(commits, asyncio.get_running_loop())
    gone, here = write_batch("gone"), write_batch("here")
    gone.outcomes.cancel()
    writer.put(gone)
    writer.put(here)
    await writer.close()
    assert await here.outcomes == ["here"]
    assert [names for group in commits.groups for names in group] == [("gone",), ("here",)]
