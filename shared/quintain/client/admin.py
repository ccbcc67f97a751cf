"""The administrator's client, with the admin token: sessions, and over the bus what runs: targets and workers."""

from __future__ import annotations

from quintain.caller import Answer, Ask, Caller
from quintain.contracts import metadata, operating
from quintain.contracts.discovery import ListTargets, TargetList
from quintain.routes import AMEND, DRAIN, LIST, OPEN, PAUSE, RESUME, SHOW, TARGETS, TOKEN_HEADER, WORKERS, Route


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

    async def pause(self, target: str, for_seconds: float) -> operating.TargetPause:
        """Nobody calls a target for so long, over the whole fleet. Raises `UnknownTarget`."""
        return await self._request(PAUSE, operating.PauseTarget(target=target, for_seconds=for_seconds))

    async def resume(self, target: str) -> operating.TargetPause:
        """End a target's pause, its provider's too. Raises `UnknownTarget`."""
        return await self._request(RESUME, operating.ResumeTarget(target=target))

    async def workers(self) -> operating.WorkerList:
        """Every worker that lives, and those that were asked to drain."""
        return await self._request(WORKERS, operating.ListWorkers())

    async def drain(self, worker_id: str) -> operating.WorkerList:
        """Ask a worker to drain: all living processes of its id. Raises `BadRequest` where none can be asked."""
        return await self._request(DRAIN, operating.DrainWorker(worker_id=worker_id))

    async def _request(self, route: Route[Ask, Answer], ask: Ask) -> Answer:
        headers = {TOKEN_HEADER: self._token}
        return await self._caller.request(route, ask, headers, timeout_seconds=self._timeout_seconds)
