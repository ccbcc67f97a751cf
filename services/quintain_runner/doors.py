"""The environment a grader runs in: its session's doors, and none of the runner's secrets. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from quintain.secret_files import without_variables

#: The runner's own, whatever the configuration names: no grader inherits them.
ALWAYS_HIDDEN: Final = frozenset(
    {"QUINTAIN_ADMIN_TOKEN", "QUINTAIN_LEDGER_URL", "QUINTAIN_BROKER_URL", "QUINTAIN_SESSION_TOKEN"}
)

#: The variables by which HTTP clients are sent through a proxy, in either case.
_PROXIES: Final = frozenset({"http_proxy", "all_proxy"})


@dataclass(frozen=True, slots=True)
class Doors:
    """Where a grader reaches its session: the base URL of a gateway, without a slash at its end."""

    gateway_url: str

    def variables(self, token: str) -> dict[str, str]:
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


def scrubbed(env: Mapping[str, str], hidden: Collection[str]) -> dict[str, str]:
    """The environment without the variables in ``hidden`` (the configuration's) and the runner's own."""
    return without_variables(env, {*hidden, *ALWAYS_HIDDEN})


def past_proxies(env: Mapping[str, str], doors: Doors) -> dict[str, str]:
    """The environment, told to reach the doors directly: an HTTP proxy knows no loopback but its own."""
    host = urlsplit(doors.gateway_url).hostname or ""
    if not any(name.lower() in _PROXIES for name in env):
        return dict(env)
    exempt = {name: ",".join(filter(None, (env.get(name), host))) for name in ("no_proxy", "NO_PROXY")}
    return {**env, **exempt}
