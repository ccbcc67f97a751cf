"""`quintain.lease`: one instance of a hosted target, from any host that has a free slot, for an asynchronous program.

The connection has a thread of its own, so that an attack that blocks the program's loop does not lose its lease.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from pathlib import Path

from quintain.bus.base import Bus
from quintain.bus.connect import open_bus
from quintain.bus.memory import MemoryBroker
from quintain.contracts import hosting
from quintain.contracts.remote_target import TargetDescriptor
from quintain.controller.scope import GivenScope, OnEvent, answer_in_scope, as_list, find_scope
from quintain.controller.trajectory import Trajectory
from quintain.errors import BusError, HostLost, NoAnswer, Unroutable
from quintain.remote.child_session import ChildSessionPolicy, ChildSessions, check_takes_session, open_with_token
from quintain.remote.connection_thread import ConnectionThread, Executor, InlineExecutor
from quintain.remote.lease import DEFAULT_TIMEOUTS, RemoteLease, TargetTimeouts, acquire_lease, describe_host
from quintain.remote.run_driver import RunDriver
from quintain.remote.target import to_wire_text
from quintain.remote.trajectory_recorder import TrajectoryFolder
from quintain.rpc.requests import RpcClient
from quintain.runtime.concurrency import cancel_and_wait
from quintain.settings import environment, read_settings
from quintain.target import (
    SESSION_SLOT,
    ConfigSpec,
    Controllable,
    ObservableValue,
    QuerySpec,
    Scope,
    SecurityDomain,
    SecurityDomainTag,
)
from quintain.target.codec import Codec
from quintain.target.type_registry import QUINTAIN_TYPES, TagRegistry
from quintain.timings import Timings

log = logging.getLogger(__name__)

#: How often a program is told that it waits for a slot, for how long it does, and how long a host has to say that it is
#: there, in seconds.
WAITING_SECONDS, MAX_WAITING_SECONDS, DESCRIBE_SECONDS = 60.0, 86_400.0, 1.0


@dataclass(frozen=True, slots=True)
class _Connection:
    """A connection to the broker, and how to use it from the program's loop."""

    executor: Executor
    bus: Bus
    rpc_client: RpcClient


