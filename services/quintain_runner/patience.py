"""Asking again where the fleet could not take it: an overload, or a service that starts again, is no case's error."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from quintain.errors import (
    BudgetUnavailable,
    Expired,
    Fault,
    GatewayUnavailable,
    Overloaded,
    QuintainError,
    Throttled,
)

#: What is worth asking again while it is uncharged, and how often. The last two have each waited for a whole deadline
#: already; what a provider failed at is not here, because its worker has tried it several times. A broker that is gone
#: is not here either: the bus has waited for it.
MOST_TIMES: Final[dict[type[QuintainError], int]] = {
    Overloaded: 40,
    GatewayUnavailable: 40,
    BudgetUnavailable: 10,
    Throttled: 3,
    Expired: 3,
}

#: The pause before that grows from the one to the other, in seconds, and is jittered.
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.2, 15.0

Returned = TypeVar("Returned")


def unheard(_: QuintainError) -> None:
    """For `patiently`, where nobody wants to know."""


async def patiently(
    asked: Callable[[], Awaitable[Returned]], heard: Callable[[QuintainError], None] = unheard
) -> Returned:
    """What is asked for; ``heard`` is told of each error after which it is asked again. Raises the last one.

    Whoever asks must ask under the same request id each time, or for what may be done twice.
    """
    times: dict[type[QuintainError], int] = {}
    while True:
        try:
            return await asked()
        except (Fault, GatewayUnavailable) as error:
            times[type(error)] = times.get(type(error), 0) + 1
            charged, pause = (error.charged, error.retry_after_ms) if isinstance(error, Fault) else (False, None)
            if charged or times[type(error)] > MOST_TIMES.get(type(error), 0):
                raise
            heard(error)
        most = min(FIRST_PAUSE_SECONDS * 2 ** min(sum(times.values()), 20), LONGEST_PAUSE_SECONDS)
        # Jittered: what was refused together must not come back together.
        await asyncio.sleep((pause or 0) / 1000 + random.uniform(most / 2, most))  # noqa: S311 -- no secret
