"""The URLs under which programs call their models: agents by one of their own, and the variables that say them.

Such a program lives longer than the session that its calls are charged to: its environment has a URL of its own with a
secret in the path, and each request there gets the token of the session for which the URL stands at the time. The
secret is also what the program has for a key, because some clients take no URL with a path.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Final
from urllib.parse import urlsplit

from quintain.contracts.credentials import SessionToken
from quintain.programs.program import Program
from quintain.programs.sandbox import gateway_address

#: What stands for the gateway's own URL in a program's arguments, which others can see.
BASE_URL = "{agent_base_url}"

#: What stands for the gateway of agents that are imported and asked nothing: nobody answers there.
NO_GATEWAY = "http://127.0.0.1:9"


class AgentUrls:
    """The URLs of one process's programs; ``base_url`` is that of the gateway that serves them, once it is known."""

    def __init__(self, base_url: str = "") -> None:
        self.base_url = base_url
        self._tokens: dict[str, str] = {}

    def token_of(self, key: str) -> str | None:
        """Return the token for which the URL with this secret stands; None if it stands for none."""
        return self._tokens.get(key)

    def add(self) -> AgentUrl:
        """Return a new URL, which stands for no session yet."""
        # Written as a token is, so that it is masked wherever tokens are.
        return AgentUrl(self, self._tokens, SessionToken.mint("url").text)


class AgentUrl:
    """The URL of one program."""

    def __init__(self, urls: AgentUrls, tokens: dict[str, str], key: str) -> None:
        self._urls, self._tokens, self._key = urls, tokens, key

    @property
    def url(self) -> str:
        """The URL, without a slash at its end."""
        return f"{self._urls.base_url}/{self._key}"

    @contextmanager
    def standing_for(self, token: str) -> Iterator[None]:
        """Let requests have this token while the context is open."""
        self.stand_for(token)
        try:
            yield
        finally:
            self.stand_for(None)

    def stand_for(self, token: str | None) -> None:
        """Let requests have this token from now on, or none."""
        if token:
            self._tokens[self._key] = token
        else:
            self._tokens.pop(self._key, None)

    def variables(self, env: Mapping[str, str]) -> dict[str, str]:
        """Return an environment with the variables by which clients find this URL."""
        return with_proxy_bypass({**env, **session_variables(self.url, self._key)}, self.url)

    def given_to(self, program: Program) -> Program:
        """Return the program with the variables by which its clients find this URL; in a sandbox it can reach it."""
        argv = [argument.replace(BASE_URL, self._urls.base_url) for argument in program.argv]
        confinement = program.confinement
        if confinement.sandbox is not None:
            confinement = replace(confinement, gateway=gateway_address(self._urls.base_url))
        return replace(program, argv=argv, env=self.variables(program.env), confinement=confinement)


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
