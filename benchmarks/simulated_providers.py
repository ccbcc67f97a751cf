"""Providers that enforce limits as OpenAI's and Anthropic's do, in simulated time: for `governor.py` and its tests."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from quintain.contracts.quota import RateFigures, RateReport

#: How a provider says that it refuses: with no word, with a Retry-After of 2 s, or with exact headers.
Words = str
SILENT, RETRY_AFTER_2, EXACT = "silent", "Retry-After: 2", "exact headers"


@dataclass(frozen=True, slots=True)
class Response:
    """Whether a provider takes a call, and what its headers say."""

    is_taken: bool
    rates: RateReport | None = None


class Limiter(Protocol):
    """Decides which calls a provider takes."""

    def take(self, now: float, tokens: float, in_flight: int) -> Response:
        """Decide on a call with so many tokens, while so many others run."""


@dataclass(slots=True)
class TokenBucket:
    """A bucket that refills at ``limit`` a minute and holds ``capacity``; of requests, or of tokens."""

    limit: float
    capacity: float
    words: Words = SILENT
    is_drained_by_refusals: bool = False
    counts_tokens: bool = False
    level: float = field(init=False)
    at: float = 0.0

    def __post_init__(self) -> None:
        self.level = self.capacity

    def take(self, now: float, tokens: float, in_flight: int) -> Response:
        """Take a call if the bucket holds enough for it."""
        del in_flight
        amount = tokens if self.counts_tokens else 1.0
        rate = self.limit / 60
        self.level, self.at = min(self.capacity, self.level + rate * (now - self.at)), now
        is_taken = self.level >= amount
        missing = amount - self.level
        if is_taken:
            self.level -= amount
        elif self.is_drained_by_refusals:
            self.level = max(self.level - amount, -self.capacity)
        figures = RateFigures(
            limit=self.capacity, remaining=max(0.0, self.level), reset_seconds=(self.capacity - self.level) / rate
        )
        return Response(
            is_taken, _report(self.words, figures, missing / rate, is_taken=is_taken, is_of_tokens=self.counts_tokens)
        )


@dataclass(slots=True)
class Window:
    """At most ``limit`` calls in a window of a minute, which is fixed or slides."""

    limit: int
    is_sliding: bool
    words: Words = SILENT
    taken: deque[float] = field(default_factory=deque)

    def take(self, now: float, tokens: float, in_flight: int) -> Response:
        """Take a call if its window has room."""
        del tokens, in_flight
        start = now - 60 if self.is_sliding else now // 60 * 60
        while self.taken and self.taken[0] < start:
            self.taken.popleft()
        is_taken = len(self.taken) < self.limit
        if is_taken:
            self.taken.append(now)
        end = (self.taken[0] + 60 if self.taken else now + 60) if self.is_sliding else start + 60
        figures = RateFigures(
            limit=self.limit, remaining=self.limit - len(self.taken), reset_seconds=max(0.0, end - now)
        )
        return Response(is_taken, _report(self.words, figures, end - now, is_taken=is_taken))


@dataclass(slots=True)
class InFlight:
    """At most so many calls at once, which nobody names; each limit holds from its time on."""

    limits: Sequence[tuple[float, int]]

    def take(self, now: float, tokens: float, in_flight: int) -> Response:
        """Take a call if fewer run than the present limit."""
        del tokens
        return Response(in_flight < [limit for since, limit in self.limits if since <= now][-1])


@dataclass(slots=True)
class RefusesOnce:
    """Takes every call but the first one after a time."""

    after: float

    def take(self, now: float, tokens: float, in_flight: int) -> Response:
        """Take a call, unless it is that one."""
        del tokens, in_flight
        is_taken = now < self.after
        self.after = self.after if is_taken else float("inf")
        return Response(is_taken)


@dataclass(slots=True)
class Unlimited:
    """Takes every call."""

    def take(self, now: float, tokens: float, in_flight: int) -> Response:
        """Take a call."""
        del now, tokens, in_flight
        return Response(is_taken=True)


def _report(
    words: Words, figures: RateFigures, wait_seconds: float, *, is_taken: bool, is_of_tokens: bool = False
) -> RateReport | None:
    if words == SILENT:
        return None
    if words == RETRY_AFTER_2:
        return None if is_taken else RateReport(retry_after_seconds=2)
    return RateReport(
        requests=None if is_of_tokens else figures,
        tokens=figures if is_of_tokens else None,
        retry_after_seconds=None if is_taken else round(max(0.0, wait_seconds), 3),
    )


#: Says whether a provider is down for a target at a time.
IsDown = Callable[[float, str], bool]


def never_down(now: float, target: str) -> bool:
    """A provider that is never down."""
    del now, target
    return False
