"""A target whose agent is plain, blocking code on a thread of its own: most agents are.

The thread emits directly, and sends its events through the loop that `run` was called on. Host it with
``quintain serve host archive:Archive --name archive``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from quintain.target import (
    ConfigSpec,
    Controllable,
    ControllableInjection,
    ControllablePreCallEvent,
    EventHandler,
    EventResponseHandler,
    Observable,
    ObservableEvent,
    ObservableValue,
    QuerySpec,
    SecurityDomain,
    SecurityDomainTag,
    Target,
)

USER = SecurityDomainTag("user")
WISH = Controllable("wish", USER, "What is looked for")
STEP = Observable("step", USER, "What the archivist does")

SHELVES = {"maps": "Shelf 3", "letters": "Shelf 7"}


class Archive(Target):
    """Looks things up, one step after another, as blocking code does."""

    def __init__(self) -> None:
        self._found = ""

    @property
    def config_specs(self) -> list[ConfigSpec]:
        return []

    def set_config(self, name: str, value: str) -> None:
        raise ValueError(f"The archive has nothing to configure, and no {name!r}")

    @property
    def query_specs(self) -> list[QuerySpec]:
        return [QuerySpec("found", "Where the last thing was found")]

    def query(self, name: str, **params: str) -> str:
        if name != "found":
            raise ValueError(f"The archive answers no query {name!r}: it answers 'found'")
        return self._found

    @property
    def security_domain(self) -> SecurityDomain:
        return SecurityDomain([USER])

    def get_controllables(self) -> list[Controllable]:
        return [WISH]

    def get_observables(self) -> list[ObservableValue]:
        return [ObservableValue(STEP)]

    async def run(self, emit: EventHandler, send_event: EventResponseHandler) -> None:
        loop = asyncio.get_running_loop()

        def ask(wish: str) -> str:
            event = ControllablePreCallEvent(controllable=WISH, request=wish)
            response = asyncio.run_coroutine_threadsafe(send_event(event), loop).result()
            return response.value if isinstance(response, ControllableInjection) else wish

        await asyncio.to_thread(self._look, emit, ask)

    def _look(self, emit: EventHandler, ask: Callable[[str], str]) -> None:
        """The agent: it knows nothing of loops."""
        emit(ObservableEvent(observable=STEP, content="opening the door"))
        wish = ask("maps")
        emit(ObservableEvent(observable=STEP, content=f"looking for {wish}"))
        self._found = SHELVES.get(wish, "nowhere")
        emit(ObservableEvent(observable=STEP, content=f"{wish}: {self._found}"))

    async def reset_ephemeral_state(self) -> None:
        self._found = ""

    async def teardown(self) -> None:
        """Nothing is held."""
