"""Hosted targets for superred's controller.

Requires superred (``quintain[superred]``). `Controller` is superred's, and awaits free slots::

    remote = remote_factory("support-bot", concurrency=4)
    controller = Controller(target_factory=remote, scope=remote.scope("user", "tools"), ...)
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from superred.core import controller as superred_controller
from superred.core.types.security_domain import scope_includes

from quintain.errors import ConfigError
from quintain.remote.child_session import ChildSessionPolicy
from quintain.remote.factory import GivenTags, RemoteFactory
from quintain.remote.lease import DEFAULT_TIMEOUTS, RemoteLease, TargetTimeouts
from quintain.remote.target import RemoteTarget
from quintain.remote.trajectory_recorder import TrajectoryFolder
from quintain.target.codec import domain_tags
from quintain.target.type_registry import TagRegistry, superred_types
from superred import core

log = logging.getLogger(__name__)


class HostedTarget(RemoteTarget, core.Target):
    """A `RemoteTarget` that is also a superred `Target`."""


@dataclass(frozen=True, repr=False, eq=False)
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

    # A property in the place of the inherited field: its setter is called by the generated `__init__`.
    @property
    def concurrency(self) -> int:
        """The number of slots that are leased here when it is read, up to the concurrency that was asked for.

        superred's `Controller` reads it before its tasks; reading blocks until no further slot is free. With
        ``prefetch=0`` it is the concurrency that was asked for.
        """
        return self.remote.pool.count_slots(self.wanted_concurrency)

    @concurrency.setter
    def concurrency(self, wanted: int) -> None:
        self.__dict__["wanted_concurrency"] = wanted

    @property
    def wanted_concurrency(self) -> int:
        """The concurrency that was asked for."""
        wanted: int = self.__dict__["wanted_concurrency"]
        return wanted

    def __post_init__(self) -> None:
        """Raise `ValueError` for a concurrency below 1."""
        if self.wanted_concurrency < 1:
            raise ValueError("concurrency must be at least 1")

    def close(self) -> None:
        """Release all leases and close the connection."""
        self.remote.close()


def remote_factory(  # noqa: PLR0913 -- what a factory may be given, by name
    name: str,
    *,
    concurrency: int = 1,
    prefetch: int | None = None,
    url: str | None = None,
    tags: GivenTags = (),
    events: Iterable[type] = (),
    child_session: ChildSessionPolicy | None = None,
    timeouts: TargetTimeouts = DEFAULT_TIMEOUTS,
    trajectories: Path | str | None = None,
) -> RemoteTargetFactory:
    """Create a superred `TargetFactory` for the target that hosts serve under this name.

    The target's tags are those of its package, if it is imported here; else those in ``tags``, and those of
    `RemoteTargetFactory.scope`. With other tags ``create`` raises `ConfigError`; ``tags="by-path"`` uses tags with the
    same path in any imported module, else new ones.

    - ``name``: the name under which `quintain serve host` leases the target.
    - ``concurrency``: how many instances run at once.
    - ``prefetch``: how many leases are kept ready, by default ``concurrency``; with 0 ``create`` waits for each lease.
    - ``url``: the broker's URL, by default ``QUINTAIN_BROKER_URL``.
    - ``tags``: the tags of scopes that were not created with `RemoteTargetFactory.scope`.
    - ``events``: additional event and response classes.
    - ``child_session``: gives each instance a session to call models with, as a child of ``QUINTAIN_SESSION_TOKEN``'s.
    - ``timeouts``: the time limits for a slot, an instance, a run and an event; see `TargetTimeouts`.
    - ``trajectories``: a results folder in which each run is recorded, for `quintain view`; by default none is.

    Raises `BrokerUnavailable`, `BrokerRefused`, and `ConfigError` for a folder that cannot be written.

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
        tags=tags,
        type_registry=types,
        target_class=HostedTarget,
        child_session=child_session,
        timeouts=timeouts,
        trajectories=trajectories,
    )
    return RemoteTargetFactory(create=remote.create, concurrency=concurrency, remote=remote)


