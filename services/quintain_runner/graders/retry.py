"""Retries uncharged calls that failed because a service was overloaded or unavailable, with exponential backoff."""

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
    Rejected,
    ReplyTooLarge,
    Throttled,
)

#: Charged faults whose outcome is known: the provider answered, and the answer is of no use.
ANSWERED_FAULTS = (Rejected, ReplyTooLarge)

#: The errors after which an uncharged call is retried, and how often. Throttled and Expired have few retries, because
#: each of them already waited for a whole deadline. Provider errors are not retried, because the worker has done that;
#: nor is a lost connection to the broker, because the bus reconnects by itself.
MAX_RETRIES: Final[dict[type[QuintainError], int]] = {
    Overloaded: 40,
    GatewayUnavailable: 40,
    BudgetUnavailable: 10,
    Throttled: 3,
    Expired: 3,
}

#: The first and the longest pause before a retry, in seconds; pauses grow exponentially and are jittered.
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.2, 15.0

Returned = TypeVar("Returned")


def is_in_doubt(fault: Fault) -> bool:
    """Whether a call ended charged, or perhaps charged, and without an answer: to ask again may be charged again."""
    return fault.charged is not False and not isinstance(fault, ANSWERED_FAULTS)


def ignore_retry(_: QuintainError) -> None:
    """Do nothing: the default of ``on_retry`` in `call_with_retry`."""


async def call_with_retry(
    call: Callable[[], Awaitable[Returned]], on_retry: Callable[[QuintainError], None] = ignore_retry
) -> Returned:
    """Await ``call()`` and return its result, repeating it after the errors in `MAX_RETRIES`; raises the last error.

    Charged calls are not repeated. A server's ``retry_after_ms`` is added to the pause. ``on_retry`` is called with
    each error that is followed by a retry. Every call must use the same request id, or be safe to execute twice.

    Example::

        result = await call_with_retry(lambda: client.send(request, request_id=request_id))
    """
    failure_counts: dict[type[QuintainError], int] = {}
    while True:
        try:
            return await call()
        except (Fault, GatewayUnavailable) as error:
            failure_counts[type(error)] = failure_counts.get(type(error), 0) + 1
            # A call whose charge is unknown is asked for again: its request id is the same, so it is charged once.
            charged, retry_after_ms = (
                (error.charged, error.retry_after_ms) if isinstance(error, Fault) else (False, None)
            )
            if charged or failure_counts[type(error)] > MAX_RETRIES.get(type(error), 0):
                raise
            on_retry(error)
        max_delay_seconds = min(FIRST_PAUSE_SECONDS * 2 ** min(sum(failure_counts.values()), 20), LONGEST_PAUSE_SECONDS)
        # Jittered, so that calls that were rejected together are not retried together.
        await asyncio.sleep((retry_after_ms or 0) / 1000 + random.uniform(max_delay_seconds / 2, max_delay_seconds))  # noqa: S311 -- no secret
