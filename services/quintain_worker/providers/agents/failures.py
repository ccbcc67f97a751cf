"""Maps what went wrong with a request to an agent behind HTTP to a fault.

An agent that was reached may have acted: only a request that was not sent, and one that the endpoint asks to send again
later (429; 503 with Retry-After), is uncharged and tried again; one with a refused credential (401, 402, 407) is
uncharged. A 403 may be a guard's answer to what was asked. Messages have the beginning of what came, masked.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from urllib.parse import urlsplit

from quintain.config.http_targets import HttpTarget
from quintain.contracts.quota import FailureCause, RateReport, TryOutcome
from quintain.errors import ConversationLost, ProviderError, ProviderFailed
from quintain_worker.providers import model_failures
from quintain_worker.providers.model_failures import FailureKind
from quintain_worker.providers.provider import Billing, ProviderFailure
from quintain_worker.providers.quoting import clean, quoted
from quintain_worker.providers.rate_limits import read_rate_report

_CHARGED = partial(ProviderFailed, charged=True)
_UNCHARGED = partial(ProviderFailed, charged=False)

TIMED_OUT = model_failures.TIMED_OUT
CONNECTION_LOST = replace(model_failures.CONNECTION_LOST, retryable=False)
STREAM_INTERRUPTED = replace(model_failures.STREAM_INTERRUPTED, retryable=False)
UNREADABLE = FailureKind(_CHARGED, "sent an answer that cannot be used", Billing.BILLED, outcome=TryOutcome.ANSWERED)
FAILED = replace(model_failures.SERVER_ERROR, retryable=False)
FAILED_INSIDE = replace(model_failures.FAILED, retryable=False)
REJECTED = model_failures.REJECTED
GAVE_UP = FailureKind(_CHARGED, "ended without an answer", Billing.BILLED, outcome=TryOutcome.ANSWERED)
LOST_CONVERSATION = FailureKind(
    ConversationLost, "does not know the conversation any more", Billing.UNBILLED, outcome=TryOutcome.ANSWERED
)
_REFUSED = replace(model_failures.REFUSED, description="refused the credentials")
_NOT_FOUND = FailureKind(
    _CHARGED,
    "has no such path or method",
    Billing.BILLED,
    outcome=TryOutcome.ANSWERED,
    cause=FailureCause.NOT_FOUND,
)
_UNAVAILABLE = replace(FAILED, cause=FailureCause.NOT_TAKEN)
_POSTPONED = replace(
    _UNAVAILABLE,
    make_fault=_UNCHARGED,
    description="asked to be called later",
    billing=Billing.UNBILLED,
    retryable=True,
)

_BY_STATUS = {
    401: _REFUSED,
    402: _REFUSED,
    404: _NOT_FOUND,
    405: _NOT_FOUND,
    407: _REFUSED,
    408: TIMED_OUT,
    429: model_failures.THROTTLED,
    503: _UNAVAILABLE,
}

#: What an endpoint answers to a session that it does not know.
_NO_SUCH_SESSION = frozenset({404, 410})

#: How much of what came is read to be quoted, in bytes.
_READ_BYTES = 16 * 1024

_HTTP_UNAUTHORIZED, _HTTP_UNAVAILABLE = 401, 503


class AgentFailures:
    """Maps the failures of one target: knows its URL and the secrets that no message may hold."""

    def __init__(self, name: str, target: HttpTarget) -> None:
        parts = urlsplit(target.url)
        self._secrets = target.secrets
        self._name = name
        self._url = clean(f"{parts.scheme}://{parts.netloc}{parts.path}", self._secrets)

    def of_status(
        self, status: int, headers: Mapping[str, str], body: bytes, *, names_session: bool = False
    ) -> ProviderFailure:
        """Return the failure of an answer with this HTTP status.

        ``names_session``: the request named a session that the endpoint had given.
        """
        rates = read_rate_report(headers, time.time())
        kind = _BY_STATUS.get(status, FAILED if status >= 500 else REJECTED)
        if status == _HTTP_UNAVAILABLE and rates is not None and rates.retry_after_seconds is not None:
            kind = _POSTPONED
        if names_session and status in _NO_SUCH_SESSION:
            kind = LOST_CONVERSATION
        # What is answered to credentials that are not accepted is about them.
        came = b"" if status == _HTTP_UNAUTHORIZED else body
        return self.of_error(kind, f"HTTP {status}", came, status=status, rates=rates)

    def of_error(
        self,
        kind: FailureKind,
        detail: str = "",
        came: bytes | str = b"",
        *,
        status: int | None = None,
        rates: RateReport | None = None,
    ) -> ProviderFailure:
        """Return a failure of this kind; ``came`` is what the endpoint sent, of which the beginning is quoted."""
        text = came if isinstance(came, str) else came[:_READ_BYTES].decode(errors="replace")
        words = quoted(text, self._secrets)
        details = ", ".join(filter(None, (self._url, detail)))
        sentence = f"{self._name} {kind.description} ({details})"
        said = ProviderError(status=status, message=words or None) if words or status is not None else None
        return kind.failure(f"{sentence}: {words}" if words else sentence, said, rates)

    def of_connection(self) -> AbstractContextManager[None]:
        """Let what the HTTP client raises inside be a `ProviderFailure`."""
        return model_failures.failures_of_exchange(self.of_error, CONNECTION_LOST)
