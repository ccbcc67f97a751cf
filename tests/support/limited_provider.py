"""A model provider on a loopback socket that enforces limits as OpenAI and Anthropic do, and counts what it answered.

Its settings may be replaced while it runs.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Literal, Protocol

from aiohttp import web

Kind = Literal["bucket", "draining bucket", "sliding window", "fixed window", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderSettings:
    """What a provider allows, and how it says so.

    ``counts`` says what ``per_minute`` and ``burst`` are; only a bucket counts tokens, of four characters, of requests
    and answers. ``retry_after`` is the text of that header with each 429, ``headers`` whether each answer has exact
    ``x-ratelimit-*`` and each 429 ``retry-after-ms``. ``in_flight`` is how many requests it works on at a time. With
    ``down`` it answers 500, with ``silent`` never; ``answer`` is the text of an answer.
    """

    kind: Kind = "bucket"
    counts: Literal["requests", "tokens"] = "requests"
    per_minute: int = 60
    burst: int = 1
    in_flight: int = 0
    seconds: float = 0.1
    retry_after: str = ""
    headers: bool = False
    down: bool = False
    silent: bool = False
    answer: str = "Paris"


class RequestLimit(Protocol):
    """A limit of requests by time."""

    def take(self, now: float, amount: int) -> float:
        """Count a request of so much; returns 0 where it is allowed, else the seconds until it would be."""

    def remaining(self, now: float) -> int:
        """Return how much is allowed at once now."""


class Bucket:
    """Fills at so much a minute, up to ``burst``; if it ``drains``, a refused request takes its amount too."""

    def __init__(self, per_minute: int, burst: int, *, drains: bool = False) -> None:
        self._rate, self._burst, self._drains = per_minute / 60, max(1, burst), drains
        self._level, self._at = float(self._burst), 0.0

    def take(self, now: float, amount: int) -> float:
        self._fill(now)
        if self._level >= amount:
            self._level -= amount
            return 0.0
        if self._drains:
            self._level = max(self._level - amount, -self._burst)
        return (amount - self._level) / self._rate

    def remaining(self, now: float) -> int:
        self._fill(now)
        return max(0, int(self._level))

    def _fill(self, now: float) -> None:
        self._level = min(self._burst, self._level + max(0.0, now - self._at) * self._rate)
        self._at = now


class SlidingWindow:
    """Allows so many requests in any 60 seconds."""

    def __init__(self, per_minute: int) -> None:
        self._limit, self._taken = per_minute, deque[float]()

    def take(self, now: float, amount: int) -> float:
        del amount
        self._forget(now)
        if len(self._taken) < self._limit:
            self._taken.append(now)
            return 0.0
        return self._taken[0] + 60 - now

    def remaining(self, now: float) -> int:
        self._forget(now)
        return self._limit - len(self._taken)

    def _forget(self, now: float) -> None:
        while self._taken and self._taken[0] <= now - 60:
            self._taken.popleft()


class FixedWindow:
    """Allows so many requests in each minute, counted from its first request."""

    def __init__(self, per_minute: int) -> None:
        self._limit, self._count, self._begins = per_minute, 0, -1e9

    def take(self, now: float, amount: int) -> float:
        del amount
        self._turn(now)
        if self._count < self._limit:
            self._count += 1
            return 0.0
        return self._begins + 60 - now

    def remaining(self, now: float) -> int:
        self._turn(now)
        return self._limit - self._count

    def _turn(self, now: float) -> None:
        if now >= self._begins + 60:
            self._begins, self._count = now, 0


def request_limit(settings: ProviderSettings) -> RequestLimit | None:
    """Return the limit of these settings; None where there is none."""
    match settings.kind:
        case "none":
            return None
        case "sliding window":
            return SlidingWindow(settings.per_minute)
        case "fixed window":
            return FixedWindow(settings.per_minute)
        case kind:
            return Bucket(settings.per_minute, settings.burst, drains=kind == "draining bucket")


@dataclass(slots=True)
class LimitedProvider:
    """Answers chat completions within its limits. ``answered`` counts answers by second and status."""

    settings: ProviderSettings
    answered: Counter[tuple[int, int]] = field(default_factory=Counter)
    #: How much of its limit it gave, by second.
    used: Counter[int] = field(default_factory=Counter)
    #: When each question was answered, and its first word.
    answered_words: list[tuple[float, str]] = field(default_factory=list)
    #: How many requests it works on, summed over time and kept by second.
    in_flight: int = 0
    busy: Counter[int] = field(default_factory=Counter)
    _limit: RequestLimit | None = None
    _began: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self._limit = request_limit(self.settings)

    def app(self) -> web.Application:
        """Return its HTTP server."""
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self.complete)
        return app

    async def complete(self, request: web.Request) -> web.StreamResponse:
        """Answer a request for a completion, or refuse it."""
        body, now, settings = await request.json(), time.monotonic(), self.settings
        if settings.silent:
            await asyncio.sleep(3600)
        if settings.down:
            return self._count(web.json_response({"error": {"message": "down"}}, status=500))
        question = str(body["messages"][-1]["content"])
        tokens = 20 + len(question) // 4
        amount = tokens + 5 if settings.counts == "tokens" else 1
        wait = 0.0 if self._limit is None else self._limit.take(now, amount)
        if wait or 0 < settings.in_flight <= self.in_flight:
            return self._count(self._refuse(wait))
        self.used[int(now - self._began)] += amount
        self.in_flight += 1
        self.busy[int(now - self._began)] = max(self.busy[int(now - self._began)], self.in_flight)
        try:
            await asyncio.sleep(settings.seconds)
        finally:
            self.in_flight -= 1
        self.answered_words.append((time.monotonic(), question.split(maxsplit=1)[0]))
        answer = {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 1,
            "model": body["model"],
            "choices": [
                {
                    "index": 0,
                    "finish_reason": "stop",
                    "message": {"role": "assistant", "content": settings.answer},
                }
            ],
            "usage": {"prompt_tokens": tokens, "completion_tokens": 5, "total_tokens": tokens + 5},
        }
        return self._count(web.json_response(answer, headers=self._headers(0.0)))

    def _refuse(self, wait: float) -> web.Response:
        error = {"message": "Rate limit reached", "type": "requests", "code": "rate_limit_exceeded"}
        return web.json_response({"error": error}, status=429, headers=self._headers(wait))

    def _headers(self, wait: float) -> dict[str, str]:
        headers: dict[str, str] = {}
        if self.settings.headers and self._limit is not None:
            remaining, counts = self._limit.remaining(time.monotonic()), self.settings.counts
            headers |= {
                f"x-ratelimit-limit-{counts}": str(self.settings.per_minute),
                f"x-ratelimit-remaining-{counts}": str(remaining),
                f"x-ratelimit-reset-{counts}": f"{60 / self.settings.per_minute:.3f}s",
            }
            if wait:
                headers["retry-after-ms"] = str(round(wait * 1000))
        elif wait and self.settings.retry_after:
            headers["retry-after"] = self.settings.retry_after
        return headers

    def _count(self, response: web.Response) -> web.Response:
        self.answered[int(time.monotonic() - self._began), response.status] += 1
        return response
