"""The administrator's client: opens, lists, shows and amends sessions with the admin token."""

from __future__ import annotations

from quintain.caller import Answer, Ask, Caller
from quintain.contracts import metadata
from quintain.contracts.discovery import ListTargets, TargetList
from quintain.routes import AMEND, LIST, OPEN, SHOW, TARGETS, TOKEN_HEADER, Route


class Admin:
    """Every method raises a `Fault`, or `NoAnswer` where no metadata service answers in time."""

    def __init__(self, caller: Caller, token: str, *, timeout_seconds: float = 30.0) -> None:
        self._caller, self._token, self._timeout_seconds = caller, token, timeout_seconds

    async def open(self, ask: metadata.OpenSession) -> metadata.SessionOpened:
        """Open a session; its token is in the answer and nowhere else."""
        return await self._request(OPEN, ask)

    async def amend(self, ask: metadata.AmendSession) -> metadata.Info:
        """Change a session's limit or state."""
        return await self._request(AMEND, ask)

    async def list(self, ask: metadata.ListSessions) -> metadata.SessionList:
        """One page of sessions, newest first."""
        return await self._request(LIST, ask)

    async def show(self, session_id: str) -> metadata.Info:
        """One session and its counters."""
        return await self._request(SHOW, metadata.ShowSession(session_id=session_id))

    async def targets(self) -> TargetList:
        """Every registered target."""
        return await self._request(TARGETS, ListTargets())

    async def _request(self, route: Route[Ask, Answer], ask: Ask) -> Answer:
        headers = {TOKEN_HEADER: self._token}
        return await self._caller.request(route, ask, headers, timeout_seconds=self._timeout_seconds)
