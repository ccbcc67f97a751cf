"""Retries after a lost connection, without an idempotency key: the call goes on for a moment, and the retry joins it.

The official clients of OpenAI and Anthropic repeat a request whose connection was lost, or that they gave up after
their own timeout, within seconds. They count their retries in a header; clients without it get no such moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from typing import Generic, Protocol, TypeVar

from starlette.requests import Request

from quintain_gateway.http.context import context_of
from quintain_gateway.http.headers import IDEMPOTENCY_KEY_HEADER

RETRY_COUNT_HEADER = "x-stainless-retry-count"

#: How many calls go on for their clients' retries at once, at most; further ones are cancelled immediately.
MAX_KEPT_CALLS = 1000


class KeptCalls(Protocol):
    """Calls that go on without a client."""

    async def cancel(self) -> None:
        """Cancel the calls that still run."""


CallsT = TypeVar("CallsT", bound=KeptCalls)


class RetryWindow(Generic[CallsT]):
    """The calls whose clients disconnected and may retry, each for ``seconds``; after that they are cancelled."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._kept: dict[asyncio.Task[None], tuple[str, CallsT]] = {}

    async def keep(self, identity: str, calls: CallsT) -> None:
        """Let calls go on for the retry of the request with this identity."""
        if len(self._kept) >= MAX_KEPT_CALLS:
            await calls.cancel()
            return
        task = asyncio.get_running_loop().create_task(self._cancel_after_window(calls))
        self._kept[task] = (identity, calls)
        task.add_done_callback(lambda _: self._kept.pop(task, None))

    def take(self, identity: str) -> CallsT | None:
        """Return the calls of the request with this identity for its retry; None unless there is exactly one."""
        found = [task for task, (kept_identity, _) in self._kept.items() if kept_identity == identity]
        if len(found) != 1:
            return None
        _, calls = self._kept.pop(found[0])
        found[0].cancel()
        return calls

    async def close(self) -> None:
        """Cancel all kept calls."""
        kept = dict(self._kept)
        self._kept.clear()
        for task in kept:
            task.cancel()
        await asyncio.gather(*(calls.cancel() for _, calls in kept.values()), *kept, return_exceptions=True)

    async def _cancel_after_window(self, calls: CallsT) -> None:
        await asyncio.sleep(self._seconds)
        await calls.cancel()


def retry_identity(request: Request, body: bytes) -> tuple[str, bool] | None:
    """Return what identifies a request to its own retries, and whether it is a retry.

    The identity covers the token, the path and the body. None if the client does not count its retries, or has an
    idempotency key, which identifies the call better.
    """
    count = request.headers.get(RETRY_COUNT_HEADER)
    if count is None or IDEMPOTENCY_KEY_HEADER in request.headers:
        return None
    parts = (context_of(request).session_key.encode(), request.scope["raw_path"], body)
    with contextlib.suppress(ValueError):
        return hashlib.sha256(b"\0".join(parts)).hexdigest(), int(count) > 0
    return None
