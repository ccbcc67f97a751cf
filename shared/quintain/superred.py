"""Hosted targets for superred's controller.

Requires superred (``quintain[superred]``)::

    remote = remote_factory("support-bot", concurrency=4)
    controller = Controller(target_factory=remote, scope=remote.scope("user", "tools"), ...)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from quintain.remote.child_session import ChildSessionPolicy
from quintain.remote.factory import RemoteFactory
from quintain.remote.target import RemoteTarget
from quintain.target.tag_registry import TagRegistry
from quintain.target.type_registry import superred_types
from superred import core


class HostedTarget(RemoteTarget, core.Target):
    """A `RemoteTarget` that is also a superred `Target`."""


@dataclass(frozen=True)
class RemoteTargetFactory(core.TargetFactory):
    """A superred `TargetFactory` for a hosted target; close it after the experiment.

    A copy made with `dataclasses.replace` shares its leases, and is closed with it.
    """

    remote: RemoteFactory = field(kw_only=True)

    @property
    def tags(self) -> TagRegistry:
        """The tags known so far."""
        return self.remote.tags

    def scope(self, *names: str) -> frozenset[Any]:
        """Return the tags with these names as a scope; see `RemoteFactory.scope`. Raises `ValueError`."""
        return self.remote.scope(*names)

    def close(self) -> None:
        """Release all leases and close the connection."""
        self.remote.close()


def remote_factory(  # noqa: PLR0913 -- the parameters of `quintain.remote.factory.remote_factory`, typed
    name: str,
    *,
    concurrency: int = 1,
    prefetch: int | None = None,
    url: str | None = None,
    tags: Iterable[Any] | Literal["by-path"] = (),
    events: Iterable[type] = (),
    child_session: ChildSessionPolicy | None = None,
) -> RemoteTargetFactory:
    """Create a superred `TargetFactory` for the target that hosts serve under this name.

    The parameters and errors are those of `quintain.remote.factory.remote_factory`. The target's tags are those of its
    package, if it is imported here; else those in ``tags``, and those of `RemoteTargetFactory.scope`. With other tags
    `RemoteFactory.create` raises `ConfigError`; ``tags="by-path"`` uses tags with the same path in any imported module.

    Example::

        remote = remote_factory("support-bot", concurrency=4)
        controller = Controller(target_factory=remote, scope=remote.scope("user", "tools"), ...)
    """
    types = superred_types().with_classes(events)
    remote = RemoteFactory(
        name,
        concurrency=concurrency,
        prefetch=prefetch,
        url=url,
        tags=() if tags == "by-path" else tags,
        unresolved_tags="by-path" if tags == "by-path" else "refuse",
        type_registry=types,
        target_class=HostedTarget,
        child_session=child_session,
    )
    return RemoteTargetFactory(create=remote.create, concurrency=concurrency, remote=remote)
