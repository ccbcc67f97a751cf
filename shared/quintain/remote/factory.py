"""Creates instances of a hosted target by name, through leases that are kept ready.

`RemoteFactory.create` is called on a loop that must not block. A lease that has ended is replaced while the pool is
open. While no host has a free slot the pool keeps requesting; an exception of the target's own factory is raised to the
caller of `create`. Everything happens on the connection's loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal

from quintain.errors import BusError, ConfigError, NoAnswer
from quintain.remote.child_session import ChildSessionPolicy, ChildSessions, open_with_token
from quintain.remote.connection_thread import ConnectionThread
from quintain.remote.lease import DEFAULT_TIMEOUTS, RemoteLease, TargetTimeouts, acquire_lease
from quintain.remote.target import RemoteTarget
from quintain.remote.trajectory_recorder import TrajectoryFolder
from quintain.runtime.concurrency import start_task
from quintain.settings import environment, read_settings
from quintain.target.codec import Codec, domain_tags
from quintain.target.type_registry import QUINTAIN_TYPES, TagRegistry, TypeRegistry
from quintain.timings import DEFAULT_TIMINGS, Timings

log = logging.getLogger(__name__)

#: How often a caller that waits looks whether an unused lease was returned, in seconds.
POLL_SECONDS = 0.02

#: After how long without a further lease the slots are counted, in seconds.
SETTLE_SECONDS = 0.5

#: Pause after an error of the broker, in seconds.
PAUSE_SECONDS = 1.0


class LeasePool:
    """Keeps ``prefetch`` leases of one target ready; with 0 each lease is requested when it is needed."""

    def __init__(
        self,
        connection: ConnectionThread,
        name: str,
        prefetch: int,
        *,
        timeouts: TargetTimeouts = DEFAULT_TIMEOUTS,
        timings: Timings = DEFAULT_TIMINGS,
    ) -> None:
        self._connection, self._name, self._prefetch = connection, name, prefetch
        self._timeouts, self._timings = timeouts, timings
        #: Leases, and what the target's factory raised.
        self._ready: deque[RemoteLease | Exception] = deque()
        self._last_error = ""
        #: The number of waiting callers, and of instances that hosts are creating.
        self._waiting = self._booting = 0
        self._requests: set[asyncio.Task[None]] = set()
        self._leases: set[RemoteLease] = set()
        self._is_open = True
        for _ in range(prefetch):
            connection.call_soon(self._request_below, prefetch)

    def acquire(self) -> RemoteLease:
        """Return a ready lease, blocking until there is one.

        Raises what the target's factory raised, and `NoAnswer` if no host has a free slot in time. While an instance is
        being created it waits for that one.
        """
        return self._connection.run_blocking(self._acquire())

    async def acquire_async(self) -> RemoteLease:
        """Return a ready lease, as `acquire`, without blocking the caller's event loop."""
        return await self._connection.run(self._acquire())

    def return_unused(self, lease: RemoteLease) -> None:
        """Make an acquired lease, to which no request was sent, available again."""
        self._connection.call_soon(self._ready.append, lease)

    def count_slots(self, wanted: int) -> int:
        """Return how many of the ``wanted`` slots are leased here; blocks until no further lease comes.

        At least 1, also if there is none within the pool's timeout: then `acquire` raises why. Without prefetched
        leases it is ``wanted``.
        """
        most = min(wanted, self._prefetch)
        return self._connection.run_blocking(self._count_slots(most)) if most else wanted

    def release(self, ended: RemoteLease) -> None:
        """Forget an ended lease, and request another one to keep the pool full."""
        self._connection.call_soon(self._leases.discard, ended)
        self._connection.call_soon(self._request_below, self._prefetch)

    def close(self) -> None:
        """Release all leases; their hosts end them at once."""
        self._connection.run_blocking(self._close())

    async def _acquire(self) -> RemoteLease:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeouts.slot_seconds
        self._waiting += 1
        try:
            while True:
                # Several controllers that share a pool may need more leases than are prefetched.
                self._request_below(self._waiting)
                if not self._ready:
                    if loop.time() >= deadline and not self._booting:
                        raise self._no_answer()
                    await asyncio.wait(self._requests, timeout=POLL_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                    continue
                ready = self._ready.popleft()
                if isinstance(ready, Exception):
                    self._request_below(self._prefetch)
                    raise ready
                if not ready.ended:
                    return ready
                self._leases.discard(ready)
                await ready.close()
        finally:
            self._waiting -= 1

    def _no_answer(self) -> NoAnswer:
        return NoAnswer(
            f"No lease of target {self._name!r} within {self._timeouts.slot_seconds:.0f} s: every slot is taken, or no "
            f"host serves it. Start one with `quintain serve host module:factory --name {self._name}`, or more "
            f"--slots, or lower the concurrency{self._last_error}"
        )

    async def _count_slots(self, wanted: int) -> int:
        loop = asyncio.get_running_loop()
        count, ends_at = 0, loop.time() + self._timeouts.slot_seconds
        while True:
            live = sum(not lease.ended for lease in self._leases)
            if live > count:
                count, ends_at = live, loop.time() + SETTLE_SECONDS
            has_failed = any(isinstance(ready, Exception) for ready in self._ready)
            if count >= wanted or has_failed or (loop.time() >= ends_at and not self._booting):
                return max(1, min(count, wanted))
            await asyncio.sleep(POLL_SECONDS)

    def _count_boot(self, change: int) -> None:
        self._booting += change

    def _request_below(self, wanted: int) -> None:
        """Request one more lease if fewer than ``wanted`` are ready or requested."""
        if self._is_open and len(self._ready) + len(self._requests) < wanted:
            start_task(self._requests, self._request())

    async def _request(self) -> None:
        """Lease an instance; what its factory raises is for a caller. Ends where nobody wants it any more."""
        while True:
            try:
                leased = await acquire_lease(
                    *(self._connection.bus, self._connection.rpc_client, self._name),
                    timeouts=self._timeouts,
                    timings=self._timings,
                    on_boot=self._count_boot,
                )
                self._leases.add(leased)
                self._ready.append(leased)
            except NoAnswer as no_answer:
                log.info("%s", no_answer.message)
                self._last_error = ""
            except BusError as error:
                self._last_error = f" ({error.message})"
                await asyncio.sleep(PAUSE_SECONDS)
            except Exception as error:
                self._ready.append(error)
                return
            else:
                return
            if len(self._ready) + len(self._requests) > self._prefetch + self._waiting:
                # The caller that wanted this lease has stopped waiting.
                return

    async def _close(self) -> None:
        self._is_open = False
        for task in self._requests:
            task.cancel()
        releases = [lease.release() for lease in self._leases]
        await asyncio.gather(*self._requests, *releases, return_exceptions=True)
        self._leases.clear()


#: The tags of a driver's scopes, or "by-path": tags of any imported module with the same paths, else new ones.
GivenTags = Iterable[Any] | Literal["by-path"]


class RemoteFactory:
    """Creates instances of one hosted target, which share their tag objects: what `quintain.superred` stands on.

    Its parameters are those of `quintain.superred.remote_factory`, and ``connection``, an open one that its owner
    closes. Close it, or use it as a context manager.
    """

    def __init__(  # noqa: PLR0913 -- the parameters of `remote_factory`, and the classes to use
        self,
        name: str,
        *,
        concurrency: int = 1,
        prefetch: int | None = None,
        url: str | None = None,
        connection: ConnectionThread | None = None,
        tags: GivenTags = (),
        type_registry: TypeRegistry = QUINTAIN_TYPES,
        target_class: type[RemoteTarget] = RemoteTarget,
        child_session: ChildSessionPolicy | None = None,
        timeouts: TargetTimeouts = DEFAULT_TIMEOUTS,
        timings: Timings | None = None,
        trajectories: Path | str | None = None,
    ) -> None:
        if concurrency < 1:
            raise ValueError("concurrency must be at least 1")
        self._trajectories = None if trajectories is None else TrajectoryFolder.create(trajectories)
        #: Whether the target's tags are matched by path.
        self.matches_by_path = tags == "by-path"
        given: Iterable[Any] = () if isinstance(tags, str) else tags
        self.tags = TagRegistry(type_registry.module.SecurityDomainTag, given)
        self._codec = Codec(type_registry, self.tags)
        self._name = name
        self._target_class, self._timeouts = target_class, timeouts
        # A connection passed in may be shared with other factories; its owner closes it.
        self._owns_connection = connection is None
        settings = read_settings(environment())
        parent = None if child_session is None else child_session.token or settings.require_session_token()
        self._connection = connection or ConnectionThread(url or settings.require_broker_url())
        self._sessions: ChildSessions | None = None
        if child_session is not None and parent is not None:
            rpc_client = self._connection.rpc_client
            self._sessions = ChildSessions(rpc_client, open_with_token(rpc_client, parent, child_session))
        #: The leases for `create` and `create_on`.
        self.pool = LeasePool(
            *(self._connection, name, concurrency if prefetch is None else prefetch),
            timeouts=timeouts,
            timings=timings or settings.timings,
        )
        self._tags_by_name: dict[str, Any] | None = None

    def create(self) -> Any:
        """Return a new instance from the prefetched leases.

        Raises what the target's own factory raised, `NoAnswer` if no host has a free slot in time, and `ConfigError`
        for tags that are not known here; with ``child_session`` also a `Fault`.

        Example::

            target = factory.create()
            await target.run(emit, send_event)
            await target.teardown()
        """
        return self.create_on(self.pool.acquire())

    def create_on(self, lease: RemoteLease, check: Callable[[Any], None] = lambda target: None) -> Any:
        """Return the new instance of a lease; what ``check`` raises for it ends the lease. Raises as `create`."""
        target = self._wrap(lease)
        try:
            self._resolve_tags(target)
            check(target)
            if self._sessions is not None:
                target.open_session(self._sessions)
        except BaseException:
            self._connection.run_blocking(target.teardown())
            raise
        return target

    def _resolve_tags(self, target: RemoteTarget) -> None:
        unresolved = target.unresolved_tags(by_path=self.matches_by_path)
        if unresolved and not self.matches_by_path:
            raise ConfigError(
                f"Tags of the target {self._name!r} are not known here: {', '.join(unresolved)}. A scope cannot "
                "include them, and no event would be offered. Import the target's package before, pass its tags in "
                'tags=[...], use the tags of scope(...), or match them by path with tags="by-path"'
            )

    def scope(self, *names: str) -> frozenset[Any]:
        """Return the tags with these names as a scope, without importing the target's package.

        Raises `ValueError` for an unknown name.

        Example::

            scope = factory.scope("user", "tools")
        """
        if self._tags_by_name is None:
            target = self._wrap(self.pool.acquire())
            target.unresolved_tags()
            self._tags_by_name = {tag.name: tag for tag in domain_tags(target.security_domain)}
            # The tags that are created here are those of the caller's scopes from now on.
            self.tags.register(self._tags_by_name.values())
            self._connection.run_blocking(target.teardown())
        unknown = [name for name in names if name not in self._tags_by_name]
        if unknown:
            raise ValueError(f"No tag is named {', '.join(unknown)}; there are {', '.join(self._tags_by_name)}")
        return frozenset(self._tags_by_name[name] for name in names)

    def _wrap(self, lease: RemoteLease) -> RemoteTarget:
        target = self._target_class(self._connection, lease, self._codec, self.pool.release, self._timeouts)
        target.record_runs(self._trajectories)
        return target

    def close(self) -> None:
        """Release all leases, and close the connection unless it was passed in."""
        self.pool.close()
        if self._sessions is not None:
            self._connection.run_blocking(self._sessions.close_all())
        if self._owns_connection:
            self._connection.close()

    def __enter__(self) -> RemoteFactory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
