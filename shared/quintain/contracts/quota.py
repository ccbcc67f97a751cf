"""What one provider key may use, and what its answers say of that: the words of workers and metadata service."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field, FiniteFloat

from quintain.contracts.message import Message
from quintain.contracts.values import Id, Text

#: Upper bounds of what a quota may name: calls in flight, and requests or tokens a minute.
MAX_IN_FLIGHT, MAX_PER_MINUTE = 10_000, 1e12


class QuotaTerms(Message):
    """What is configured of a quota; None is not known.

    The calls in flight begin at ``start`` and stay between ``min`` and ``max``; without ``adaptive`` they stay at
    ``start``.
    """

    requests_per_minute: Annotated[FiniteFloat, Field(gt=0, le=MAX_PER_MINUTE)] | None = None
    tokens_per_minute: Annotated[FiniteFloat, Field(gt=0, le=MAX_PER_MINUTE)] | None = None
    start: Annotated[int, Field(ge=1, le=MAX_IN_FLIGHT)] = 20
    min: Annotated[int, Field(ge=1, le=MAX_IN_FLIGHT)] = 1
    max: Annotated[int, Field(ge=1, le=MAX_IN_FLIGHT)] = 256
    adaptive: bool = True


class QuotaCard(Message):
    """The public description of a target's quota; ``name`` is for people."""

    id: Id
    name: Text
    terms: QuotaTerms


class RateFigures(Message):
    """What an answer's headers say of one rate: the limit, what is left of it, and seconds until all of it is back."""

    limit: Annotated[FiniteFloat, Field(gt=0)]
    remaining: Annotated[FiniteFloat, Field(ge=0)]
    reset_seconds: Annotated[FiniteFloat, Field(ge=0)]


class RateReport(Message):
    """What an answer's headers say of its key's limits, and how long it asks to wait."""

    requests: RateFigures | None = None
    tokens: RateFigures | None = None
    retry_after_seconds: Annotated[FiniteFloat, Field(ge=0)] | None = None


class TryOutcome(StrEnum):
    """How the provider took a call, as far as its limits and its health are concerned."""

    #: It answered: a result, or a refusal of this one request.
    ANSWERED = "answered"
    #: It asked to slow down.
    THROTTLED = "throttled"
    #: It failed or could not be reached, or did not answer in time.
    FAILED = "failed"
    #: It refuses the key: revoked, or its credit is spent.
    REFUSED = "refused"
    #: Nothing was sent.
    NOT_SENT = "not_sent"
    #: Nothing is known: the call was cancelled, or its worker was lost.
    UNKNOWN = "unknown"


class TryReport(Message):
    """How one granted call ended at its provider; ``tokens`` are those that it used."""

    outcome: TryOutcome
    tokens: Annotated[FiniteFloat, Field(ge=0)] | None = None
    rates: RateReport | None = None
