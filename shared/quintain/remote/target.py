"""A Target that is somewhere else: the interface over a lease, in either vocabulary.

What is plain in process is plain here: `set_config` and `query` block until they are answered, errors keep their
class, events keep their ids. What is not the interface does not cross: an attribute of the target's own is refused.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from quintain.contracts.hosted import Descriptor
from quintain.contracts.text import whole
from quintain.errors import ConfigError, HostLost
from quintain.remote.child_session import ChildSession, ChildSessions
from quintain.remote.lease import RemoteLease
from quintain.remote.line import Line
from quintain.remote.performing import RemoteRun
from quintain.remote.run import Ear
from quintain.routes import DESCRIBE, QUERY, RESET, SET_CONFIG, TEARDOWN
from quintain.target import SESSION_SLOT
from quintain.target.codec import Codec


class RemoteTarget:
    """A leased instance, as a Target. ``released`` is called when its lease is over."""

    def __init__(self, line: Line, lease: RemoteLease, codec: Codec, released: Callable[[RemoteLease], None]) -> None:
        self._line, self._lease, self._codec, self._released = line, lease, codec, released
        self._descriptor: Descriptor | None = lease.descriptor
        self._ear = Ear(lease.bus)
        self._session: ChildSession | None = None

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"A hosted target has no {name!r} here: only the Target interface crosses. Make it a query, or run this "
            "code on the target's host"
        )

    @property
    def config_specs(self) -> list[Any]:
        """The slots a task may fill."""
        return self._codec.config_specs(self._described())

    @property
    def query_specs(self) -> list[Any]:
        """The questions an evaluator may ask."""
        return self._codec.query_specs(self._described())

    @property
    def security_domain(self) -> Any:
        """The forest of tags, as the very objects that scopes here are made of."""
        return self._codec.domain(self._described())

    def open_session(self, sessions: ChildSessions) -> None:
        """Open a session that the target's agent calls models with, until teardown. Raises `ConfigError` where the
        target declares no slot for one, and the `Fault` that refused it."""
        if all(spec.name != SESSION_SLOT for spec in self.config_specs):
            raise ConfigError(
                f"A session was to be given to target {self._lease.name!r}, which declares no configuration slot "
                f"{SESSION_SLOT!r} to take it: declare one, or leave child_session out"
            )
        self._session = self._line.call(sessions.open())
        self.set_config(SESSION_SLOT, self._session.token)

    def set_config(self, name: str, value: str) -> None:
        """Fill a slot; what the target raises is raised here."""
        self._descriptor = None
        self._line.call(self._lease.ask(SET_CONFIG, name=name, value=text(value, f"the value of {name!r}")))

    def query(self, name: str, **params: str) -> str:
        """Ask after a run; what the target raises is raised here."""
        self._descriptor = None
        asked = {key: text(value, f"the parameter {key!r} of {name!r}") for key, value in params.items()}
        return self._line.call(self._lease.ask(QUERY, name=name, params=asked)).value or ""

    def get_controllables(self) -> list[Any]:
        """The points where values may be injected, as configured by now."""
        return [self._codec.controllable(each) for each in self._described().controllables]

    def get_observables(self) -> list[Any]:
        """What is to be known before a run, as configured by now."""
        return self._codec.observables(self._described())

    async def run(self, emit: Callable[[Any], None], send_event: Callable[[Any], Any]) -> None:
        """One run. Raises what the target raised, and `HostLost` where the host has gone."""
        self._descriptor = None
        if self._lease.gone:
            raise self._lease.loss()
        await RemoteRun(self._line, self._lease, self._ear, self._codec, emit, send_event).perform()

    async def reset_ephemeral_state(self) -> None:
        """Clear what belonged to the run; at once where the host has gone."""
        if not self._lease.gone:
            with contextlib.suppress(HostLost):
                await self._line.on_line(self._lease.ask(RESET))

    async def teardown(self) -> None:
        """End the lease; at once where the host has gone."""
        try:
            if not self._lease.gone:
                with contextlib.suppress(HostLost):
                    await self._line.on_line(self._lease.ask(TEARDOWN))
        finally:
            with contextlib.suppress(HostLost):
                await self._line.on_line(self._let_go())
            self._released(self._lease)

    async def _let_go(self) -> None:
        """On the line."""
        if self._session is not None:
            await self._session.close()
        await self._ear.close()
        await self._lease.give_up()

    def _described(self) -> Descriptor:
        if self._descriptor is None:
            self._descriptor = self._line.call(self._lease.ask(DESCRIBE)).descriptor
        assert self._descriptor is not None, "a description answers a describe"
        return self._descriptor


def text(value: object, what: str) -> str:
    """The value as it can be carried. Raises `TypeError` where it is no text."""
    if not isinstance(value, str):
        raise TypeError(f"{what} is a {type(value).__name__}: a target's values are text")
    return whole(value)
