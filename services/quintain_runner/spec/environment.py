"""The environment variables with which graders reach their session. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

#: Variables that make HTTP clients use a proxy, in lower case; they are also read in upper case.
_PROXY_VARIABLES: Final = frozenset({"http_proxy", "all_proxy"})


@dataclass(frozen=True, slots=True)
class GraderEnvironment:
    """Where a grader reaches its session: ``gateway_url`` is the base URL of a gateway; a trailing slash is ignored."""

    gateway_url: str

    def session_variables(self, token: str) -> dict[str, str]:
        """The environment variables through which clients find the session of this token (``protocol.md`` §6).

        They cover Quintain's own SDK, AgentV's target proxy, and the OpenAI and Anthropic SDKs.
        """
        url = self.gateway_url.rstrip("/")
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


def with_proxy_bypass(env: Mapping[str, str], grader_environment: GraderEnvironment) -> dict[str, str]:
    """A copy of ``env`` in which HTTP clients reach the gateway without a proxy.

    If a proxy variable is set, the gateway's host is appended to ``no_proxy`` and ``NO_PROXY``, because a proxy cannot
    reach this machine's loopback addresses.
    """
    host = urlsplit(grader_environment.gateway_url).hostname or ""
    if not any(name.lower() in _PROXY_VARIABLES for name in env):
        return dict(env)
    bypass = {name: ",".join(filter(None, (env.get(name), host))) for name in ("no_proxy", "NO_PROXY")}
    return {**env, **bypass}
