"""The `Target` interface, as published by superred. Implement it and host it with ``quintain serve host``."""

from __future__ import annotations

from abc import ABC, abstractmethod

from quintain.target.domain import SecurityDomain
from quintain.target.events import EventHandler, EventResponseHandler
from quintain.target.specs import ConfigSpec, Controllable, ObservableValue, QuerySpec


class Target(ABC):
    """The AI system under test. All its values are text.

    Secrets and handles come through the constructor, on the host, and never over the wire. State has three
    lifetimes: *ephemeral* (of one run, cleared by `reset_ephemeral_state`), *durable* (of one lease: it survives the
    reset), and what the constructor made (released by `teardown`).
    """

    @property
    @abstractmethod
    def config_specs(self) -> list[ConfigSpec]:
        """The slots a task may fill before a run."""

    @abstractmethod
    def set_config(self, name: str, value: str) -> None:
        """Fill a slot. Raises `ValueError` for a name that is not in `config_specs`."""

    @property
    @abstractmethod
    def query_specs(self) -> list[QuerySpec]:
        """The questions an evaluator may ask after a run."""

    @abstractmethod
    def query(self, name: str, **params: str) -> str:
        """Answer one. Raises `ValueError` for a name that is not in `query_specs`."""

    @property
    @abstractmethod
    def security_domain(self) -> SecurityDomain:
        """The forest of tags over everything exposed."""

    @abstractmethod
    def get_controllables(self) -> list[Controllable]:
        """The points where values may be injected, as configured by now."""

    @abstractmethod
    def get_observables(self) -> list[ObservableValue]:
        """What is to be known of this target before it runs, as configured by now."""

    @abstractmethod
    async def run(self, emit: EventHandler, send_event: EventResponseHandler) -> None:
        """One run. ``emit`` records, ``send_event`` waits for a response; several may wait at once, answered in any
        order. A thread of the target's own may call ``emit`` directly, and ``send_event`` through
        `asyncio.run_coroutine_threadsafe`."""

    @abstractmethod
    async def reset_ephemeral_state(self) -> None:
        """Clear what belonged to the run. Required, even where it does nothing."""

    @abstractmethod
    async def teardown(self) -> None:
        """Let go of everything: the lease is over."""