class LeasedTarget:
    """A leased instance of a hosted target, as `quintain.lease` gives it; its methods raise what the target raises.

    All of them also raise `HostLost` if the host is gone, and `TimeoutError` where a limit of `TargetTimeouts` is over.

    Example::

        async with quintain.lease("support-bot", scope=["user"]) as target:
            await target.set_config("persona", "terse")
            trajectory = await target.run(on_event=attack)
            answer = await target.query("last_reply")
    """

    def __init__(
        self,
        connection: _Connection,
        lease: RemoteLease,
        codec: Codec,
        scopes: tuple[Scope, Scope],
        timeouts: TargetTimeouts,
        folder: TrajectoryFolder | None,
    ) -> None:
        self._connection, self._lease, self._codec = connection, lease, codec
        self._timeouts, self._folder = timeouts, folder
        self._descriptor: TargetDescriptor | None = lease.descriptor
        self._is_running = False
        #: The tags whose events may be answered, and those that may only be seen.
        self.scope, self.read_only = scopes
        #: What happened in the run that goes on, or in the last one; `Trajectory.filtered` is what the scope may see.
        self.trajectory = Trajectory(filtered_scope=self.scope | self.read_only)

    @property
    def host_id(self) -> str:
        """The host that has the instance."""
        return self._lease.host_id

    @property
    def security_domain(self) -> SecurityDomain:
        """The target's tags."""
        domain: SecurityDomain = self._codec.domain(self._lease.descriptor)
        return domain

    @property
    def config_specs(self) -> list[ConfigSpec]:
        """The configuration slots."""
        return self._codec.config_specs(self._lease.descriptor)

    @property
    def query_specs(self) -> list[QuerySpec]:
        """The queries."""
        return self._codec.query_specs(self._lease.descriptor)

    async def get_controllables(self) -> list[Controllable]:
        """Return the controllables of the current configuration.

        Example::

            names = [each.name for each in await target.get_controllables()]
        """
        return [self._codec.controllable(each) for each in (await self._describe()).controllables]

    async def get_observables(self) -> list[ObservableValue]:
        """Return the observables of the current configuration, with the values known before a run.

        Example::

            known = {each.observable.name: each.content for each in await target.get_observables()}
        """
        return self._codec.observables(await self._describe())

    async def set_config(self, name: str, value: str) -> None:
        """Set a configuration slot.

        Example::

            await target.set_config("persona", "terse")
        """
        await self._call(hosting.SetConfig(values={name: to_wire_text(value, f"the value of {name!r}")}))

    async def query(self, name: str, **params: str) -> str:
        """Query the target after a run.

        Example::

            answer = await target.query("last_reply")
        """
        wire_params = {key: to_wire_text(value, f"the parameter {key!r} of {name!r}") for key, value in params.items()}
        return (await self._call(hosting.QueryTarget(name=name, params=wire_params))).value or ""

    async def run(self, on_event: OnEvent | None = None, *, title: str = "") -> Trajectory:
        """Run the target once, and return what happened; after an exception `trajectory` has it.

        - ``on_event`` answers each event, as a coroutine function or a plain one; None of it leaves the value as it is.
          Several events may wait at once. Events of controllables outside the scope never reach it, and their values
          stay. What it raises is raised in the target, and comes back from there as the same object.
        - ``title`` is the run's name in `quintain view`, if it is recorded.

        A response that the event does not take is a `TypeError`, one to another event a `ValueError`, in the target.
        Raises `RuntimeError` while another run of this lease goes on.

        Example::

            trajectory = await target.run(on_event=attack)
            trajectory.show()
        """
        if self._is_running:
            raise RuntimeError("A run of this lease goes on: await it, or lease another instance")
        self._is_running, self._descriptor = True, None
        trajectory = self.trajectory = Trajectory(filtered_scope=self.scope | self.read_only)
        folder = None if self._folder is None else dataclasses.replace(self._folder, title=title)
        try:
            with contextlib.nullcontext() if folder is None else folder.open(self._lease) as recorder:
                await RunDriver(
                    self._connection.executor,
                    self._lease,
                    self._codec,
                    trajectory.emit,
                    trajectory.recording(answer_in_scope(on_event, self.scope)),
                    timeouts=self._timeouts,
                    recorder=recorder,
                ).run()
        finally:
            self._is_running = False
            trajectory.close()
        return trajectory

    async def reset(self) -> None:
        """Clear the state of the last run.

        Example::

            for prompt in prompts:
                await target.set_config("prompt", prompt)
                await target.run(on_event=attack)
                await target.reset()
        """
        await self._call(hosting.ResetTarget())

    async def open_session(self, sessions: ChildSessions) -> None:
        """Open a child session for the target's agent, and pass its token to the target.

        Raises `ConfigError` if the target has no slot for a session, and the `Fault` that refused the session.
        """
        check_takes_session(self._lease.name, (spec.name for spec in self.config_specs))
        session = await self._connection.executor.run(sessions.open())
        await self.set_config(SESSION_SLOT, session.token)

    async def _describe(self) -> TargetDescriptor:
        if self._descriptor is None:
            self._descriptor = (
                await self._connection.executor.run(self._lease.call(hosting.DescribeTarget()))
            ).descriptor
        assert self._descriptor is not None, "the reply to a describe request has a descriptor"
        return self._descriptor

    async def _call(self, request: hosting.LeaseRequest) -> hosting.LeaseResult:
        self._descriptor = None
        return await self._connection.executor.run(self._lease.call(request))


@contextlib.asynccontextmanager
async def lease(  # noqa: PLR0913 -- what a lease may be given, by name
    name: str,
    *,
    scope: GivenScope | None = None,
    read_only: GivenScope = (),
    events: Iterable[type] = (),
    child_session: ChildSessionPolicy | None = None,
    timeouts: TargetTimeouts | None = None,
    trajectories: Path | str | None = None,
    url: str | None = None,
    connection: ConnectionThread | None = None,
    memory: MemoryBroker | None = None,
) -> AsyncIterator[LeasedTarget]:
    """Lease an instance of a hosted target until the context is left, which tears it down.

    It waits for a free slot without blocking the event loop, for a day at most, and logs a warning each minute.

    - ``name``: the name under which `quintain serve host` leases the target.
    - ``scope``: the tags whose events may be answered, by name or as objects; by default all tags of the target.
    - ``read_only``: tags that may be seen beside them, in `Trajectory.filtered`.
    - ``events``: event and response classes of your own.
    - ``child_session``: gives the instance a session to call models with, as a child of ``QUINTAIN_SESSION_TOKEN``'s.
    - ``timeouts``: the time limits, also that for a slot; see `TargetTimeouts`.
    - ``trajectories``: a results folder in which each run is recorded, for `quintain view`.
    - ``url``: the broker's URL, by default ``QUINTAIN_BROKER_URL``.
    - ``connection``: an open connection of `ConnectionThread`, to share between leases.
    - ``memory``: the in-memory broker of a fleet in this process, in place of a URL.

    Raises `ConfigError` for a tag that the target does not have, `NoAnswer` if no host serves the name or no slot is
    free in time, what the target's own factory raised, `BrokerUnavailable` and `BrokerRefused`.

    Example::

        async with quintain.lease("support-bot", scope=["user"]) as target:
            trajectory = await target.run(on_event=attack)
    """
    settings = read_settings(environment())
    token = None if child_session is None else child_session.token or settings.require_session_token()
    folder = None if trajectories is None else TrajectoryFolder.create(trajectories)
    given = [each for each in (*as_list(scope or ()), *as_list(read_only)) if not isinstance(each, str)]
    codec = Codec(QUINTAIN_TYPES.with_classes(events), TagRegistry(SecurityDomainTag, given))
    if connection is None and memory is None:
        url = url or settings.require_broker_url()
    async with (
        _connect(url, connection, memory) as line,
        _child_sessions(line, child_session, token) as sessions,
        _leased(line, name, timeouts, settings.timings) as own,
    ):
        codec.unresolved_tags(own.descriptor)
        tags = codec.domain(own.descriptor).tags
        scopes = (
            frozenset(tags) if scope is None else find_scope(scope, tags, name),
            find_scope(read_only, tags, name),
        )
        target = LeasedTarget(line, own, codec, scopes, timeouts or DEFAULT_TIMEOUTS, folder)
        if sessions is not None:
            await target.open_session(sessions)
        yield target


