"""The official clients of OpenAI and Anthropic at a gateway, as their users make them; what they send is counted."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import anthropic
import httpx2
import openai


@dataclass
class SentRequests:
    """The requests that a client sent."""

    requests: list[httpx2.Request] = field(default_factory=list)

    async def record(self, request: httpx2.Request) -> None:
        self.requests.append(request)


@contextlib.asynccontextmanager
async def openai_client(url: str, token: str, **options: Any) -> AsyncIterator[tuple[openai.AsyncOpenAI, SentRequests]]:
    """OpenAI's client."""
    sent = SentRequests()
    http = httpx2.AsyncClient(event_hooks={"request": [sent.record]}, timeout=30, verify=False)
    async with openai.AsyncOpenAI(api_key=token, base_url=f"{url}/v1", http_client=http, **options) as client:
        yield client, sent


@contextlib.asynccontextmanager
async def anthropic_client(
    url: str, token: str, **options: Any
) -> AsyncIterator[tuple[anthropic.AsyncAnthropic, SentRequests]]:
    """Anthropic's client."""
    sent = SentRequests()
    http = httpx2.AsyncClient(event_hooks={"request": [sent.record]}, timeout=30, verify=False)
    async with anthropic.AsyncAnthropic(api_key=token, base_url=url, http_client=http, **options) as client:
        yield client, sent
