"""What a model library raised, as what the ledger needs to know: was it billed, and may another try help.

A refund needs proof that no inference happened (``design.md`` §3.4): never sent, 401, 402, 403, 404, 429, 503, 529.
Other answers of the provider are charged; what nobody knows is in doubt, and charged: so is a stream that broke off,
as half an answer is billed as its provider pleases. A sentence names the
provider, the exception, the HTTP status and the provider's request id, and never quotes the provider: error
bodies repeat keys and prompts.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from pydantic_ai.exceptions import (
    ModelAPIError,
    ModelConnectionError,
    ModelHTTPError,
    ModelQuotaExceededError,
    ModelRateLimitError,
    ModelRequestRejectedError,
    ModelRequestTimeout,
    ModelServerError,
    ModelTimeoutError,
    ModelUnavailableError,
)

from quintain.errors import Fault, ProviderFailed, Rejected, TargetUnavailable, Throttled, TimedOut
from quintain_worker.port import Billing, ProviderFailure, sensible


class BrokenOff(Exception):
    """A stream ended, and its answer had not."""


@dataclass(frozen=True, slots=True)
class _Verdict:
    """One row: the fault, the sentence's end, what is known of the bill, and whether another try may help."""

    fault: Callable[[str], Fault]
    says: str
    billing: Billing
    again: bool = False


def _failed_charged(message: str) -> Fault:
    return ProviderFailed(message, charged=True)


def _failed_uncharged(message: str) -> Fault:
    return ProviderFailed(message, charged=False)


_UNAVAILABLE = "refused the credentials, the model or the quota"
_REFUSED = _Verdict(TargetUnavailable, _UNAVAILABLE, Billing.UNBILLED)
_THROTTLED = _Verdict(Throttled, "asked to slow down", Billing.UNBILLED, again=True)
_BUSY = _Verdict(_failed_uncharged, "did not take the request", Billing.UNBILLED, again=True)
_NOT_SENT = _Verdict(_failed_uncharged, "could not be reached; nothing was sent", Billing.UNBILLED, again=True)
_REJECTED = _Verdict(Rejected, "judged the request itself wrong", Billing.BILLED)
_BROKE = _Verdict(_failed_charged, "failed at the request", Billing.BILLED, again=True)
_TIMED_OUT = _Verdict(TimedOut, "did not answer in time", Billing.UNKNOWN)
_LOST = _Verdict(_failed_charged, "was lost after sending", Billing.UNKNOWN, again=True)
_BROKE_OFF = _Verdict(_failed_charged, "broke off in the middle of its answer", Billing.UNKNOWN, again=True)
_GARBAGE = _Verdict(_failed_charged, "answered what nobody can read", Billing.UNKNOWN, again=True)

#: HTTP statuses that say something of their own; the rest go by their hundred.
_BY_STATUS = {
    401: _REFUSED,
    402: _REFUSED,
    403: _REFUSED,
    404: _REFUSED,
    408: _TIMED_OUT,
    429: _THROTTLED,
    503: _BUSY,
    529: _BUSY,
}

#: What came without a status of its own, the narrower class first.
_BY_CLASS: tuple[tuple[type[Exception], _Verdict], ...] = (
    (ModelRequestTimeout, _TIMED_OUT),
    (ModelTimeoutError, _TIMED_OUT),
    (TimeoutError, _TIMED_OUT),
    (BrokenOff, _BROKE_OFF),
    (ModelConnectionError, _LOST),
    (ModelRequestRejectedError, _REJECTED),
    # Errors inside an answer of status 200: the provider worked, and failed.
    (ModelServerError, _BROKE),
    (ModelUnavailableError, _BROKE),
    (ModelRateLimitError, _BROKE),
    (ModelQuotaExceededError, _BROKE),
)

_REQUEST_ID_HEADERS = ("x-request-id", "request-id")
_REQUEST_ID = re.compile(r"[A-Za-z0-9_.:-]{1,128}")


def failure_of(error: Exception, provider: str) -> ProviderFailure:
    """The failure that this exception of a model library means."""
    verdict = _verdict(error)
    fault = verdict.fault(f"{provider} {verdict.says} ({', '.join(_facts(error))})")
    seconds = sensible(error.retry_after) if isinstance(error, ModelAPIError) else None
    if seconds is not None:
        fault.retry_after_ms = round(seconds * 1000)
    return ProviderFailure(fault, verdict.billing, again=verdict.again, retry_after_seconds=seconds)


def _verdict(error: Exception) -> _Verdict:
    if isinstance(error, ModelConnectionError) and error.phase in {"pool", "connect"}:
        return _NOT_SENT
    if isinstance(error, ModelAPIError) and error.in_stream:
        # It had begun to answer: whatever status it names now, that is no proof that no inference happened.
        return _BROKE_OFF
    if isinstance(error, ModelHTTPError):
        return _by_status(error)
    return next((verdict for kind, verdict in _BY_CLASS if isinstance(error, kind)), _GARBAGE)


def _by_status(error: ModelHTTPError) -> _Verdict:
    if error.status_code < 500 and isinstance(error, ModelQuotaExceededError):
        # Spent credit comes as a 400 or a 429 too, by a code of its own; waiting does not mend it.
        return _REFUSED
    return _BY_STATUS.get(error.status_code, _BROKE if error.status_code >= 500 else _REJECTED)


def _facts(error: Exception) -> list[str]:
    facts = [type(error).__name__]
    if isinstance(error, ModelHTTPError):
        facts.append(f"HTTP {error.status_code}")
        headers = error.headers or {}
        found = (headers.get(name, "") for name in _REQUEST_ID_HEADERS)
        facts += [f"request id {each}" for each in found if _REQUEST_ID.fullmatch(each)][:1]
    return facts
