"""Retries uncharged calls that failed because a service was overloaded or unavailable, with exponential backoff."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from quintain.errors import BudgetUnavailable, Expired, Fault, GatewayUnavailable, Overloaded, QuintainError, Throttled

#: What is worth asking again while it is uncharged, and how often. The last two have each waited for a whole deadline
#: already; what a provider failed at is not here, because its worker has tried it several times. A broker that is gone
#: is not here either: the bus has waited for it.
MAX_RETRIES: Final[dict[type[QuintainError], int]] = {
    Overloaded: 40,
    GatewayUnavailable: 40,
    BudgetUnavailable: 10,
    Throttled: 3,
    Expired: 3,
}

#: The pause before that grows from the one to the other, in seconds, and is jittered.
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.2, 15.0

Returned = TypeVar("Returned")


def ignore_retry(_: QuintainError) -> None:
    """For `call_with_retry`, where nobody wants to know."""


async def call_with_retry(
    call: Callable[[], Awaitable[Returned]], on_retry: Callable[[QuintainError], None] = ignore_retry
) -> Returned:
    """What is asked for; ``on_retry`` is told of each error after which it is asked again. Raises the last one.

    Whoever asks must ask under the same request id each time, or for what may be done twice.
    """
    failure_counts: dict[type[QuintainError], int] = {}
    while True:
        try:
            return await call()
        except (Fault, GatewayUnavailable) as error:
            failure_counts[type(error)] = failure_counts.get(type(error), 0) + 1
            charged, retry_after_ms = (
                (error.charged, error.retry_after_ms) if isinstance(error, Fault) else (False, None)
            )
            if charged or failure_counts[type(error)] > MAX_RETRIES.get(type(error), 0):
                raise
            on_retry(error)
        max_delay_seconds = min(FIRST_PAUSE_SECONDS * 2 ** min(sum(failure_counts.values()), 20), LONGEST_PAUSE_SECONDS)
        # Jittered: what was refused together must not come back together.
        await asyncio.sleep((retry_after_ms or 0) / 1000 + random.uniform(max_delay_seconds / 2, max_delay_seconds))  # noqa: S311 -- no secret