@contextlib.asynccontextmanager
async def _connect(
    url: str | None, connection: ConnectionThread | None, memory: MemoryBroker | None
) -> AsyncIterator[_Connection]:
    if memory is not None:
        async with open_bus("memory://", "controller", memory) as bus, RpcClient(bus) as rpc_client:
            yield _Connection(InlineExecutor(), bus, rpc_client)
    elif connection is not None:
        yield _Connection(connection, connection.bus, connection.rpc_client)
    else:
        assert url is not None, "the caller has one"
        opening = asyncio.create_task(asyncio.to_thread(ConnectionThread, url))
        try:
            thread = await asyncio.shield(opening)
        except asyncio.CancelledError:
            with contextlib.suppress(Exception):
                (await opening).close()
            raise
        try:
            yield _Connection(thread, thread.bus, thread.rpc_client)
        finally:
            await asyncio.to_thread(thread.close)


@contextlib.asynccontextmanager
async def _child_sessions(
    line: _Connection, policy: ChildSessionPolicy | None, token: str | None
) -> AsyncIterator[ChildSessions | None]:
    """The sessions of the instance's agent, closed after the teardown."""
    if policy is None or token is None:
        yield None
        return
    sessions = ChildSessions(line.rpc_client, open_with_token(line.rpc_client, token, policy))
    try:
        yield sessions
    finally:
        await line.executor.run(sessions.close_all())


@contextlib.asynccontextmanager
async def _leased(
    line: _Connection, name: str, timeouts: TargetTimeouts | None, timings: Timings
) -> AsyncIterator[RemoteLease]:
    own = await line.executor.run(_acquire(line, name, timeouts, timings))
    try:
        yield own
    except BaseException:
        # Its host ends what runs, and nobody waits for that.
        await line.executor.run(own.release())
        raise
    try:
        with contextlib.suppress(HostLost):
            await line.executor.run(own.call(hosting.Teardown()))
    finally:
        await line.executor.run(own.close())


async def _acquire(line: _Connection, name: str, timeouts: TargetTimeouts | None, timings: Timings) -> RemoteLease:
    """Lease an instance; without ``timeouts`` one request waits for its turn, and it is said what it waits for."""
    booting = 0

    def count_boot(change: int) -> None:
        nonlocal booting
        booting += change

    limits = timeouts or dataclasses.replace(DEFAULT_TIMEOUTS, slot_seconds=MAX_WAITING_SECONDS)
    leasing = asyncio.ensure_future(
        acquire_lease(line.bus, line.rpc_client, name, timeouts=limits, timings=timings, on_boot=count_boot)
    )
    try:
        while not (await asyncio.wait([leasing], timeout=WAITING_SECONDS))[0]:
            if timeouts is None and not booting:
                await _require_served(line.rpc_client, name)
                log.warning("Every slot of target %r is taken, or its hosts have ended; one is waited for", name)
        return leasing.result()
    except BaseException:
        await cancel_and_wait(leasing)
        if not leasing.cancelled() and leasing.exception() is None:
            await leasing.result().release()
        raise


async def _require_served(rpc_client: RpcClient, name: str) -> None:
    """Raise `NoAnswer` if no host has ever served this name: one whose slots are all taken does not reply."""
    try:
        await describe_host(rpc_client, name, timeout_seconds=DESCRIBE_SECONDS)
    except Unroutable:
        raise NoAnswer(
            f"No host serves target {name!r}: start one with `quintain serve host module:factory --name {name}`"
        ) from None
    except (NoAnswer, BusError):
        # A broker that restarts is waited for, too.
        return