@dataclass(slots=True)
class _TaskSlot:
    """The lease of the current task, or why there is none; what it is called, its target, and its visible tags."""

    lease: RemoteLease | Exception
    title: str
    target: HostedTarget | None = None
    visibility: frozenset[Any] = frozenset()


_current_slot: ContextVar[_TaskSlot] = ContextVar("current_slot")


class Controller(superred_controller.Controller):
    """superred's `Controller`, which awaits a free slot before each task and never blocks its event loop for one.

    - ``on_host_lost``: with "retry" a task whose host was lost is run again from its start with a fresh lease, at most
      ``max_retries`` times; with "error" it ends as an error.
    - ``allow_untouched``: allows a scope that includes none of the target's tags, as a baseline; else its task ends
      with a `ConfigError`.
    - ``trajectories``: a results folder in which each run of a task is recorded, for `quintain view`; by default it is
      that of the factory. `ConfigError` if it cannot be written.

    The other arguments are superred's.

    Example::

        controller = Controller(target_factory=remote_factory("support-bot", concurrency=8), on_host_lost="retry", ...)
        result = await controller.run()
    """

    def __init__(
        self,
        *,
        target_factory: RemoteTargetFactory,
        on_host_lost: Literal["error", "retry"] = "error",
        max_retries: int = 3,
        allow_untouched: bool = False,
        trajectories: Path | str | None = None,
        **options: Any,
    ) -> None:
        self._trajectories = None if trajectories is None else TrajectoryFolder.create(trajectories)
        self._remote = target_factory.remote
        self._max_retries = max_retries if on_host_lost == "retry" else 0
        self._allow_untouched = allow_untouched
        #: How many times a task was run again because its host was lost.
        self.retries = 0
        local = core.TargetFactory(create=self._create_target, concurrency=target_factory.wanted_concurrency)
        super().__init__(target_factory=local, **options)

    async def _execute_task(self, index: int, task: Any, reporter: Any) -> Any:
        for attempt in range(self._max_retries + 1):
            title = "" if self._trajectories is None else f"task {index}: {task.goal.description}"
            slot = _TaskSlot(await self._acquire(), title)
            token = _current_slot.set(slot)
            try:
                outcome = await super()._execute_task(index, task, reporter)
            finally:
                _current_slot.reset(token)
                if slot.target is None and isinstance(slot.lease, RemoteLease):
                    self._remote.pool.return_unused(slot.lease)
            is_lost = slot.target is not None and slot.target.host_lost
            if not is_lost or getattr(outcome, "stop_reason", "") != "error" or attempt == self._max_retries:
                break
            self.retries += 1
            log.warning("Task %d is run again with a fresh lease: its host was lost", index)
        return outcome

    async def _acquire(self) -> RemoteLease | Exception:
        try:
            return await self._remote.pool.acquire_async()
        except Exception as error:
            # superred records what `create` raises as the task's error.
            return error

    def _task_scope_for(self, task: Any) -> Any:
        scope = super()._task_scope_for(task)
        _current_slot.get().visibility = scope.visibility
        return scope

    def _create_target(self) -> Any:
        slot = _current_slot.get()
        if isinstance(slot.lease, Exception):
            raise slot.lease
        if self._remote.matches_by_path:
            self._remote.tags.register(slot.visibility)
        lease, slot.lease = slot.lease, ConfigError("The lease of this task is in use")
        slot.target = self._remote.create_on(lease, self._require_touched)
        if self._trajectories is not None:
            slot.target.record_runs(dataclasses.replace(self._trajectories, title=slot.title))
        return slot.target

    def _require_touched(self, target: Any) -> None:
        visibility, tags = _current_slot.get().visibility, domain_tags(target.security_domain)
        if not self._allow_untouched and not any(scope_includes(visibility, tag) for tag in tags):
            raise ConfigError(
                f"The scope {sorted(tag.name for tag in visibility)} includes none of the target's tags "
                f"{[tag.name for tag in tags]}: no event would be offered. For a baseline pass allow_untouched=True"
            )
