"""Creates instances of a hosted target by name, through leases."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal

from quintain.errors import ConfigError
from quintain.remote.child_session import ChildSessionPolicy, ChildSessions, open_with_token
from quintain.remote.connection_thread import ConnectionThread
from quintain.remote.lease import DEFAULT_TIMEOUTS, RemoteLease, TargetTimeouts
from quintain.remote.lease_pool import LeasePool
from quintain.remote.target import RemoteTarget
from quintain.remote.trajectory_recorder import TrajectoryFolder
from quintain.settings import environment, read_settings
from quintain.target.codec import Codec, domain_tags
from quintain.target.type_registry import QUINTAIN_TYPES, TagRegistry, TypeRegistry
from quintain.timings import Timings

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
