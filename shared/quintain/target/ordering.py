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
    """The sender's side: numbers items from 1, and keeps them until they are acknowledged."""

    def __init__(self) -> None:
        self._unacknowledged: deque[tuple[int, Item]] = deque()
        self._unsent: deque[tuple[int, Item]] = deque()
        #: The last number assigned, and the last number taken to be sent.
        self.last_number = self.last_sent = 0

    def put(self, item: Item) -> int:
        """Add an item and return its number."""
        self.last_number += 1
        self._unsent.append((self.last_number, item))
        return self.last_number

    def take(self, limit: int) -> list[tuple[int, Item]]:
        """Return the next items to send, at most ``limit``, with their numbers."""
        to_send = [self._unsent.popleft() for _ in range(min(limit, len(self._unsent)))]
        self._unacknowledged.extend(to_send)
        if to_send:
            self.last_sent = max(self.last_sent, to_send[-1][0])
        return to_send

    def acknowledge(self, number: int) -> list[Item]:
        """Remove the sent items up to this number and return them; items that were never sent stay."""
        acknowledged = []
        for items in (self._unacknowledged, self._unsent):
            while items and items[0][0] <= min(number, self.last_sent):
                acknowledged.append(items.popleft()[1])
        return acknowledged

    def requeue_unacknowledged(self) -> None:
        """Queue sent but unacknowledged items to be sent again, before new ones."""
        self._unsent.extendleft(reversed(self._unacknowledged))
        self._unacknowledged.clear()

    @property
    def has_unsent(self) -> bool:
        """Whether there are items to send."""
        return bool(self._unsent)

    @property
    def unacknowledged_count(self) -> int:
        """The number of items not acknowledged, sent or not."""
        return len(self._unacknowledged) + len(self._unsent)


class Inbox(Generic[Item]):
    """The receiver's side: passes items on in order, drops duplicates, and waits for missing ones."""

    def __init__(self) -> None:
        self._out_of_order: dict[int, Item] = {}
        self.last_in_order = 0

    def put(self, number: int, item: Item) -> list[Item]:
        """Add an item, and return the items that are now in order."""
        if number > self.last_in_order:
            self._out_of_order.setdefault(number, item)
        ready = []
        while self.last_in_order + 1 in self._out_of_order:
            self.last_in_order += 1
            ready.append(self._out_of_order.pop(self.last_in_order))
        return ready

    def is_missing(self, last_sent: int) -> bool:
        """Return whether items are missing, if the sender's last number is ``last_sent``."""
        return self.last_in_order < last_sent
