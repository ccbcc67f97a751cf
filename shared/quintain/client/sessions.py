"""What a process keeps of the sessions that it calls for: their default targets, and their latest answered calls."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable

from quintain.contracts.session import MAX_ANSWERED_IDS, Info
from quintain.contracts.values import sanitize_request_id
from quintain.errors import BusError, Fault, NoAnswer

#: How many sessions' default targets are kept; the oldest are forgotten first.
MAX_SESSIONS = 10_000

#: How long a call waits while another one asks for its session's default target, in seconds.
ASKED_SECONDS = 1.0


class AnsweredCalls:
    """The latest calls that were answered, until a request for their session's information names them."""

    def __init__(self) -> None:
        self._calls: deque[tuple[str, str]] = deque(maxlen=MAX_ANSWERED_IDS)

    def add(self, session_id: str, request_id: str) -> None:
        """Add a call; an invalid request id, which no ledger has, is left out."""
        if request_id == sanitize_request_id(request_id):
            self._calls.append((session_id, request_id))

    def take(self, session_id: str) -> list[str]:
        """Remove the calls of a session, and return their request ids."""
        taken = [request_id for answered_session_id, request_id in self._calls if answered_session_id == session_id]
        if taken:
            self._calls = deque((call for call in self._calls if call[0] != session_id), MAX_ANSWERED_IDS)
        return taken


class DefaultTargets:
    """The default target of each session whose information was read: a call that names none goes to its queue."""

    def __init__(self) -> None:
        self._targets: dict[str, str] = {}
        #: Session id → set once the request for its information has ended.
        self._asked: dict[str, asyncio.Event] = {}

    def note(self, info: Info) -> None:
        """Record the default target that a session's information names."""
        self._targets[info.session_id] = info.target_name
        if len(self._targets) > MAX_SESSIONS:
            del self._targets[next(iter(self._targets))]

    def forget(self, session_id: str) -> None:
        """Forget the default target of a session, so that it is asked for again."""
        self._targets.pop(session_id, None)

    async def resolve(self, session_id: str, read_info: Callable[[], Awaitable[Info]]) -> str | None:
        """Return a session's default target; one that is not known is asked for.

        None if it cannot be learnt, or not soon: such a call goes to the metadata service, which knows the target.
        """
        if session_id in self._targets:
            return self._targets[session_id]
        if (asked := self._asked.get(session_id)) is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asked.wait(), ASKED_SECONDS)
        else:
            asked = self._asked[session_id] = asyncio.Event()
            # The call itself gets the fault.
            with contextlib.suppress(Fault, BusError, NoAnswer):
                try:
                    self.note(await read_info())
                finally:
                    del self._asked[session_id]
                    asked.set()
        return self._targets.get(session_id)
