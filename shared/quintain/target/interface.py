"""The `Target` interface, as published by superred. Implement it and host it with ``quintain serve host``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from typing import Generic, TypeVar

from quintain.target.types import (
    ConfigSpec,
    Controllable,
    EventHandler,
    EventResponseHandler,
    ObservableValue,
    QuerySpec,
    SecurityDomain,
)


class Target(ABC):
    """The AI system under test; all values that cross this interface are text.

    Secrets and handles are passed to the constructor, on the host, and never over the wire. State has three lifetimes:
    *ephemeral* (one run, cleared by `reset_ephemeral_state`), *durable* (one lease, survives the reset), and what the
    constructor created (released by `teardown`).

    Example::

        class Echo(quintain.Target):
            async def run(self, emit, send_event):
                emit(quintain.ObservableEvent(observable=self.transcript, content=self.prompt))
    """

    @property
    @abstractmethod
    def config_specs(self) -> list[ConfigSpec]:
        """The configuration slots that a task may set before a run.

        Example::

            return [ConfigSpec("prompt", user, "The user's prompt, as plain text")]
        """

    @abstractmethod
    def set_config(self, name: str, value: str) -> None:
        """Set a configuration slot. Raises `ValueError` for a name that is not in `config_specs`.

        Example::

            target.set_config("prompt", "What is the capital of France?")
        """

    @property
    @abstractmethod
    def query_specs(self) -> list[QuerySpec]:
        """The queries that an evaluator may ask after a run.

        Example::

            return [QuerySpec("answer", "The agent's final answer")]
        """

    @abstractmethod
    def query(self, name: str, **params: str) -> str:
        """Answer a query. Raises `ValueError` for a name that is not in `query_specs`.

        Example::

            answer = target.query("answer")
        """

    @property
    @abstractmethod
    def security_domain(self) -> SecurityDomain:
        """The tags over everything that the target exposes.

        Example::

            return SecurityDomain([user, profile])
        """

    @abstractmethod
    def get_controllables(self) -> list[Controllable]:
        """Return the controllables of the current configuration.

        Example::

            return [Controllable("search", user, "The search tool")]
        """

    @abstractmethod
    def get_observables(self) -> list[ObservableValue]:
        """Return the observables of the current configuration, with the values known before a run.

        Example::

            return [ObservableValue(Observable("system_prompt", user), self.system_prompt)]
        """

    @abstractmethod
    async def run(self, emit: EventHandler, send_event: EventResponseHandler) -> None:
        """Run once.

        ``emit`` records an event; ``send_event`` waits for its response. Several events may wait at once, and are
        answered in any order. A thread of the target may call ``emit`` directly, and ``send_event`` through
        `asyncio.run_coroutine_threadsafe`.

        Example::

            response = await send_event(ControllablePreCallEvent(controllable=search, request=query))
            if isinstance(response, ControllableInjection):
                query = response.value
        """

    @abstractmethod
    async def reset_ephemeral_state(self) -> None:
        """Clear the state of the last run. Required, even if it does nothing.

        Example::

            self.messages.clear()
        """

    @abstractmethod
    async def teardown(self) -> None:
        """Release all resources: the lease has ended.

        Example::

            await self.http.aclose()
        """


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
