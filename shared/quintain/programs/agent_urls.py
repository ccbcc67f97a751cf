"""The URLs under which programs that are agents call their models.

Such a program lives longer than the session that its calls are charged to: its environment has a URL of its own with a
secret in the path, and each request there gets the token of the session for which the URL stands at the time. The
secret is also what the program has for a key, because some clients take no URL with a path.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from quintain.contracts.credentials import SessionToken
from quintain.programs.program import Program
from quintain.programs.sandbox import gateway_address
from quintain.programs.session_variables import session_variables, with_proxy_bypass

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
