"""Maps what went wrong with a request to a provider to a fault: whether the try was billed, and may be made again.

A refund needs proof that no inference happened (``docs/configuration.md``): never sent, 401, 402, 403, 404, 429, 503,
529. Other answers of the provider are charged. Unknown outcomes, such as an interrupted stream, are charged and in
doubt. Messages name the provider, the HTTP status and the provider's request id, for a failing endpoint its URL, and at
the end the provider's own words, bounded and masked.

Error bodies may repeat keys. The target's own key is masked in every form it is sent in, and so is everything that
looks like a secret. What a provider answers to a key that it does not accept is about the key: of that only the code is
kept.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from urllib.parse import urlsplit, urlunsplit

from quintain import errors
from quintain.config.targets import AnthropicTarget, OpenAITarget, PydanticAITarget
from quintain.contracts.quota import FailureCause, RateReport, TryOutcome
from quintain.runtime.http_client import ConnectionLost, NotSent
from quintain_worker.providers.provider import Billing, ProviderFailure
from quintain_worker.providers.quoting import clean
from quintain_worker.providers.rate_limits import read_rate_report, read_retry_delay


@dataclass(frozen=True, slots=True)
class FailureKind:
    """How one kind of failure is reported: fault, end of the message, billing, and whether a retry may help.

    ``outcome`` is what it says of the key's limits and the provider's health, ``cause`` what mends it. ``is_answered``:
    the provider itself says that it failed.
    """

    make_fault: Callable[[str], errors.Fault]
    description: str
    billing: Billing
    retryable: bool = False
    outcome: TryOutcome = TryOutcome.FAILED
    cause: FailureCause | None = None
    is_answered: bool = False

    def failure(self, message: str, words: errors.ProviderError | None, rates: RateReport | None) -> ProviderFailure:
        """Return a failure of this kind; ``words`` are the provider's own, and ``rates`` what its headers say."""
        seconds = None if rates is None else rates.retry_after_seconds
        fault = self.make_fault(message)
        fault.provider_error = words
        fault.retry_after_ms = None if seconds is None else round(seconds * 1000)
        failure = ProviderFailure(
            fault,
            self.billing,
            retryable=self.retryable,
            retry_after_seconds=seconds,
            outcome=self.outcome,
            rates=rates,
        )
        failure.cause, failure.is_answered = self.cause, self.is_answered
        return failure


_CHARGED = partial(errors.ProviderFailed, charged=True)
_UNCHARGED = partial(errors.ProviderFailed, charged=False)
_UNAVAILABLE = "refused the credentials, the model or the quota"
REFUSED = FailureKind(errors.TargetUnavailable, _UNAVAILABLE, Billing.UNBILLED, outcome=TryOutcome.REFUSED)
#: The model or the path is the target's own: the key may be good for others.
_NOT_FOUND = replace(REFUSED, outcome=TryOutcome.ANSWERED, cause=FailureCause.NOT_FOUND)
THROTTLED = FailureKind(
    errors.Throttled, "asked to slow down", Billing.UNBILLED, retryable=True, outcome=TryOutcome.THROTTLED
)
NOT_SENT = FailureKind(
    _UNCHARGED,
    "could not be reached; nothing was sent",
    Billing.UNBILLED,
    retryable=True,
    cause=FailureCause.NOT_TAKEN,
)
WRONG_ADDRESS = replace(NOT_SENT, cause=FailureCause.WRONG_ADDRESS)
_OVERLOADED = replace(NOT_SENT, description="did not take the request")
REJECTED = FailureKind(
    errors.Rejected, "judged the request itself wrong", Billing.BILLED, outcome=TryOutcome.ANSWERED, is_answered=True
)
SERVER_ERROR = FailureKind(_CHARGED, "failed at the request", Billing.BILLED, retryable=True, is_answered=True)
FAILED = replace(SERVER_ERROR, billing=Billing.UNKNOWN)
TIMED_OUT = FailureKind(errors.TimedOut, "did not answer in time", Billing.UNKNOWN)
CONNECTION_LOST = FailureKind(_CHARGED, "was lost after sending", Billing.UNKNOWN, retryable=True)
STREAM_INTERRUPTED = FailureKind(_CHARGED, "broke off in the middle of its answer", Billing.UNKNOWN, retryable=True)
UNREADABLE = FailureKind(_CHARGED, "sent an answer that cannot be read", Billing.UNKNOWN, retryable=True)
NOT_WRITABLE = FailureKind(
    errors.BadRequest, "cannot be sent this request; nothing was sent", Billing.UNBILLED, outcome=TryOutcome.NOT_SENT
)

#: The failures that a wrong or dead endpoint has, so that its URL helps.
_OF_THE_ENDPOINT = (
    *(REFUSED, _NOT_FOUND, _OVERLOADED, NOT_SENT, WRONG_ADDRESS, SERVER_ERROR, FAILED, TIMED_OUT, CONNECTION_LOST),
    UNREADABLE,
)

#: HTTP statuses with a meaning of their own; the others are mapped by their class (4xx, 5xx).
_BY_STATUS = {
    401: REFUSED,
    402: REFUSED,
    403: REFUSED,
    404: _NOT_FOUND,
    407: REFUSED,
    408: TIMED_OUT,
    429: THROTTLED,
    503: _OVERLOADED,
    529: _OVERLOADED,
}

_REQUEST_ID_HEADERS = ("x-request-id", "request-id")
_REQUEST_ID = re.compile(r"[A-Za-z0-9_.:-]{1,128}")


