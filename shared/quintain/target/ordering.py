"""Ordered, exactly-once delivery of one run's items over an unreliable transport. No I/O.

AMQP guarantees order only within one connection; across a reconnect a message may be lost, repeated or reordered. So
each item is numbered: the sender keeps it until it is acknowledged, the receiver passes items on in order and drops
duplicates.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Outbox(Generic[Item]):
    """The sender's side: gives numbers from 1, and keeps what is not acknowledged."""

    def __init__(self) -> None:
        self._unacknowledged: deque[tuple[int, Item]] = deque()
        self._unsent: deque[tuple[int, Item]] = deque()
        #: The last number given out, and the last that was taken to be sent.
        self.last_number = self.last_sent = 0

    def put(self, item: Item) -> int:
        """Take an item in; returns its number."""
        self.last_number += 1
        self._unsent.append((self.last_number, item))
        return self.last_number

    def take(self, limit: int) -> list[tuple[int, Item]]:
        """What is to be sent next, at most so many; it is kept until it is acknowledged."""
        taken = [self._unsent.popleft() for _ in range(min(limit, len(self._unsent)))]
        self._unacknowledged.extend(taken)
        if taken:
            self.last_sent = max(self.last_sent, taken[-1][0])
        return taken

    def acknowledge(self, number: int) -> list[Item]:
        """Everything up to this number has come; returns what is kept no more. What was never sent stays."""
        acknowledged = []
        for items in (self._unacknowledged, self._unsent):
            while items and items[0][0] <= min(number, self.last_sent):
                acknowledged.append(items.popleft()[1])
        return acknowledged

    def requeue_unacknowledged(self) -> None:
        """Send anew what was sent and never acknowledged, before what is new."""
        self._unsent.extendleft(reversed(self._unacknowledged))
        self._unacknowledged.clear()

    @property
    def has_unsent(self) -> bool:
        """Whether there is something to send."""
        return bool(self._unsent)

    @property
    def unacknowledged_count(self) -> int:
        """How many items were never acknowledged."""
        return len(self._unacknowledged) + len(self._unsent)


class Inbox(Generic[Item]):
    """The receiver's side: hands on in order, drops repeats, waits for gaps."""

    def __init__(self) -> None:
        self._out_of_order: dict[int, Item] = {}
        self.last_in_order = 0

    def put(self, number: int, item: Item) -> list[Item]:
        """Take an item in; returns what may be handed on now, in order."""
        if number > self.last_in_order:
            self._out_of_order.setdefault(number, item)
        ready = []
        while self.last_in_order + 1 in self._out_of_order:
            self.last_in_order += 1
            ready.append(self._out_of_order.pop(self.last_in_order))
        return ready

    def is_missing(self, last_sent: int) -> bool:
        """Whether something is missing, when the sender has given out numbers up to this one."""
        return self.last_in_order < last_sent
