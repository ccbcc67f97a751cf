"""The ``Target`` interface over a lease, with our or superred's types.

`set_config` and `query` block until they are answered, exceptions keep their class, and events keep their ids. Only the
`Target` interface is available: other attributes raise `AttributeError`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from quintain.contracts import hosting
from quintain.contracts.remote_target import TargetDescriptor
from quintain.contracts.values import replace_surrogates
from quintain.errors import HostLost
from quintain.remote.child_session import ChildSession, ChildSessions, check_takes_session
from quintain.remote.connection_thread import ConnectionThread
from quintain.remote.lease import RemoteLease, TargetTimeouts
from quintain.remote.run_driver import RunDriver
from quintain.remote.trajectory_recorder import TrajectoryFolder
from quintain.target import SESSION_SLOT
from quintain.target.codec import Codec


class RemoteTarget:
    """Implements `quintain.Target` over a lease; ``on_released`` is called when the lease has ended."""

    def __init__(
        self,
        connection: ConnectionThread,
        lease: RemoteLease,
        codec: Codec,
        on_released: Callable[[RemoteLease], None],
        timeouts: TargetTimeouts,
    ) -> None:
        self._timeouts = timeouts
        self._connection, self._lease, self._codec, self._on_released = connection, lease, codec, on_released
        self._descriptor: TargetDescriptor | None = lease.descriptor
        self._session: ChildSession | None = None
        self._trajectories: TrajectoryFolder | None = None

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"A hosted target has no {name!r} here: only the Target interface crosses. Make it a query, or run this "
            "code on the target's host"
        )

    @property
    def config_specs(self) -> list[Any]:
        """The configuration slots that can be set before a run."""
        return self._codec.config_specs(self._lease.descriptor)

    @property
    def query_specs(self) -> list[Any]:
        """The queries that can be asked after a run."""
        return self._codec.query_specs(self._lease.descriptor)

    @property
    def security_domain(self) -> Any:
        """The target's tags; they are the same objects as the tags of scopes created here."""
        return self._codec.domain(self._lease.descriptor)

    @property
    def host_lost(self) -> bool:
        """Whether the instance's host is gone."""
        return self._lease.host_lost

    def record_runs(self, folder: TrajectoryFolder | None) -> None:
        """Record each further run in a file of this folder; None records none."""
        self._trajectories = folder

    def unresolved_tags(self, *, by_path: bool = False) -> list[str]:
        """Register the target's tags that imported modules have, and return the paths of the other ones.

        See `Codec.unresolved_tags`. Raises `ConfigError`.
        """
        return self._codec.unresolved_tags(self._lease.descriptor, by_path=by_path)

    def open_session(self, sessions: ChildSessions) -> None:
        """Open a child session for the target's agent, and pass its token to the target; it is closed by `teardown`.

        Raises `ConfigError` if the target has no slot for a session, and the `Fault` that refused the session.
        """
        check_takes_session(self._lease.name, (spec.name for spec in self.config_specs))
        self._session = self._connection.run_blocking(sessions.open())
        self.set_config(SESSION_SLOT, self._session.token)

    def set_config(self, name: str, value: str) -> None:
        """Set a configuration slot. Raises what the target raises."""
        self._call(hosting.SetConfig(values={name: to_wire_text(value, f"the value of {name!r}")}))

    def query(self, name: str, **params: str) -> str:
        """Query the target after a run. Raises what the target raises."""
        wire_params = {key: to_wire_text(value, f"the parameter {key!r} of {name!r}") for key, value in params.items()}
        return self._call(hosting.QueryTarget(name=name, params=wire_params)).value or ""

    def get_controllables(self) -> list[Any]:
        """Return the controllables of the current configuration."""
        return [self._codec.controllable(controllable) for controllable in self._get_descriptor().controllables]

    def get_observables(self) -> list[Any]:
        """Return the observables of the current configuration, with their values."""
        return self._codec.observables(self._get_descriptor())

    async def run(self, emit: Callable[[Any], None], send_event: Callable[[Any], Any]) -> None:
        """Run the target once.

        Raises what the target raised, `HostLost` if the host is gone, and `TimeoutError` after ``run_seconds``.
        """
        self._descriptor = None
        with (
            contextlib.nullcontext() if self._trajectories is None else self._trajectories.open(self._lease) as recorder
        ):
            driver = RunDriver(
                *(self._connection, self._lease, self._codec, emit, send_event),
                timeouts=self._timeouts,
                recorder=recorder,
            )
            await driver.run()

    async def reset_ephemeral_state(self) -> None:
        """Clear the state of the last run; does nothing if the host is gone."""
        self._descriptor = None
        with contextlib.suppress(HostLost):
            await self._connection.run(self._lease.call(hosting.ResetTarget()))

    async def teardown(self) -> None:
        """End the lease; returns at once if the host is gone."""
        try:
            with contextlib.suppress(HostLost):
                await self._connection.run(self._lease.call(hosting.Teardown()))
        finally:
            # First of all: the next lease is requested now.
            self._on_released(self._lease)
            with contextlib.suppress(HostLost):
                await self._connection.run(self._release())

    def _call(self, request: hosting.LeaseRequest) -> hosting.LeaseResult:
        """Send a request that may change the instance, and block until its result."""
        self._descriptor = None
        return self._connection.run_blocking(self._lease.call(request))

    async def _release(self) -> None:
        """Release everything on the connection's loop."""
        await self._lease.close()
        if self._session is not None:
            await self._session.close()

    def _get_descriptor(self) -> TargetDescriptor:
        if self._descriptor is None:
            self._descriptor = self._connection.run_blocking(self._lease.call(hosting.DescribeTarget())).descriptor
        assert self._descriptor is not None, "the reply to a describe request has a descriptor"
        return self._descriptor


def to_wire_text(value: object, description: str) -> str:
    """Return a string that can be encoded as UTF-8. Raises `TypeError` for any other type."""
    if not isinstance(value, str):
        raise TypeError(f"{description} is of type {type(value).__name__}, not str: give its text, as with str(...)")
    return replace_surrogates(value)
