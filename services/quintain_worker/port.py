"""The provider port: the one method behind which every kind of provider sits, and how one fails.

A provider tries once. Retries, deadlines, budgets and replies are the worker's.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from quintain.contracts.invoke import InvokeRequest, OutputMessage, TokenUsage
from quintain.errors import Fault


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a provider said. ``model`` is the model that really served it, where the provider tells."""

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
        self.again, self.retry_after_seconds = again, retry_after_seconds


class Provider(Protocol):
    """Reaches one target. Safe to call concurrently; cancelling `answer` stops the work at the provider."""

    async def answer(self, request: InvokeRequest, *, timeout_seconds: float) -> Answer:
        """Ask once, within the timeout. Raises `ProviderFailure`."""

    async def close(self) -> None:
        """Let go of connections and processes."""
