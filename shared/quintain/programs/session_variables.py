"""The variables by which a program finds the session that it calls targets with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final
from urllib.parse import urlsplit

#: Variables that make HTTP clients use a proxy, in lower case; they are also read in upper case.
_PROXY_VARIABLES: Final = frozenset({"http_proxy", "all_proxy"})


def session_variables(gateway_url: str, token: str) -> dict[str, str]:
    """The environment variables by which clients find the session of this token (``docs/protocol/programs.md``).

    They cover Quintain's own SDK, AgentV's target proxy, and the OpenAI and Anthropic SDKs.
    """
    url = gateway_url.rstrip("/")
    return {
        "QUINTAIN_SESSION_TOKEN": token,
        "QUINTAIN_GATEWAY_URL": url,
        "AGENTV_TARGET_PROXY_URL": url,
        "AGENTV_TARGET_PROXY_TOKEN": token,
        "AGENTV_PROVIDER_PROXY_URL": url,
        "AGENTV_PROVIDER_PROXY_TOKEN": token,
        "OPENAI_BASE_URL": f"{url}/v1",
        "OPENAI_API_KEY": token,
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": token,
    }


def set_by_session(names: Iterable[str]) -> list[str]:
    """Return those of these variables that a session sets, sorted."""
    return sorted(session_variables("", "").keys() & set(names))


def with_proxy_bypass(env: Mapping[str, str], gateway_url: str) -> dict[str, str]:
    """A copy of ``env`` in which HTTP clients reach the gateway without a proxy.

    If a proxy variable is set, the gateway's host is appended to ``no_proxy`` and ``NO_PROXY``, because a proxy cannot
    reach this machine's loopback addresses.
    """
    if not any(name.lower() in _PROXY_VARIABLES for name in env):
        return dict(env)
    host = urlsplit(gateway_url).hostname or ""
    return {**env, **{name: ",".join(filter(None, (env.get(name), host))) for name in ("no_proxy", "NO_PROXY")}}
