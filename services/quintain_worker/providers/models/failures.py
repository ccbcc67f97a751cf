"""Maps the model library's exceptions to faults: whether the try was billed, and whether another one may help.

A refund needs proof that no inference happened (``design.md`` §3.4): never sent, 401, 402, 403, 404, 429, 503,
529. Other answers of the provider are charged. Unknown outcomes, such as an interrupted stream, are charged and
in doubt. Messages name the provider, the exception, the HTTP status and the provider's request id, for a failing
endpoint its URL, and at the end the provider's own words, as `read_provider_error` bounds and masks them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit, urlunsplit

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

from quintain.config import AnthropicTarget, OpenAITarget
from quintain.errors import (
    BadRequest,
    Fault,
    ProviderError,
    ProviderFailed,
    Rejected,
    TargetUnavailable,
    Throttled,
    TimedOut,
)
from quintain_worker.providers.models.provider_errors import read_provider_error
from quintain_worker.providers.provider import Billing, ProviderFailure, clamp_retry_after


class StreamInterrupted(Exception):
    """The stream ended before the answer was complete."""


@dataclass(frozen=True, slots=True)
class _FailureKind:
    """How one kind of error is reported: fault, end of the message, billing, and whether a retry may help."""

    make_fault: Callable[[str], Fault]
    description: str
    billing: Billing
    retryable: bool = False


def _failed_charged(message: str) -> Fault:
    return ProviderFailed(message, charged=True)


def _failed_uncharged(message: str) -> Fault:
    return ProviderFailed(message, charged=False)


_UNAVAILABLE = "refused the credentials, the model or the quota"
_REFUSED = _FailureKind(TargetUnavailable, _UNAVAILABLE, Billing.UNBILLED)
_THROTTLED = _FailureKind(Throttled, "asked to slow down", Billing.UNBILLED, retryable=True)
_OVERLOADED = _FailureKind(_failed_uncharged, "did not take the request", Billing.UNBILLED, retryable=True)
_NOT_SENT = _FailureKind(_failed_uncharged, "could not be reached; nothing was sent", Billing.UNBILLED, retryable=True)
_REJECTED = _FailureKind(Rejected, "judged the request itself wrong", Billing.BILLED)
_SERVER_ERROR = _FailureKind(_failed_charged, "failed at the request", Billing.BILLED, retryable=True)
_TIMED_OUT = _FailureKind(TimedOut, "did not answer in time", Billing.UNKNOWN)
_CONNECTION_LOST = _FailureKind(_failed_charged, "was lost after sending", Billing.UNKNOWN, retryable=True)
_STREAM_INTERRUPTED = _FailureKind(
    _failed_charged, "broke off in the middle of its answer", Billing.UNKNOWN, retryable=True
)
_UNREADABLE = _FailureKind(_failed_charged, "sent an answer that cannot be read", Billing.UNKNOWN, retryable=True)
_NOT_WRITABLE = _FailureKind(BadRequest, "cannot be sent this request; nothing was sent", Billing.UNBILLED)

#: The failures that a wrong or dead endpoint has, so that its URL helps.
_OF_THE_ENDPOINT = (_REFUSED, _OVERLOADED, _NOT_SENT, _SERVER_ERROR, _CONNECTION_LOST, _UNREADABLE)

#: HTTP statuses with a meaning of their own; the others are mapped by their class (4xx, 5xx).
_BY_STATUS = {
    401: _REFUSED,
    402: _REFUSED,
    403: _REFUSED,
    404: _REFUSED,
    408: _TIMED_OUT,
    429: _THROTTLED,
    503: _OVERLOADED,
    529: _OVERLOADED,
}

#: Exceptions without an HTTP status; subclasses come before their base class.
_BY_CLASS: tuple[tuple[type[Exception], _FailureKind], ...] = (
    (ModelRequestTimeout, _TIMED_OUT),
    (ModelTimeoutError, _TIMED_OUT),
    (TimeoutError, _TIMED_OUT),
    (StreamInterrupted, _STREAM_INTERRUPTED),
    (ModelConnectionError, _CONNECTION_LOST),
    (ModelRequestRejectedError, _REJECTED),
    # Errors inside a response of status 200: the provider processed the request, and failed.
    (ModelServerError, _SERVER_ERROR),
    (ModelUnavailableError, _SERVER_ERROR),
    (ModelRateLimitError, _SERVER_ERROR),
    (ModelQuotaExceededError, _SERVER_ERROR),
)

_REQUEST_ID_HEADERS = ("x-request-id", "request-id")
_REQUEST_ID = re.compile(r"[A-Za-z0-9_.:-]{1,128}")


class FailureReader:
    """Maps the failures of one target: knows its provider, its URL and the secret that no message may hold."""

    def __init__(self, target: OpenAITarget | AnthropicTarget) -> None:
        self._provider = target.provider
        self._secrets = () if target.api_key is None else (target.api_key.get_secret_value().strip(),)
        self._endpoint = [] if target.base_url is None else [_without_query(target.base_url)]

    def failure_of(self, error: Exception, *, is_sent: bool = True) -> ProviderFailure:
        """Map an exception of the model library to a failure; ``is_sent`` is whether it began an HTTP request."""
        failure_kind = _failure_kind(error)
        if failure_kind is _UNREADABLE and not is_sent:
            failure_kind = _NOT_WRITABLE
        provider_error = read_provider_error(error, self._secrets)
        fault = failure_kind.make_fault(self._message(error, failure_kind, provider_error))
        fault.provider_error = provider_error
        retry_after_seconds = clamp_retry_after(error.retry_after) if isinstance(error, ModelAPIError) else None
        if retry_after_seconds is not None:
            fault.retry_after_ms = round(retry_after_seconds * 1000)
        return ProviderFailure(
            fault, failure_kind.billing, retryable=failure_kind.retryable, retry_after_seconds=retry_after_seconds
        )

    def _message(self, error: Exception, failure_kind: _FailureKind, provider_error: ProviderError | None) -> str:
        endpoint = self._endpoint if failure_kind in _OF_THE_ENDPOINT else []
        details = [type(error).__name__, *endpoint, *_details(error)]
        sentence = f"{self._provider} {failure_kind.description} ({', '.join(details)})"
        if provider_error is None:
            return sentence
        words = [provider_error.code or provider_error.type, provider_error.message]
        return ": ".join([sentence, *(word for word in words if word is not None)])


def _without_query(url: str) -> str:
    """Return a URL that may be shown: without credentials, query and fragment."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path.rstrip("/"), "", ""))


