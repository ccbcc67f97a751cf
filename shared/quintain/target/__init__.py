"""Targets under test: superred's published `Target` interface with types of our own, so superred is not required.

A target is the AI system under test. A controller configures it, runs it, answers its events and queries it afterwards.
`quintain_host` hosts targets; `quintain.remote` drives them from another machine. Classes written for superred work
unchanged, because class and field names are the same.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from quintain.target.types import (
    SESSION_SLOT,
    ConfigSpec,
    Controllable,
    ControllableInjection,
    ControllableNoInjection,
    ControllablePostCallEvent,
    ControllablePreCallEvent,
    Event,
    EventHandler,
    EventResponse,
    EventResponseHandler,
    Observable,
    ObservableEvent,
    ObservableValue,
    QueryParam,
    QuerySpec,
    Scope,
    SecurityDomain,
    SecurityDomainTag,
    scope_includes,
)

__all__ = [
    "SESSION_SLOT",
    "ConfigSpec",
    "Controllable",
    "ControllableInjection",
    "ControllableNoInjection",
    "ControllablePostCallEvent",
    "ControllablePreCallEvent",
    "Event",
    "EventHandler",
    "EventResponse",
    "EventResponseHandler",
    "Observable",
    "ObservableEvent",
    "ObservableValue",
    "QueryParam",
    "QuerySpec",
    "Scope",
    "SecurityDomain",
    "SecurityDomainTag",
    "Target",
    "scope_includes",
]


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
