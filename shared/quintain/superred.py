"""Hosted targets for superred's controller.

Requires superred (``quintain[superred]``)::

    remote = remote_factory("support-bot", concurrency=4)
    controller = Controller(target_factory=remote, scope=remote.scope("user", "tools"), ...)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from quintain.remote.child_session import ChildSessionPolicy
from quintain.remote.factory import RemoteFactory
from quintain.remote.target import RemoteTarget
from quintain.target.tag_registry import TagRegistry
from quintain.target.type_registry import superred_types
from superred import core


class HostedTarget(RemoteTarget, core.Target):
    """A hosted target, of superred's own type."""


@dataclass(frozen=True)
class RemoteTargetFactory(core.TargetFactory):
    """superred's `TargetFactory` over a hosted target. Close it when the experiment is over; a copy that
    `dataclasses.replace` makes stands on the same leases, and is closed with it."""

    remote: RemoteFactory = field(kw_only=True)

    @property
    def tags(self) -> TagRegistry:
        """The tags that were met so far."""
        return self.remote.tags

    def scope(self, *names: str) -> frozenset[Any]:
        """The tags of these names, as a scope; no package of the target's is needed here. Raises `ValueError`."""
        return self.remote.scope(*names)

    def close(self) -> None:
        """Give the leases up and close the connection."""
        self.remote.close()


def remote_factory(  # noqa: PLR0913 -- what `quintain.remote.factory.remote_factory` takes, in superred's words
    name: str,
    *,
    concurrency: int = 1,
    prefetch: int | None = None,
    url: str | None = None,
    tags: Iterable[Any] = (),
    events: Iterable[type] = (),
    child_session: ChildSessionPolicy | None = None,
) -> RemoteTargetFactory:
    """A superred `TargetFactory` for the target that hosts serve under this name.

    ``prefetch`` is how many leases are kept ready: as many as run at once, where nothing is said. ``url`` is the
    broker's (``QUINTAIN_BROKER_URL``). ``tags`` are those of a scope that was built from the target's own package;
    `RemoteTargetFactory.scope` needs none. ``events`` are event and response classes of your own. ``child_session``
    gives each instance a session to call models with, under ``QUINTAIN_SESSION_TOKEN``'s.
    Raises `BrokerUnavailable`, `BrokerRefused`.
    """
    vocabulary = superred_types().with_classes(events)
    remote = RemoteFactory(
        name,
        concurrency=concurrency,
        prefetch=prefetch,
        url=url,
        tags=tags,
        type_registry=vocabulary,
        target_class=HostedTarget,
        child_session=child_session,
    )
    return RemoteTargetFactory(create=remote.create, concurrency=concurrency, remote=remote)
