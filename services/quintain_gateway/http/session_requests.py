"""Limits the requests that one session makes at once, so that it leaves connections to others."""

from __future__ import annotations

from collections import Counter
from functools import partial

from quintain_gateway.http.context import RequestContext
from quintain_gateway.http.errors import SessionBusy

#: When a refused request may be sent again, in milliseconds.
RETRY_AFTER_MS = 1000


class SessionRequests:
    """Counts the running requests of each session, by its token."""

    def __init__(self, max_requests: int) -> None:
        self._max_requests = max_requests
        self._counts = Counter[str]()

    def enter(self, context: RequestContext) -> None:
        """Count a request until its end, once. Raises `SessionBusy` if its session has too many."""
        if context.on_end is not None:
            return
        key = context.session_key
        if self._counts[key] >= self._max_requests:
            raise SessionBusy(
                f"This session has {self._max_requests} requests at once; no more are accepted until one ends",
                retry_after_ms=RETRY_AFTER_MS,
            )
        self._counts[key] += 1
        context.on_end = partial(self._leave, key)

    def _leave(self, key: str) -> None:
        self._counts[key] -= 1
        if not self._counts[key]:
            del self._counts[key]