@contextmanager
def failures_of_exchange(
    of_error: Callable[[FailureKind, str], ProviderFailure], lost: FailureKind = CONNECTION_LOST
) -> Iterator[None]:
    """Let what is raised inside, while an answer is asked for and read, be a `ProviderFailure`.

    ``of_error`` makes it of its kind and a detail; ``lost`` is the kind of a lost connection.
    """
    try:
        yield
    except NotSent as error:
        raise of_error(WRONG_ADDRESS if error.is_address_wrong else NOT_SENT, str(error)) from None
    except ConnectionLost as error:
        raise of_error(lost, str(error)) from None
    except TimeoutError:
        raise of_error(TIMED_OUT, "") from None
    except errors.ReplyTooLarge as fault:
        raise ProviderFailure(fault, Billing.BILLED) from None


class FailureReader:
    """Maps the failures of one target: knows its provider, its URL and the secret that no message may hold."""

    def __init__(self, target: OpenAITarget | AnthropicTarget | PydanticAITarget) -> None:
        self._provider = target.provider
        self._secrets = (target.key,)
        self._endpoint = [] if target.base_url is None else [_without_query(target.base_url)]

    def of_status(self, status: int, headers: Mapping[str, str], body: object) -> ProviderFailure:
        """Return the failure of an answer with this HTTP status."""
        words = read_provider_error(status, body, self._secrets)
        kind = _BY_STATUS.get(status, SERVER_ERROR if status >= 500 else REJECTED)
        if status < 500 and words is not None and _is_credit_spent(words):
            # An exhausted credit balance is reported as 400 or 429 with its own code; retrying does not help.
            kind = REFUSED
        request_ids = [
            f"request id {value}"
            for name in _REQUEST_ID_HEADERS
            if _REQUEST_ID.fullmatch(value := headers.get(name, ""))
        ]
        rates = read_rate_report(headers, time.time()) or RateReport()
        if rates.retry_after_seconds is None:
            rates = rates.with_fields(retry_after_seconds=read_retry_delay(body))
        return self._failure(
            kind, [f"HTTP {status}", *request_ids[:1]], words, None if rates == RateReport() else rates
        )

    def of_error(self, kind: FailureKind, detail: str = "", body: object = None) -> ProviderFailure:
        """Return a failure of this kind; ``body`` is an error that an answer of status 200 or an event holds."""
        words = None if body is None else read_provider_error(None, body, self._secrets)
        return self._failure(kind, [clean(detail, self._secrets)] if detail else [], words)

    def _failure(
        self,
        kind: FailureKind,
        details: list[str],
        words: errors.ProviderError | None,
        rates: RateReport | None = None,
    ) -> ProviderFailure:
        details = [*(self._endpoint if kind in _OF_THE_ENDPOINT else []), *details]
        sentence = f"{self._provider} {kind.description}" + (f" ({', '.join(details)})" if details else "")
        quoted = [] if words is None else [words.code or words.type, words.message]
        message = ": ".join([sentence, *(word for word in quoted if word is not None)])
        return kind.failure(message, words, rates)


def _is_credit_spent(words: errors.ProviderError) -> bool:
    return (
        "insufficient_quota" in (words.code, words.type)
        or words.type == "billing_error"
        or "credit balance is too low" in (words.message or "").lower()
    )


def _without_query(url: str) -> str:
    """Return a URL that may be shown: without credentials, query and fragment."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path.rstrip("/"), "", ""))


#: The longest message, and the longest code, type or parameter, in characters.
MAX_MESSAGE_LENGTH, MAX_NAME_LENGTH = 500, 100

_HTTP_UNAUTHORIZED = 401


def read_provider_error(status: int | None, body: object, secrets: Iterable[str]) -> errors.ProviderError | None:
    """Return what the provider wrote about a failure; None if it wrote nothing that can be read.

    ``body`` is its JSON, or its text; ``status`` is None for an error inside an answer that had begun.
    """
    fields = _error_object(body)
    if fields is None:
        return None

    def name(value: object) -> str | None:
        text = "" if value is None or isinstance(value, bool | dict | list) else clean(str(value), secrets)
        return text[:MAX_NAME_LENGTH] or None

    found = errors.ProviderError(
        status=status,
        code=name(fields.get("code") or fields.get("error_code") or fields.get("status_code")),
        type=name(fields.get("type")),
        parameter=name(fields.get("param")),
        message=None if status == _HTTP_UNAUTHORIZED else _message(fields, secrets),
    )
    return None if found == errors.ProviderError(status=status) else found


def _error_object(body: object) -> dict[str, object] | None:
    """Return the object that describes the error, whichever way this provider wraps it."""
    if isinstance(body, str):
        # A proxy's error page says nothing in its first characters.
        return {"message": body} if body.strip() and not body.lstrip().startswith("<") else None
    if isinstance(body, list) and body:
        return _error_object(body[0])  # Google's way
    if not isinstance(body, dict):
        return None
    inner = next((body[key] for key in ("error", "detail") if isinstance(body.get(key), dict)), body.get("error"))
    return _error_object(inner) if isinstance(inner, dict | str) else body


def _message(fields: dict[str, object], secrets: Iterable[str]) -> str | None:
    keys = ("message", "detail", "msg", "error_msg", "status_msg")
    found = next((fields[key] for key in keys if isinstance(fields.get(key), str)), "")
    if not found and isinstance(problems := fields.get("detail") or fields.get("errors"), list):
        found = "; ".join(map(_problem, problems))
    text = clean(str(found), secrets)
    return (text if len(text) <= MAX_MESSAGE_LENGTH else f"{text[:MAX_MESSAGE_LENGTH]}…") or None


def _problem(item: object) -> str:
    """Return one of the problems that servers list, as FastAPI's ``{"loc": ["body", "top_k"], "msg": …}``."""
    if not isinstance(item, dict):
        return str(item)
    message, place = item.get("msg") or item.get("message") or "", item.get("loc")
    return f"{'.'.join(map(str, place))}: {message}" if isinstance(place, list) else str(message)
