"""The official clients of OpenAI and Anthropic at a gateway, as their users make them; what they send is counted."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
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


@dataclass(frozen=True)
class OfficialClients:
    """Both clients of one session, and what they sent."""

    openai: openai.AsyncOpenAI
    anthropic: anthropic.AsyncAnthropic
    sent: SentRequests

    @property
    def ask(self) -> Mapping[str, Callable[..., Awaitable[Any]]]:
        """A conversation of each API; what the others do not take is left out."""

        async def response(*, messages: Any, max_tokens: int, **more: Any) -> Any:
            return await self.openai.responses.create(input=messages, max_output_tokens=max_tokens, **more)

        chat, message = self.openai.chat.completions.create, self.anthropic.messages.create
        return {"chat": chat, "responses": response, "messages": message}


@contextlib.asynccontextmanager
async def official_clients(url: str, token: str, **options: Any) -> AsyncIterator[OfficialClients]:
    """The clients of a session."""
    sent = SentRequests()
    http = httpx2.AsyncClient(event_hooks={"request": [sent.record]}, timeout=30, verify=False)
    shared = {"http_client": http, **options}
    async with (
        openai.AsyncOpenAI(api_key=token, base_url=f"{url}/v1", **shared) as of_openai,
        anthropic.AsyncAnthropic(api_key=token, base_url=url, **shared) as of_anthropic,
    ):
        yield OfficialClients(of_openai, of_anthropic, sent)
