"""The environment of processes that a run starts: session variables, without the runner's secrets. No I/O."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from quintain.secret_files import without_variables

#: The runner's own, whatever the configuration names: no grader inherits them.
RUNNER_SECRET_VARIABLES: Final = frozenset(
    {"QUINTAIN_ADMIN_TOKEN", "QUINTAIN_LEDGER_URL", "QUINTAIN_BROKER_URL", "QUINTAIN_SESSION_TOKEN"}
)

#: The variables by which HTTP clients are sent through a proxy, in either case.
_PROXY_VARIABLES: Final = frozenset({"http_proxy", "all_proxy"})


@dataclass(frozen=True, slots=True)
class GraderEnvironment:
    """Where a grader reaches its session: the base URL of a gateway, without a slash at its end."""

    gateway_url: str

    def session_variables(self, token: str) -> dict[str, str]:
        """The variables by which every client finds the session of this token (``protocol.md`` §6)."""
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


def without_secret_variables(env: Mapping[str, str], hidden: Collection[str]) -> dict[str, str]:
    """The environment without the variables in ``hidden`` (the configuration's) and the runner's own."""
    return without_variables(env, {*hidden, *RUNNER_SECRET_VARIABLES})


def with_proxy_bypass(env: Mapping[str, str], grader_environment: GraderEnvironment) -> dict[str, str]:
    """The environment, told to reach the doors directly: an HTTP proxy knows no loopback but its own."""
    host = urlsplit(grader_environment.gateway_url).hostname or ""
    if not any(name.lower() in _PROXY_VARIABLES for name in env):
        return dict(env)
    bypass = {name: ",".join(filter(None, (env.get(name), host))) for name in ("no_proxy", "NO_PROXY")}
    return {**env, **bypass}
