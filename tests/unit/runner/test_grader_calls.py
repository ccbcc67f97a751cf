"""A grader's calls: how its clients find its session, and what is asked again, how often, and what is not."""

from __future__ import annotations

import pytest

from quintain.errors import (
    BudgetUnavailable,
    Expired,
    Fault,
    GatewayUnavailable,
    InternalFault,
    Overloaded,
    ProviderFailed,
    QuintainError,
    Throttled,
)
from quintain.programs.session_variables import session_variables, with_proxy_bypass
from quintain_runner.graders import base as retry
from quintain_runner.graders.base import MAX_RETRIES, call_with_retry


@pytest.fixture(autouse=True)
def no_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "FIRST_PAUSE_SECONDS", 0.0)


class FailingCall:
    """Fails so many times, then answers."""

    def __init__(self, error: QuintainError, *, failures: int) -> None:
        self.error, self.failures_left, self.call_count = error, failures, 0

    async def __call__(self) -> str:
        self.call_count += 1
        if self.failures_left:
            self.failures_left -= 1
            raise self.error
        return "answered"


@pytest.mark.parametrize(
    "error",
    [Overloaded(), BudgetUnavailable(), Throttled(), Expired(), GatewayUnavailable(), Expired(charge_unknown=True)],
)
async def test_what_the_fleet_could_not_take_is_asked_again_so_often_at_most(error: QuintainError) -> None:
    heard: list[QuintainError] = []
    asked = FailingCall(error, failures=3)
    assert await call_with_retry(asked, heard.append) == "answered"
    assert (asked.call_count, heard) == (4, [error] * 3)
    asked = FailingCall(error, failures=100)
    with pytest.raises(type(error)):
        await call_with_retry(asked)
    assert asked.call_count == MAX_RETRIES[type(error)] + 1


@pytest.mark.parametrize("error", [InternalFault(), ProviderFailed(), Expired(charged=True), Fault()])
async def test_what_was_charged_or_fails_by_itself_is_not(error: Fault) -> None:
    asked = FailingCall(error, failures=1)
    with pytest.raises(type(error)):
        await call_with_retry(asked)
    assert asked.call_count == 1


def test_every_client_finds_the_session() -> None:
    assert session_variables("http://127.0.0.1:4000/", "token") == {
        "QUINTAIN_SESSION_TOKEN": "token",
        "QUINTAIN_GATEWAY_URL": "http://127.0.0.1:4000",
        "AGENTV_TARGET_PROXY_URL": "http://127.0.0.1:4000",
        "AGENTV_TARGET_PROXY_TOKEN": "token",
        "AGENTV_PROVIDER_PROXY_URL": "http://127.0.0.1:4000",
        "AGENTV_PROVIDER_PROXY_TOKEN": "token",
        "OPENAI_BASE_URL": "http://127.0.0.1:4000/v1",
        "OPENAI_API_KEY": "token",
        "ANTHROPIC_BASE_URL": "http://127.0.0.1:4000",
        "ANTHROPIC_API_KEY": "token",
    }


def test_no_proxy_covers_the_session_urls_where_a_proxy_is_configured() -> None:
    doors = "http://127.0.0.1:4000"
    assert with_proxy_bypass({"PATH": "/bin"}, doors) == {"PATH": "/bin"}
    env = with_proxy_bypass({"HTTP_PROXY": "http://proxy", "no_proxy": "example.org"}, doors)
    assert env["no_proxy"] == "example.org,127.0.0.1"
    assert env["NO_PROXY"] == "127.0.0.1"
