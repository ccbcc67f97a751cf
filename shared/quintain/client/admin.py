"""The administrator's client, with the admin token: sessions over AMQP or HTTP; targets and workers over AMQP."""

from __future__ import annotations

from pydantic import ValidationError

from quintain.client.transport import ANSWER_SECONDS, Transport
from quintain.contracts import metadata, operating
from quintain.contracts.discovery import ListTargets, TargetList
from quintain.contracts.message import explain
from quintain.errors import BadRequest
from quintain.routes import AMEND, DRAIN, LIST, OPEN, PAUSE, RESUME, SHOW, TARGETS, WORKERS, Answer, Ask, Route


class Admin:
    """Every method raises a `Fault`, a `BusError`, or `NoAnswer` where no metadata service answers in time.

    ``timeout_seconds`` bounds each of them.
    """

    def __init__(self, transport: Transport, *, timeout_seconds: float = ANSWER_SECONDS) -> None:
        self._transport, self._timeout_seconds = transport, timeout_seconds

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
        """One session and its counters. Raises `BadRequest` where there is no such session."""
        try:
            ask = metadata.ShowSession(session_id=session_id)
        except ValidationError as error:
            raise BadRequest(explain(error)) from None
        return await self._request(SHOW, ask)

    async def targets(self) -> TargetList:
        """Every registered target. Only over a broker, as all that follow."""
        return await self._request(TARGETS, ListTargets())

    async def pause(self, target: str, for_seconds: float) -> operating.TargetPause:
        """Have no worker of the fleet call a target for so many seconds. Raises `UnknownTarget`."""
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
        return await self._transport.request(route, ask, timeout_seconds=self._timeout_seconds)
