"""A grader's environment: how its clients find its session."""

from __future__ import annotations

from quintain_runner.graders.base import session_variables, with_proxy_bypass


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
