"""Decides which calls of a client may share a message, and how many of them."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable
from functools import partial

from quintain.contracts.group import MAX_GROUP_ITEMS
from quintain.contracts.session import Info
from quintain.errors import BusError, Fault, NoAnswer
from quintain.rpc.client import RpcClient
from quintain.rpc.groups import RequestGroups
from quintain.rpc.request import PublishLater

#: A group has at most as many calls as a worker's slots end in this time, in milliseconds: its first call would be
#: answered that much later than one sent alone, if the calls of a group were run one after another.
GROUP_DURATION_MS = 50.0

#: Where that is less, a group still has this part of a worker's slots.
GROUP_SHARE = 1 / 8

#: The part of a new duration in the average of a target.
NEW_DURATION_SHARE = 0.1

#: How long the answer to `info` is used, in seconds: workers with other numbers of slots may have started since.
INFO_SECONDS = 60.0


class CallGroups:
    """Sends calls in groups, of the size that suits their target; several transports of one `RpcClient` may share it.

    No group is sent to a target before `learn` was called with an `Info` that has its slots.
    """

    def __init__(self, rpc_client: RpcClient) -> None:
        self._groups = RequestGroups(rpc_client)
        #: Target → the slots of one of its workers.
        self._slots: dict[str, int] = {}
        self._asking: set[asyncio.Task[None]] = set()
        #: Target → the average time that a call takes at its provider, in milliseconds.
        self._durations_ms: dict[str, float] = {}
        #: Target → when `info` was last asked about it, on the loop's clock.
        self._asked_at: dict[str, float] = {}

    def is_outdated(self, target: str) -> bool:
        """Whether nothing is known of this target, or what is known is too old."""
        return asyncio.get_running_loop().time() - self._asked_at.get(target, -math.inf) > INFO_SECONDS

    def learn(self, info: Info) -> None:
        """Use what this answer says of the targets that the session may call."""
        now = asyncio.get_running_loop().time()
        self._asked_at = {name: at for name, at in self._asked_at.items() if now - at <= INFO_SECONDS}
        for target in info.available_targets:
            self._slots.pop(target, None)
            self._asked_at[target] = now
        self._slots.update(info.group_slots or {})

    def postpone(self, target: str) -> None:
        """Do not ask about this target for a while: the answer is on its way, or could not be had."""
        self._asked_at[target] = asyncio.get_running_loop().time()

    def ask(self, read_info: Callable[[], Awaitable[Info]]) -> asyncio.Task[None]:
        """Start ``read_info``, which calls `learn`; returns its task, which raises nothing."""
        task = asyncio.get_running_loop().create_task(self._ask(read_info), name="read info")
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)
        return task

    async def _ask(self, read_info: Callable[[], Awaitable[Info]]) -> None:
        with contextlib.suppress(Fault, BusError, NoAnswer):
            await read_info()

    def note_duration(self, target: str, duration_ms: float) -> None:
        """Note how long a call took at its provider."""
        average = self._durations_ms.get(target, duration_ms)
        self._durations_ms[target] = average + NEW_DURATION_SHARE * (duration_ms - average)

    def max_calls(self, target: str) -> int:
        """Return how many calls a group for this target may have; 1 where it takes none."""
        slots = self._slots.get(target)
        if slots is None:
            return 1
        duration_ms = self._durations_ms.get(target, math.inf)
        quick = MAX_GROUP_ITEMS if duration_ms <= 0 else slots * GROUP_DURATION_MS / duration_ms
        return max(1, min(MAX_GROUP_ITEMS, int(max(quick, slots * GROUP_SHARE))))

    def publisher(self, target: str) -> PublishLater | None:
        """Return how to publish a call of this target in a group; None where it goes alone."""
        max_calls = self.max_calls(target)
        if max_calls == 1:
            return None
        return partial(self._groups.add, max_calls=max_calls, on_refused=partial(self._slots.pop, target, None))
