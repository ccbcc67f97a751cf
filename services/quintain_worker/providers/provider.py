"""The `Provider` interface, its answer and its failure.

A provider tries once. Retries, deadlines, budgets and replies belong to the worker.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from quintain.contracts.invoke import InvokeRequest, OutputMessage, TokenUsage
from quintain.contracts.token import SessionToken
from quintain.errors import Fault

#: Told each piece of an answer's text as it comes, in order. It returns at once, and never raises.
OnText = Callable[[str], None]

#: A provider's word on when to come again counts for a day at most, in seconds.
MAX_RETRY_AFTER_SECONDS = 24 * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderAnswer:
    """What a provider said. ``model`` is the model that really served it, where the provider tells.

    ``output`` is where more was said than ``text``: several messages, or calls of tools.
    """

    text: str
    output: list[OutputMessage] | None = None
    token_usage: TokenUsage | None = None
    model: str | None = None
    finish_reason: str | None = None


class Billing(StrEnum):
    """What is known of a failed try: the ground on which a call is refunded, charged or in doubt."""

    #: Proven: no inference happened (never sent; 401, 402, 403, 404, 429; 503 and 529).
    UNBILLED = "unbilled"
    #: The provider worked, and failed or refused.
    BILLED = "billed"
    #: It may have reached the provider, and nobody knows what came of it.
    UNKNOWN = "unknown"


class ProviderFailure(Exception):
    """One try failed. ``retryable`` says whether another try may help; ``retry_after_seconds`` when, if anyone said."""

    def __init__(
        self, fault: Fault, billing: Billing, *, retryable: bool = False, retry_after_seconds: float | None = None
    ) -> None:
        super().__init__(fault.message)
        self.fault, self.billing = fault, billing
        self.retryable, self.retry_after_seconds = retryable, clamp_retry_after(retry_after_seconds)


def clamp_retry_after(retry_after_seconds: float | None) -> float | None:
    """A provider's word on when to come again, within `MAX_RETRY_AFTER_SECONDS`; None for a word that is no time."""
    if retry_after_seconds is None or not retry_after_seconds >= 0:
        return None
    return min(retry_after_seconds, MAX_RETRY_AFTER_SECONDS)


class Provider(Protocol):
    """Reaches one target. Safe to call concurrently; cancelling `answer` stops the work at the provider."""

    async def answer(
        self, request: InvokeRequest, *, timeout_seconds: float, on_text: OnText | None = None
    ) -> ProviderAnswer:
        """Ask once, within the timeout. Raises `ProviderFailure`.

        ``on_text`` is told the text piece by piece: of an answer, the pieces joined are its text; of a failed try,
        they are void. A provider that cannot stream never calls it. The answer is as whole as it is without.
        """

    async def close(self) -> None:
        """Let go of connections and processes."""


class SessionScopedProvider(ABC):
    """A provider that calls in its caller's name: whom it reaches spends the caller's session, narrowed."""

    @abstractmethod
    def for_session(self, token: SessionToken) -> Provider:
        """The provider for one call of the session with this token. It is closed with this one."""


def provider_for_session(provider: Provider, token: SessionToken) -> Provider:
    """What to ask for one call of the session with this token: the provider itself, where it acts in nobody's name."""
    return provider.for_session(token) if isinstance(provider, SessionScopedProvider) else provider
