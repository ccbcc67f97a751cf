"""What the headers of a provider's answer say of its limits, and what is left out of them."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quintain.contracts.quota import RateFigures, RateReport
from quintain_worker.providers.rate_limits import read_rate_report, read_retry_after, read_retry_delay

#: 2026-11-26 12:00:00 UTC.
NOW = 1_795_694_400.0

OPENAI = {
    "x-ratelimit-limit-requests": "5000",
    "x-ratelimit-remaining-requests": "4999",
    "x-ratelimit-reset-requests": "12ms",
    "x-ratelimit-limit-tokens": "2000000",
    "x-ratelimit-remaining-tokens": "1999000",
    "x-ratelimit-reset-tokens": "6m0s",
}


def test_openais_headers_name_both_rates() -> None:
    assert read_rate_report(OPENAI, NOW) == RateReport(
        requests=RateFigures(limit=5000, remaining=4999, reset_seconds=0.012),
        tokens=RateFigures(limit=2_000_000, remaining=1_999_000, reset_seconds=360),
    )


def test_anthropics_times_count_from_the_answers_own_date_whatever_our_clock_says() -> None:
    headers = {
        "date": "Thu, 26 Nov 2026 12:00:00 GMT",
        "anthropic-ratelimit-requests-limit": "50",
        "anthropic-ratelimit-requests-remaining": "40",
        "anthropic-ratelimit-requests-reset": "2026-11-26T12:00:12Z",
        "anthropic-ratelimit-input-tokens-limit": "30000",
        "anthropic-ratelimit-input-tokens-remaining": "0",
        "anthropic-ratelimit-input-tokens-reset": "2026-11-26T14:01:00+02:00",
    }
    for clock in (NOW, NOW - 3600, NOW + 3600):
        report = read_rate_report(headers, clock)
        assert report is not None
        assert report.requests == RateFigures(limit=50, remaining=40, reset_seconds=12)
        assert report.tokens == RateFigures(limit=30_000, remaining=0, reset_seconds=60)


@pytest.mark.parametrize(
    ("reset", "seconds"),
    [("1s", 1), ("17ms", 0.017), ("6m0s", 360), ("1h2m3.5s", 3723.5), ("2d", 172_800), ("90", 90), ("0s", 0)],
)
def test_durations_are_read_as_they_are_written(reset: str, seconds: float) -> None:
    report = read_rate_report({**OPENAI, "x-ratelimit-reset-requests": reset}, NOW)
    assert report is not None
    assert report.requests is not None
    assert report.requests.reset_seconds == pytest.approx(seconds)


#: By the word of a header: what it cannot say.
WRONG = {
    "limit": ["0", "-5", "nan", "1e999", "9" * 400],
    "remaining": ["6000", "-1", ""],
    "reset": ["soon", "-3s", "1s 2s", "1795694460", "1795694460000", "PT1M", "99999-01-01T00:00:00Z"],
}


@pytest.mark.parametrize("wrong", [{word: text} for word, texts in WRONG.items() for text in texts])
def test_figures_that_cannot_be_are_left_out_and_the_others_are_not(wrong: dict[str, str]) -> None:
    headers = {**OPENAI, **{f"x-ratelimit-{word}-requests": text for word, text in wrong.items()}}
    report = read_rate_report(headers, NOW)
    assert report is not None
    assert report.requests is None
    assert report.tokens is not None


@pytest.fixture
def far_from_utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine's zone that is not UTC."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "America/New_York")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("far_from_utc")
@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "2"}, 2),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after-ms": "1500", "retry-after": "7"}, 1.5),
        ({"retry-after-ms": "soon", "retry-after": "7"}, 7),
        ({"retry-after": "86400"}, 86_400),
        ({"retry-after": "99999999"}, 86_400),
        ({"retry-after": "-1"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "Thu, 26 Nov 2026 12:00:30 GMT"}, 30),
        ({"retry-after": "Thursday, 26-Nov-26 12:00:30 GMT"}, 30),
        ({"retry-after": "Thu Nov 26 12:00:30 2026"}, 30),
        ({"retry-after": "Thu, 26 Nov 2026 13:00:30 +0100"}, 30),
        ({"retry-after": " 2 "}, 2),
        ({"retry-after": "+2"}, None),
        ({"retry-after": "1h2m"}, None),
        ({"retry-after": "1e3"}, None),
        ({"retry-after-ms": "-5", "retry-after": "7"}, 7),
        ({"retry-after-ms": "0.5"}, 0.0005),
        ({"retry-after": "Thu, 26 Nov 2026 11:00:00 GMT"}, 0),
        ({"retry-after": "Thu, 99 Nov 2026 11:00:00 GMT"}, None),
    ],
)
def test_retry_after_is_a_number_or_a_date_and_never_negative(headers: dict[str, str], seconds: float | None) -> None:
    assert read_retry_after(headers, NOW) == seconds


def test_an_answer_that_says_nothing_of_limits_has_no_report() -> None:
    assert read_rate_report({"content-type": "application/json", "date": "Thu, 26 Nov 2026 12:00:00 GMT"}, NOW) is None


@given(st.dictionaries(st.sampled_from([*OPENAI, "retry-after", "retry-after-ms", "date"]), st.text(max_size=40)))
def test_no_headers_break_the_reader(headers: dict[str, str]) -> None:
    report = read_rate_report(headers, NOW)
    assert report is None or RateReport.from_wire(report.to_wire()) == report


@pytest.mark.parametrize(
    ("details", "seconds"),
    [
        ([{"@type": "type.googleapis.com/google.rpc.Help"}, {"retryDelay": "56s"}], 56),
        ([{"retryDelay": "3.5s"}], 3.5),
        *((details, None) for details in ([{"retryDelay": 5}], [{"retryDelay": "soon"}], [], None, "56s")),
    ],
)
def test_googles_error_names_its_delay_in_its_body(details: object, seconds: float | None) -> None:
    error = {"error": {"code": 429, "status": "RESOURCE_EXHAUSTED", "details": details}}
    assert read_retry_delay([error]) == read_retry_delay(error) == seconds
