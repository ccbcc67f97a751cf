"""One run's messages in order, whatever the connection does. Pure.

AMQP keeps an order until a connection is lost; then a publish may be lost, repeated, or overtaken. So every item has
a number: the sender keeps it until the receiver has said that everything up to it has come, the receiver hands items
on in order and drops what comes twice.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Outbox(Generic[Item]):
    """The sender's side: gives numbers from 1, and keeps what is not acknowledged."""

    def __init__(self) -> None:
        self._kept: deque[tuple[int, Item]] = deque()
        self._unsent: deque[tuple[int, Item]] = deque()
        #: The last number given out, and the last that was taken to be sent.
        self.last = self.sent = 0

    def put(self, item: Item) -> int:
        """Take an item in; returns its number."""
        self.last += 1
        self._unsent.append((self.last, item))
        return self.last

    def take(self, most: int) -> list[tuple[int, Item]]:
        """What is to be sent next, at most so many; it is kept until it is acknowledged."""
        taken = [self._unsent.popleft() for _ in range(min(most, len(self._unsent)))]
        self._kept.extend(taken)
        if taken:
            self.sent = max(self.sent, taken[-1][0])
        return taken

    def heard(self, number: int) -> list[Item]:
        """Everything up to this number has come; returns what is kept no more. What was never sent stays."""
        dropped = []
        for items in (self._kept, self._unsent):
            while items and items[0][0] <= min(number, self.sent):
                dropped.append(items.popleft()[1])
        return dropped

    def again(self) -> None:
        """Send anew what was sent and never acknowledged, before what is new."""
        self._unsent.extendleft(reversed(self._kept))
        self._kept.clear()

    @property
    def waiting(self) -> bool:
        """Whether there is something to send."""
        return bool(self._unsent)

    @property
    def unheard(self) -> int:
        """How many items were never acknowledged."""
        return len(self._kept) + len(self._unsent)


class Inbox(Generic[Item]):
    """The receiver's side: hands on in order, drops repeats, waits for gaps."""

    def __init__(self) -> None:
        self._early: dict[int, Item] = {}
        self.heard = 0

    def put(self, number: int, item: Item) -> list[Item]:
        """Take an item in; returns what may be handed on now, in order."""
        if number > self.heard:
            self._early.setdefault(number, item)
        ready = []
        while self.heard + 1 in self._early:
            self.heard += 1
            ready.append(self._early.pop(self.heard))
        return ready

    def lacks(self, last: int) -> bool:
        """Whether something is missing, when the sender has given out numbers up to this one."""
        return self.heard < last
