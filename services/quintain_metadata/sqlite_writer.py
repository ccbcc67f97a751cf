"""Who runs what a SQLite ledger was asked, and where: what waits together is committed together, and then answered."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from quintain_metadata.ledger import Operation

#: A group is full with so many operations: whoever waits for it waits for all of them.
GROUP_MOST = 128


@dataclass(frozen=True, slots=True)
class Asked:
    """Operations, and who waits for what each of them came to."""

    operations: Sequence[Operation[Any]]
    outcomes: asyncio.Future[list[Any]]

    def answer(self, outcomes: list[Any]) -> None:
        """Tell it; whoever asked may have gone, and what was decided stands."""
        if not self.outcomes.done():
            self.outcomes.set_result(outcomes)


#: Runs a group in one transaction and returns what each ask's operations came to. Raises nothing.
Commit = Callable[[list[Asked]], list[list[Any]]]


class Writer(Protocol):
    """The one writer of a file."""

    def put(self, asked: Asked) -> None:
        """Run it with whatever else waits."""

    async def close(self) -> None:
        """Finish what was asked."""


class ThreadWriter:
    """On a thread of its own: the loop goes on while the disk is written."""

    def __init__(self, commit: Commit, loop: asyncio.AbstractEventLoop) -> None:
        self._commit, self._loop = commit, loop
        self._asked: queue.SimpleQueue[Asked | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="ledger", daemon=True)
        self._thread.start()

    def put(self, asked: Asked) -> None:
        self._asked.put(asked)

    async def close(self) -> None:
        self._asked.put(None)
        await asyncio.to_thread(self._thread.join)

    def _work(self) -> None:
        last = False
        while not last:
            group, last = self._next_group()
            if group:
                self._loop.call_soon_threadsafe(_answer_all, group, self._commit(group))

    def _next_group(self) -> tuple[list[Asked], bool]:
        group, size = list[Asked](), 0
        asked = self._asked.get()
        while asked is not None:
            group.append(asked)
            size += len(asked.operations)
            if size >= GROUP_MOST or self._asked.empty():
                return group, False
            asked = self._asked.get()
        return group, True


class LoopWriter:
    """On the loop, which stands still meanwhile: for a process that has nothing else to do. A thread beside a busy loop
    waits for the interpreter's lock after every statement (decision 13)."""

    def __init__(self, commit: Commit, loop: asyncio.AbstractEventLoop) -> None:
        self._commit, self._loop = commit, loop
        self._waiting: deque[Asked] = deque()

    def put(self, asked: Asked) -> None:
        self._waiting.append(asked)
        if len(self._waiting) == 1:
            # What is made ready in the same turn of the loop is committed together.
            self._loop.call_soon(self._work)

    async def close(self) -> None:
        while self._waiting:
            self._work()

    def _work(self) -> None:
        group, size = list[Asked](), 0
        while self._waiting and size < GROUP_MOST:
            group.append(self._waiting.popleft())
            size += len(group[-1].operations)
        if group:
            _answer_all(group, self._commit(group))
        if self._waiting:
            self._loop.call_soon(self._work)


def _answer_all(group: list[Asked], outcomes: list[list[Any]]) -> None:
    for asked, outcome in zip(group, outcomes, strict=True):
        asked.answer(outcome)
