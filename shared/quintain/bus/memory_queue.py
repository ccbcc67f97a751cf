"""One queue of the memory transport: RabbitMQ's semantics, and no feature that RabbitMQ lacks.

Head-only expiry, redelivery with a count, a delivery limit, reject-publish, dead lettering with the headers that
RabbitMQ writes, and removal when unused. Everything here is synchronous: it runs on the one event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from quintain.bus.base import Envelope
from quintain.topology import Queue


@dataclass(slots=True, eq=False)
class Stored:
    """A message in a queue. ``expires_at`` is in the loop's seconds, None for never."""

    envelope: Envelope
    exchange: str
    key: str
    expires_at: float | None
    headers: Mapping[str, object]
    returns: int = 0


class Taker(Protocol):
    """Who takes messages from a queue."""

    @property
    def free(self) -> bool:
        """Whether it may take another one."""

    def take(self, queue: MemoryQueue, stored: Stored) -> None:
        """Take this message; it is the taker's until it settles it."""

    def lost(self, *, with_queue: bool = False) -> None:
        """Hear that the connection went, or the queue itself."""


@dataclass(slots=True, eq=False)
class MemoryQueue:
    """Messages in order, and those who take them in turn."""

    spec: Queue
    #: What to do with a message that ends here: (message, reason) as RabbitMQ names them.
    bury: Callable[[MemoryQueue, Stored, str], None]
    #: What to do when it has been unused for its ``expires_ms``.
    vanish: Callable[[MemoryQueue], None]
    ready: deque[Stored] = field(default_factory=deque)
    takers: deque[Taker] = field(default_factory=deque)
    _head_timer: asyncio.TimerHandle | None = None
    _unused_timer: asyncio.TimerHandle | None = None

    @property
    def full(self) -> bool:
        """Whether a publish is refused."""
        return self.spec.max_length is not None and len(self.ready) >= self.spec.max_length

    def put(self, envelope: Envelope, exchange: str, key: str, headers: Mapping[str, object]) -> None:
        """Take a message at the end."""
        limits = [ms for ms in (envelope.expiration_ms, self.spec.message_ttl_ms) if ms is not None]
        expires_at = asyncio.get_running_loop().time() + min(limits) / 1000 if limits else None
        self.ready.append(Stored(envelope, exchange, key, expires_at, headers))
        self.pump()

    def give_back(self, stored: Stored) -> None:
        """Take a message back at the head; past the delivery limit it is dead."""
        stored.returns += 1
        if self.spec.delivery_limit is not None and stored.returns > self.spec.delivery_limit:
            self.bury(self, stored, "delivery_limit")
        else:
            self.ready.appendleft(stored)
        self.pump()

    def attach(self, taker: Taker) -> None:
        """Deliver to this taker, too."""
        self.takers.append(taker)
        if self._unused_timer is not None:
            self._unused_timer.cancel()
            self._unused_timer = None
        self.pump()

    def detach(self, taker: Taker) -> None:
        """Deliver to this taker no more."""
        if taker in self.takers:
            self.takers.remove(taker)
        if not self.takers:
            self.watch_use()

    def watch_use(self) -> None:
        """Start the clock of an unused queue."""
        if self.spec.expires_ms is not None and self._unused_timer is None:
            loop = asyncio.get_running_loop()
            self._unused_timer = loop.call_later(self.spec.expires_ms / 1000, self.vanish, self)

    def pump(self) -> None:
        """Deliver what can be delivered, in turn; drop what has expired at the head."""
        while self.ready:
            if self._head_expired():
                self.bury(self, self.ready.popleft(), "expired")
                continue
            taker = self._next_taker()
            if taker is None:
                self._watch_head()
                break
            taker.take(self, self.ready.popleft())

    def close(self) -> None:
        """Stop the timers."""
        for timer in (self._head_timer, self._unused_timer):
            if timer is not None:
                timer.cancel()

    def _next_taker(self) -> Taker | None:
        for _ in range(len(self.takers)):
            self.takers.rotate(-1)
            if self.takers[-1].free:
                return self.takers[-1]
        return None

    def _head_expired(self) -> bool:
        expires_at = self.ready[0].expires_at
        return expires_at is not None and expires_at <= asyncio.get_running_loop().time()

    def _watch_head(self) -> None:
        """Look again when the head expires: a timer set for a head before it does no harm, and looks again too."""
        expires_at = self.ready[0].expires_at
        if expires_at is None or (self._head_timer is not None and self._head_timer.when() <= expires_at):
            return
        if self._head_timer is not None:
            self._head_timer.cancel()
        self._head_timer = asyncio.get_running_loop().call_at(expires_at, self._on_head_timer)

    def _on_head_timer(self) -> None:
        self._head_timer = None
        self.pump()
