"""Reads what the headers of a provider's answer say of its key's limits, and how long it asks to wait.

OpenAI's ``x-ratelimit-*`` name durations (``6m0s``, ``17ms``), Anthropic's ``anthropic-ratelimit-*`` times (RFC 3339),
``retry-after`` a number of seconds or a date. Times are taken from the answer's own ``date`` where it has one, so that
clocks need not agree. What cannot be read, contradicts itself or is negative is left out.
"""

from __future__ import annotations

import email.utils
import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime

from quintain.apis.translation import objects
from quintain.contracts.quota import RateFigures, RateReport
from quintain_worker.providers.provider import clamp_retry_after

#: The prefix of a provider's headers, and its names for requests and for tokens, the strictest first.
_FAMILIES = (
    ("x-ratelimit-{}-requests", "x-ratelimit-{}-tokens"),
    ("anthropic-ratelimit-requests-{}", "anthropic-ratelimit-tokens-{}"),
    ("anthropic-ratelimit-requests-{}", "anthropic-ratelimit-input-tokens-{}"),
)

#: What the names of all these headers begin with: most answers have none of them.
_PREFIXES = ("x-ratelimit-", "anthropic-ratelimit-", "retry-after")

#: The longest time until a limit is full again, in seconds: 31 days. A larger number is no duration but a time since
#: 1970.
_MAX_RESET_SECONDS = 31 * 86_400.0

_NUMBER = re.compile(r"\d{1,15}(\.\d{1,9})?")
_DURATION = re.compile(r"(?:\d{1,9}(?:\.\d{1,9})?(?:ms|us|µs|ns|[smhd]))+")
_DURATION_PART = re.compile(r"([\d.]+)(ms|us|µs|ns|[smhd])")
_SECONDS_BY_UNIT = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


def read_rate_report(headers: Mapping[str, str], now: float) -> RateReport | None:
    """Return what an answer's headers say, or None where that is nothing; ``now`` is the time in seconds since 1970."""
    if not any(name.startswith(_PREFIXES) for name in map(str.lower, headers)):
        return None
    now = _http_date(headers.get("date")) or now
    requests, tokens = _figures(headers, 0, now), _figures(headers, 1, now)
    retry_after_seconds = read_retry_after(headers, now)
    if requests is None and tokens is None and retry_after_seconds is None:
        return None
    return RateReport(requests=requests, tokens=tokens, retry_after_seconds=retry_after_seconds)


def read_retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """Return the seconds after which a provider wants to be asked again, a day at most; None where it names none."""
    milliseconds, seconds = _number(headers.get("retry-after-ms")), _number(headers.get("retry-after"))
    if milliseconds is not None:
        return clamp_retry_after(milliseconds / 1000)
    if seconds is not None:
        return clamp_retry_after(seconds)
    date = _http_date(headers.get("retry-after"))
    return None if date is None else clamp_retry_after(max(0.0, date - now))


def read_retry_delay(body: object) -> float | None:
    """Return the seconds that Google's error asks to wait, in a detail of its body; None where it names none."""
    answer = next(iter(body), None) if isinstance(body, list) else body
    error = answer.get("error") if isinstance(answer, dict) else None
    for detail in objects(error.get("details") if isinstance(error, dict) else None):
        if isinstance(delay := detail.get("retryDelay"), str) and _DURATION.fullmatch(delay):
            return clamp_retry_after(_seconds_until(delay, 0.0))
    return None


def _figures(headers: Mapping[str, str], kind: int, now: float) -> RateFigures | None:
    """Return the figures of requests (``kind`` 0) or tokens (1) in the first family of headers that has them."""
    for family in _FAMILIES:
        limit, remaining = (_number(headers.get(family[kind].format(word))) for word in ("limit", "remaining"))
        reset = _seconds_until(headers.get(family[kind].format("reset")), now)
        if limit and remaining is not None and remaining <= limit and reset is not None and reset <= _MAX_RESET_SECONDS:
            return RateFigures(limit=limit, remaining=remaining, reset_seconds=reset)
    return None


def _number(text: str | None) -> float | None:
    return float(text) if text is not None and _NUMBER.fullmatch(text.strip()) else None


def _seconds_until(text: str | None, now: float) -> float | None:
    """Return the seconds that a duration, a number of seconds or a time in RFC 3339 is ahead."""
    text = (text or "").strip()
    if _NUMBER.fullmatch(text):
        return float(text)
    if _DURATION.fullmatch(text):
        return math.fsum(float(amount) * _SECONDS_BY_UNIT[unit] for amount, unit in _DURATION_PART.findall(text))
    try:
        time = datetime.fromisoformat(text)
        return max(0.0, (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() - now)
    except (ValueError, OverflowError):
        return None


def _http_date(text: str | None) -> float | None:
    try:
        time = email.utils.parsedate_to_datetime(text or "")
        # One of C's `asctime`, which HTTP allows, names no zone: it is in UTC.
        return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None
