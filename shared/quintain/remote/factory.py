"""Creates instances of a hosted target by name, through leases."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal

from quintain.errors import ConfigError
from quintain.remote.child_session import ChildSessionPolicy, ChildSessions
from quintain.remote.connection_thread import ConnectionThread, open_connection_thread
from quintain.remote.lease import RemoteLease
from quintain.remote.lease_pool import ACQUIRE_TIMEOUT_SECONDS, LeasePool
from quintain.remote.target import RemoteTarget
from quintain.settings import environment, read_settings
from quintain.target.codec import Codec, domain_tags
from quintain.target.tag_registry import TagRegistry
from quintain.target.type_registry import QUINTAIN_TYPES, TypeRegistry
from quintain.timings import Timings

#: What `RemoteFactory.create` does with a tag of the target that is neither in ``tags`` nor in an imported module:
#: "refuse" raises; "by-path" looks for one with the same path in any imported module, and creates one if there is none;
#: "create" creates one, which is in no scope of other tags.
UnresolvedTags = Literal["create", "refuse", "by-path"]


class RemoteFactory:
    """Creates instances of one hosted target, as `remote_factory` returns it; they share their tag objects.

    Close it, or use it as a context manager.
    """

    def __init__(  # noqa: PLR0913 -- the parameters of `remote_factory`, and the classes to use
        self,
        name: str,
        *,
        concurrency: int = 1,
        prefetch: int | None = None,
        url: str | None = None,
        connection: ConnectionThread | None = None,
        tags: Iterable[Any] = (),
        unresolved_tags: UnresolvedTags = "create",
        type_registry: TypeRegistry = QUINTAIN_TYPES,
        target_class: type[RemoteTarget] = RemoteTarget,
        child_session: ChildSessionPolicy | None = None,
        slot_timeout_seconds: float = ACQUIRE_TIMEOUT_SECONDS,
        timings: Timings | None = None,
    ) -> None:
        if concurrency < 1:
            raise ValueError("concurrency must be at least 1")
        self.concurrency = concurrency
        self.tags = TagRegistry(type_registry.tag, tags)
        self._codec = Codec(type_registry, self.tags)
        self._name, self._unresolved_tags = name, unresolved_tags
        self._target_class = target_class
        # A connection passed in may be shared with other factories; its owner closes it.
        self._owns_connection = connection is None
        settings = read_settings(environment())
        parent = None if child_session is None else child_session.token or settings.require_session_token()
        self._connection = connection or open_connection_thread(url or settings.require_broker_url())
        self._sessions: ChildSessions | None = None
        if child_session is not None and parent is not None:
            self._sessions = ChildSessions(self._connection.rpc_client, parent, child_session)
        self._prefetch = concurrency if prefetch is None else prefetch
        self._pool = LeasePool(
            self._connection,
            name,
            self._prefetch,
            timeout_seconds=slot_timeout_seconds,
            timings=timings or settings.timings,
        )
        self._pool.fill()
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
        return self.create_on(self._pool.acquire())

    async def acquire(self) -> RemoteLease:
        """Return a lease for `create_on`, waiting without blocking the event loop. Raises as `create`."""
        return await self._pool.acquire_async()

    def return_unused(self, lease: RemoteLease) -> None:
        """Make a lease available again that was acquired and not used."""
        self._pool.return_unused(lease)

    def count_slots(self, wanted: int) -> int:
        """Return how many of the prefetched leases there are, up to ``wanted``; blocks until no further one comes.

        Without prefetched leases it is ``wanted``.
        """
        return self._pool.count_slots(min(wanted, self._prefetch)) if self._prefetch else wanted

    @property
    def matches_by_path(self) -> bool:
        """Whether tags are matched by path."""
        return self._unresolved_tags == "by-path"

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
        if unresolved and self._unresolved_tags == "refuse":
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
            target = self._wrap(self._pool.acquire())
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
        return self._target_class(self._connection, lease, self._codec, self._pool.release)

    def close(self) -> None:
        """Release all leases, and close the connection unless it was passed in."""
        self._pool.close()
        if self._sessions is not None:
            self._connection.run_blocking(self._sessions.close_all())
        if self._owns_connection:
            self._connection.close()

    def __enter__(self) -> RemoteFactory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def remote_factory(
    name: str, *, concurrency: int = 1, url: str | None = None, events: Iterable[type] = (), **options: Any
) -> RemoteFactory:
    """Create a factory for a hosted target, whose instances run on any host that serves it.

    - ``name``: the name under which `quintain serve host` leases the target.
    - ``concurrency``: how many instances run at once.
    - ``url``: the broker's URL, by default ``QUINTAIN_BROKER_URL``.
    - ``events``: additional event and response classes.
    - ``connection``: an open `ConnectionThread` to share with other factories.
    - ``tags``: the tags of a scope that was not created with `RemoteFactory.scope`.
    - ``prefetch``: how many leases are kept ready, by default ``concurrency``; with 0 `RemoteFactory.create` waits for
      each lease.
    - ``slot_timeout_seconds``: how long `RemoteFactory.create` waits for a free slot, by default 60.
    - ``child_session``: gives each instance a session to call models with, as a child of ``QUINTAIN_SESSION_TOKEN``'s.

    Raises `BrokerUnavailable`, `BrokerRefused`.

    Example::

        with remote_factory("support-bot", concurrency=4) as factory:
            target = factory.create()
            await target.run(emit, send_event)
            await target.teardown()
    """
    return RemoteFactory(
        name, concurrency=concurrency, url=url, type_registry=QUINTAIN_TYPES.with_classes(events), **options
    )
