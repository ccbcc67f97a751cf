"""Both ways to write: together what waits together, in its order, and no answer before the commit."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from quintain_metadata.sqlite_writer import GROUP_MOST, Asked, LoopWriter, ThreadWriter

WRITERS = pytest.mark.parametrize("kind", [ThreadWriter, LoopWriter])


class Commits:
    """Counts groups; what a group comes to are the names of what was asked, once it is ``open``."""

    def __init__(self) -> None:
        self.groups: list[list[Any]] = []
        self.open = threading.Event()
        self.open.set()

    def __call__(self, group: list[Asked]) -> list[list[Any]]:
        self.groups.append([asked.operations for asked in group])
        self.open.wait(10)
        return [list(asked.operations) for asked in group]


def asked(*names: Any) -> Asked:
    return Asked(names, asyncio.get_running_loop().create_future())


@WRITERS
async def test_what_waits_is_committed_in_its_order_and_in_groups_of_bounded_size(
    kind: type[ThreadWriter | LoopWriter],
) -> None:
    commits = Commits()
    writer = kind(commits, asyncio.get_running_loop())
    all_asked = [asked(f"{number}", "twice") for number in range(300)]
    for one in all_asked:
        writer.put(one)
    assert [await one.outcomes for one in all_asked] == [[f"{number}", "twice"] for number in range(300)]
    assert [names[0] for group in commits.groups for names in group] == [f"{number}" for number in range(300)]
    assert max(sum(map(len, group)) for group in commits.groups) <= GROUP_MOST
    await writer.close()


async def test_what_comes_while_the_thread_commits_is_the_next_group() -> None:
    commits = Commits()
    commits.open.clear()
    writer = ThreadWriter(commits, asyncio.get_running_loop())
    first, others = asked("first"), [asked(f"{number}") for number in range(GROUP_MOST + 1)]
    writer.put(first)
    while not commits.groups:
        await asyncio.sleep(0)
    for one in others:
        writer.put(one)
    assert not first.outcomes.done()
    commits.open.set()
    await asyncio.gather(*(one.outcomes for one in others))
    assert list(map(len, commits.groups)) == [1, GROUP_MOST, 1]
    await writer.close()


@WRITERS
async def test_what_was_asked_before_the_end_is_done_whoever_has_gone(kind: type[ThreadWriter | LoopWriter]) -> None:
    commits = Commits()
    writer = kind(commits, asyncio.get_running_loop())
    gone, here = asked("gone"), asked("here")
    gone.outcomes.cancel()
    writer.put(gone)
    writer.put(here)
    await writer.close()
    assert await here.outcomes == ["here"]
    assert [names for group in commits.groups for names in group] == [("gone",), ("here",)]
