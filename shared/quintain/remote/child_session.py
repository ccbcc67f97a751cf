"""Child sessions of agents under test: each gets the right to call some targets, up to a maximum number of calls.

A child session may only narrow its parent: it may call the listed targets, up to a maximum number of calls, and each
call counts in the parent too. Closing it rejects its calls that are still queued.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field

from quintain.contracts.credentials import mask_tokens
from quintain.contracts.headers import TOKEN_HEADER
from quintain.contracts.session import AGENT_MAX_CALLS, CloseSession, GetInfo, OpenSession, SessionOpened
from quintain.errors import ConfigError, QuintainError
from quintain.routes import CLOSE, INFO, OPEN
from quintain.rpc.requests import RpcClient
from quintain.target import SESSION_SLOT

log = logging.getLogger(__name__)

#: Timeouts of opening and closing a session, in seconds.
OPEN_SECONDS = 30.0
CLOSE_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildSessionPolicy:
    """What an agent under test may call: ``targets`` (the first is the default), at most ``max_calls`` times in all.

    ``token`` is the parent session's, by default ``QUINTAIN_SESSION_TOKEN``.
    """

    targets: Sequence[str]
    max_calls: int = AGENT_MAX_CALLS
    token: str | None = field(default=None, repr=False)


class ChildSession:
    """The session of one agent; its repr shows only its id."""

    def __init__(self, owner: ChildSessions, session_id: str, token: str) -> None:
        self._owner, self.session_id, self.token = owner, session_id, token

    async def close(self) -> None:
        """Close the session permanently; if that fails, it ends with its parent. Raises nothing but a cancellation."""
        await self._owner.close_session(self)

    def mask_token(self, text: str) -> str:
        """Return the text with this session's token masked."""
        return text.replace(self.token, mask_tokens(self.token))

    def __repr__(self) -> str:
        return f"ChildSession({self.session_id})"


#: Opens a child session, which ends after so many seconds, or with its parent.
OpenOne = Callable[[float | None], Awaitable[SessionOpened]]


def open_with_token(rpc_client: RpcClient, token: str, policy: ChildSessionPolicy) -> OpenOne:
    """Return how to open a child of the session with this token."""
    headers = {TOKEN_HEADER: token}

    async def open_one(expires_in_seconds: float | None) -> SessionOpened:
        parent = await rpc_client.call_route(INFO, GetInfo(), headers, timeout_seconds=OPEN_SECONDS)
        request = OpenSession(
            default_target=policy.targets[0],
            allowed_targets=list(policy.targets),
            # A limit above the parent's would be refused, and a parent with a small budget is no error.
            max_calls=min(policy.max_calls, parent.max_calls),
            expires_in_seconds=expires_in_seconds,
        )
        return await rpc_client.call_route(OPEN, request, headers, timeout_seconds=OPEN_SECONDS)

    return open_one


def check_takes_session(name: str, slots: Iterable[str]) -> None:
    """Raise `ConfigError` if a target, which declares these configuration slots, has none for a session."""
    if SESSION_SLOT not in slots:
        raise ConfigError(
            f"{name}: child_session is set, and the target declares no configuration slot {SESSION_SLOT!r} to take it: "
            "declare one, host an agent of another framework with --gateway, or leave child_session out"
        )


class ChildSessions:
    """The child sessions that are opened in one way, until they are closed."""

    def __init__(self, rpc_client: RpcClient, open_one: OpenOne) -> None:
        self._rpc_client, self._open_one = rpc_client, open_one
        self._open_sessions: set[ChildSession] = set()

    async def open(self, *, expires_in_seconds: float | None = None) -> ChildSession:
        """Open a child session. Raises the metadata service's `Fault`, such as `ForbiddenTarget`, and `BusError`."""
        opened = await self._open_one(expires_in_seconds)
        child = ChildSession(self, opened.session_id, opened.token)
        self._open_sessions.add(child)
        return child

    async def close_session(self, child: ChildSession) -> None:
        """Close one session, once. Raises nothing but a cancellation."""
        if child not in self._open_sessions:
            return
        self._open_sessions.discard(child)
        headers = {TOKEN_HEADER: child.token}
        try:
            await self._rpc_client.call_route(CLOSE, CloseSession(), headers, timeout_seconds=CLOSE_SECONDS)
        except QuintainError as error:
            log.warning("Session %s of an agent could not be closed: %s", child.session_id, error.message)

    async def close_all(self) -> None:
        """Close all sessions that are still open."""
        for child in list(self._open_sessions):
            await self.close_session(child)
