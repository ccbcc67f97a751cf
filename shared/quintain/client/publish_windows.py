"""How many calls of a session to a target with a quota are published at a time.

As many as run, by what their answers tell, `WINDOW` more, and a part of those that run, as messages under way take a
part of the time of a call: enough that the quota never waits for this client, and so few that a target's queue holds
little of any session. The others wait here, in order.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from quintain.errors import Expired

#: How many calls are published beyond those that run, and how many more as a part of those.
WINDOW, RUNNING_SHARE = 64, 0.25

#: How many calls one answer lets be published: the first ones, that found the quota free, say little of the next.
MAX_PUBLISHED_BY_ANSWER = 12

#: The part of a new answer in the averages of a target.
NEW_ANSWER_SHARE = 0.1


@dataclass(slots=True)
class _Window:
    """The published calls to one target, and those that wait to be.

    ``running_part`` is the part of the time from a call's publish to its answer in which its provider works.
    """

    published: int = 0
    running_part: float = 0.0
    waiting: deque[asyncio.Future[None]] = field(default_factory=deque)

    @property
    def has_room(self) -> bool:
        return self.published < WINDOW + self.published * self.running_part * (1 + RUNNING_SHARE)


class PublishWindows:
    """The windows of one session, by target. ``has_quota`` says whether a target has a quota, or nobody knows that."""

    def __init__(self, has_quota: Callable[[str], bool]) -> None:
        self._has_quota = has_quota
        self._windows: dict[str, _Window] = {}

    async def enter(self, target: str, ends_at: float) -> None:
        """Wait until a call may be published, and count it until `leave`. Raises `Expired` at ``ends_at``."""
        window = self._windows.setdefault(target, _Window())
        if not self._has_quota(target) or (window.has_room and not window.waiting):
            window.published += 1
            return
        admitted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        window.waiting.append(admitted)
        try:
            async with asyncio.timeout_at(ends_at):
                await admitted
        except (TimeoutError, asyncio.CancelledError) as error:
            if not admitted.cancelled() and admitted.done():
                self.leave(target)
            elif admitted in window.waiting:
                window.waiting.remove(admitted)
            if isinstance(error, TimeoutError):
                raise Expired("The deadline passed while calls of this session waited for their quota") from None
            raise

    def leave(self, target: str, *, running_seconds: float = 0.0, seconds: float = 0.0) -> None:
        """Count out a call; one that was answered took so many ``seconds``, and ran in ``running_seconds`` of them."""
        window = self._windows[target]
        window.published -= 1
        if seconds:
            window.running_part += NEW_ANSWER_SHARE * (min(1.0, running_seconds / seconds) - window.running_part)
        left = MAX_PUBLISHED_BY_ANSWER
        while window.waiting and ((left and window.has_room) or not self._has_quota(target)):
            admitted = window.waiting.popleft()
            if not admitted.done():
                window.published += 1
                left -= 1
                admitted.set_result(None)
