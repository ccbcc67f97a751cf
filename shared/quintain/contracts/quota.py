"""What one provider key may use, and what its answers say of that: the words of workers and metadata service."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field, FiniteFloat

from quintain.contracts.message import Message
from quintain.contracts.values import Id, Text

#: Upper bounds of what a quota may name: calls in flight, and requests or tokens a minute.
MAX_IN_FLIGHT, MAX_PER_MINUTE = 10_000, 1e12

#: How the id of a quota begins that no file names: no name has a colon.
IMPLIED_ID_PREFIX = "key:"


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


class FailureCause(StrEnum):
    """Why a try failed, where that says what mends it, and how soon it may."""

    #: The name of its host is not found, or its certificate is not valid.
    WRONG_ADDRESS = "wrong_address"
    #: No connection, or HTTP 503: it is down, or starts.
    NOT_TAKEN = "not_taken"
    #: What answers there knows no such path or model.
    NOT_FOUND = "not_found"


#: How long the words of a failure are at most, in characters.
MAX_FAILURE_LENGTH = 600


class TryFailure(Message):
    """Why a try has no answer: its URL and what its provider or the system said, without control characters."""

    words: Annotated[Text, Field(max_length=MAX_FAILURE_LENGTH)]
    cause: FailureCause | None = None

    @classmethod
    def of(cls, words: str, cause: FailureCause | None) -> TryFailure:
        """Return what may be shown of these words, the secrets in which are masked already."""
        shown = "".join(char if char.isprintable() else " " for char in words[: 2 * MAX_FAILURE_LENGTH])
        return cls(words=" ".join(shown.split())[:MAX_FAILURE_LENGTH], cause=cause)


class TryReport(Message):
    """How one granted call ended at its provider; ``tokens`` are those that it used, ``failure`` is why it has no
    answer."""

    outcome: TryOutcome
    tokens: Annotated[FiniteFloat, Field(ge=0)] | None = None
    rates: RateReport | None = None
    failure: TryFailure | None = None
