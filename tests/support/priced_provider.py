"""A model provider on a loopback socket that keeps its own bill, in picodollars, and fails in each way that costs.

Its prices are `PRICE`; a request is billed when it is received, whether its answer arrives or not.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import random
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

#: US dollars per million tokens, as `quintain.yaml` has them.
PRICE = {
    "input_per_million": 3.0,
    "output_per_million": 15.0,
    "cached_input_per_million": 0.3,
    "cache_write_per_million": 3.75,
    "cache_write_1h_per_million": 6.0,
}

#: Picodollars per token: of input, of output, of input from the cache, of input written to the cache, and for an hour.
INPUT, OUTPUT, CACHED, WRITTEN, WRITTEN_1H = (round(price * 10**6) for price in PRICE.values())

#: Calls of longer questions cost more, as those of models with a long context.
LONG_QUESTION = 60
LONG_PRICE = {
    "input_per_million": 6.0,
    "output_per_million": 18.0,
    "cached_input_per_million": 0.9,
    "cache_write_per_million": 7.5,
}

#: The price of a provider that is `tiered`.
TIERED_PRICE = {**PRICE, "tiers": [{"above_input_tokens": LONG_QUESTION, **LONG_PRICE}]}
LONG_INPUT, LONG_OUTPUT, LONG_CACHED, _ = (round(price * 10**6) for price in LONG_PRICE.values())

#: The cache takes no prefix of fewer tokens.
MIN_CACHED_TOKENS = 1024


@dataclass(slots=True)
class PricedProvider:
    """Answers chat completions and messages, and bills them; of messages it caches what they mark, as Anthropic does.

    ``failing`` is the part of requests that end otherwise than answered, in one of ``kinds``: 500 after they were
    billed, a connection that is closed before the answer or in the middle of it, an answer without usage, 429.
    ``failed`` of them were billed and brought no answer; ``answered_bill`` and ``tokens`` are of those that told their
    usage. ``output`` is the part of ``max_tokens`` that answers have at most, ``answer`` their text. ``is_exact``:
    answers have that part, and questions a token per four bytes. ``cheaper`` divides the prices of models, by name.
    ``tiered``: chat completions with ``long_questions`` cost `LONG_PRICE`.
    """

    failing: float = 0.0
    output: float = 1.0
    seconds: float = 0.02
    answer: str = "Paris"
    is_exact: bool = False
    tiered: bool = False
    cheaper: dict[str, int] = field(default_factory=dict)
    seed: int = 1
    kinds: tuple[str, ...] = ("500", "closed", "lost halfway", "no usage", "429")
    bill: int = 0
    requests: int = 0
    in_flight: int = 0
    most_in_flight: int = 0
    cached: set[str] = field(default_factory=set)
    failed: int = 0
    long_questions: int = 0
    answered_bill: int = 0
    #: Input, output, and input from the cache.
    tokens: tuple[int, int, int] = (0, 0, 0)
    random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)

    def application(self) -> web.Application:
        app = web.Application(client_max_size=2**24)
        app.router.add_post("/v1/chat/completions", self.complete)
        app.router.add_post("/v1/messages", self.answer_message)
        return app

    async def complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        asked = json.loads(body)
        self.requests += 1
        is_failing = self.random.random() < self.failing
        how = self.random.choice(self.kinds) if is_failing else "answered"
        if how == "429":
            return web.json_response({"error": {"message": "slow down"}}, status=429, headers={"retry-after": "0"})
        limit = asked.get("max_completion_tokens") or asked.get("max_tokens") or 300
        tokens_in, tokens_out, cached = len(body) // 4, max(1, round(limit * self.output)), 0
        if not self.is_exact:
            tokens_in, tokens_out = self.random.randint(1, len(body)), self.random.randint(1, tokens_out)
            cached = self.random.randint(0, tokens_in) if self.random.random() < 0.3 else 0
        is_long = self.tiered and tokens_in > LONG_QUESTION
        prices = (LONG_INPUT, LONG_CACHED, LONG_OUTPUT) if is_long else (INPUT, CACHED, OUTPUT)
        self.long_questions += is_long
        billed = (tokens_in - cached) * prices[0] + cached * prices[1] + tokens_out * prices[2]
        billed //= self.cheaper.get(asked["model"], 1)
        self.bill += billed
        self.failed += how in {"500", "closed", "lost halfway"}
        if how == "answered":
            self.answered_bill += billed
            self.tokens = (self.tokens[0] + tokens_in, self.tokens[1] + tokens_out, self.tokens[2] + cached)
        await self._wait()
        if how == "500":
            return web.json_response({"error": {"message": "broken"}}, status=500)
        if how == "closed" and request.transport is not None:
            request.transport.abort()
            return web.Response()
        usage = {
            "prompt_tokens": tokens_in,
            "completion_tokens": tokens_out,
            "total_tokens": tokens_in + tokens_out,
            "prompt_tokens_details": {"cached_tokens": cached},
        }
        choice = {"index": 0, "message": {"role": "assistant", "content": self.answer}, "finish_reason": "stop"}
        answer = {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
        if how == "lost halfway":
            return await _send_half(request, json.dumps({**answer, "usage": usage}).encode())
        return web.json_response(answer if how == "no usage" else {**answer, "usage": usage})

    async def _wait(self) -> None:
        """Take the time that an answer takes, and count what is in flight meanwhile."""
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            await asyncio.sleep(self.seconds)
        finally:
            self.in_flight -= 1

    async def answer_message(self, request: web.Request) -> web.Response:
        asked = await request.json()
        self.requests += 1
        total, read, written = self._read_and_write(asked)
        by_lifetime = {name: written.get(name, 0) for name in ("5m", "1h")}
        plain = total - read - sum(by_lifetime.values())
        tokens_out = self.random.randint(1, asked["max_tokens"])
        self.bill += plain * INPUT + read * CACHED + tokens_out * OUTPUT
        self.bill += by_lifetime["5m"] * WRITTEN + by_lifetime["1h"] * WRITTEN_1H
        await asyncio.sleep(self.seconds)
        usage = {
            "input_tokens": plain,
            "output_tokens": tokens_out,
            "cache_read_input_tokens": read,
            "cache_creation_input_tokens": sum(by_lifetime.values()),
            "cache_creation": {f"ephemeral_{name}_input_tokens": count for name, count in by_lifetime.items()},
        }
        content = [{"type": "text", "text": self.answer}]
        head = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "stop_reason": "end_turn"}
        return web.json_response({**head, "content": content, "usage": usage})

    def _read_and_write(self, asked: dict[str, Any]) -> tuple[int, int, dict[str, int]]:
        """Return a message's tokens: all, those of its longest cached prefix, and those it writes, by lifetime."""
        text, read, start = "", 0, 0
        written: dict[str, int] = {}
        new: list[tuple[int, str, str]] = []
        for block in _blocks(asked):
            mark = block.pop("cache_control", None)
            text += json.dumps(block)
            key = hashlib.sha256(text.encode()).hexdigest()
            if key in self.cached:
                read = len(text) // 4
            if mark is not None and len(text) // 4 >= MIN_CACHED_TOKENS:
                new.append((len(text) // 4, mark.get("ttl", "5m"), key))
        for end, lifetime, key in new:
            self.cached.add(key)
            start = max(start, read)
            if end > start:
                written[lifetime] = written.get(lifetime, 0) + end - start
                start = end
        return len(text) // 4, read, written


async def _send_half(request: web.Request, answer: bytes) -> web.StreamResponse:
    """Send the first half of an answer, and close the connection."""
    response = web.StreamResponse(headers={"content-type": "application/json", "content-length": str(len(answer))})
    with contextlib.suppress(ConnectionError):  # of a client that was killed meanwhile
        await response.prepare(request)
        await response.write(answer[: len(answer) // 2])
    if request.transport is not None:
        request.transport.abort()
    return response


def _blocks(asked: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield copies of a message's blocks in the order in which they are cached: tools, system, turns."""
    contents = [asked.get("tools") or [], asked.get("system") or []]
    for content in (*contents, *(turn["content"] for turn in asked["messages"])):
        for block in [{"type": "text", "text": content}] if isinstance(content, str) else content:
            yield dict(block)


@contextlib.asynccontextmanager
async def serving(provider: PricedProvider, port: int = 0) -> AsyncIterator[str]:
    """Serve it on a loopback port; yields its URL."""
    runner = web.AppRunner(provider.application(), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
