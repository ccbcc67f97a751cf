"""The provider port: the one method behind which every kind of provider sits, and how one fails.

A provider tries once. Retries, deadlines, budgets and replies are the worker's.
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
Heard = Callable[[str], None]

#: A provider's word on when to come again counts for a day at most, in seconds.
MOST_RETRY_AFTER_SECONDS = 24 * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
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
    """One try failed. ``again`` says whether another try may help; ``retry_after_seconds`` when, if anyone said."""

    def __init__(
        self, fault: Fault, billing: Billing, *, again: bool = False, retry_after_seconds: float | None = None
    ) -> None:
        super().__init__(fault.message)
        self.fault, self.billing = fault, billing
        self.again, self.retry_after_seconds = again, sensible(retry_after_seconds)


def sensible(retry_after_seconds: float | None) -> float | None:
    """A provider's word on when to come again, within `MOST_RETRY_AFTER_SECONDS`; None for a word that is no time."""
    if retry_after_seconds is None or not retry_after_seconds >= 0:
        return None
    return min(retry_after_seconds, MOST_RETRY_AFTER_SECONDS)


class Provider(Protocol):
    """Reaches one target. Safe to call concurrently; cancelling `answer` stops the work at the provider."""

    async def answer(self, request: InvokeRequest, *, timeout_seconds: float, heard: Heard | None = None) -> Answer:
        """Ask once, within the timeout. Raises `ProviderFailure`.

        ``heard`` is told the text piece by piece: of an answer, the pieces joined are its text; of a failed try,
        they are void. A provider that cannot stream never calls it. The answer is as whole as it is without.
        """

    async def close(self) -> None:
        """Let go of connections and processes."""


class ActsForCaller(ABC):
    """A provider that calls in its caller's name: whom it reaches spends the caller's session, narrowed."""

    @abstractmethod
    def acting_for(self, token: SessionToken) -> Provider:
        """The provider for one call of the session with this token. It is closed with this one."""


def for_caller(provider: Provider, token: SessionToken) -> Provider:
    """What to ask for one call of the session with this token: the provider itself, where it acts in nobody's name."""
    return provider.acting_for(token) if isinstance(provider, ActsForCaller) else provider