def _failure_kind(error: Exception) -> _FailureKind:
    if isinstance(error, ModelConnectionError) and error.phase in {"pool", "connect"}:
        return _NOT_SENT
    if isinstance(error, ModelAPIError) and error.in_stream:
        # The answer had begun: a status in the stream does not prove that no inference happened.
        return _STREAM_INTERRUPTED
    if isinstance(error, ModelHTTPError):
        return _kind_by_status(error)
    return next(
        (failure_kind for error_class, failure_kind in _BY_CLASS if isinstance(error, error_class)), _UNREADABLE
    )


def _kind_by_status(error: ModelHTTPError) -> _FailureKind:
    if error.status_code < 500 and isinstance(error, ModelQuotaExceededError):
        # An exhausted credit balance is reported as 400 or 429 with its own code; retrying does not help.
        return _REFUSED
    return _BY_STATUS.get(error.status_code, _SERVER_ERROR if error.status_code >= 500 else _REJECTED)


def _details(error: Exception) -> list[str]:
    if isinstance(error, ModelConnectionError):
        return _system_errors(error)[-1:]
    if not isinstance(error, ModelHTTPError):
        return []
    headers = error.headers or {}
    header_values = (headers.get(name, "") for name in _REQUEST_ID_HEADERS)
    request_ids = [f"request id {request_id}" for request_id in header_values if _REQUEST_ID.fullmatch(request_id)]
    return [f"HTTP {error.status_code}", *request_ids[:1]]


def _system_errors(error: BaseException) -> list[str]:
    """Return what the operating system says about a failed connection, the first cause last."""
    found: list[str] = []
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno is not None:
            # asyncio writes a text of its own over the system's; a failed look-up of a name has a number of its own.
            found.append(os.strerror(cause.errno) if cause.errno > 0 else str(cause.strerror))
        cause = cause.__cause__ or cause.__context__
    return found
