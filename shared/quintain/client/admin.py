"""The administration client: sessions over AMQP or HTTP, targets and workers over AMQP."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import ValidationError

from quintain import routes
from quintain.client.transport import OPERATION_TIMEOUT_SECONDS, Transport
from quintain.contracts import fleet as fleet_messages
from quintain.contracts import session as session_messages
from quintain.contracts.fleet_figures import FleetFigures
from quintain.contracts.message import describe_validation_error
from quintain.errors import BadRequest


class Admin:
    """Client for administration, as `connect_admin` gives it.

    ``timeout_seconds`` bounds each operation. Every method raises a `Fault`, a `BusError`, or `NoAnswer` if no metadata
    service answers in time. Targets and workers are available over a broker only (`ConfigError` over HTTP).

    Example::

        async with connect_admin(url, admin_token) as admin:
            opened = await admin.open(OpenSession(default_target="gpt4o", max_calls=100))
            print(opened.token)
    """

    def __init__(self, transport: Transport, *, timeout_seconds: float = OPERATION_TIMEOUT_SECONDS) -> None:
        self._transport, self._timeout_seconds = transport, timeout_seconds

    async def open(self, request: session_messages.OpenSession) -> session_messages.SessionOpened:
        """Open a session. The reply is the only place where its token is ever shown.

        Example::

            opened = await admin.open(OpenSession(default_target="gpt4o", max_calls=100))
        """
        return await self._call(routes.OPEN, request)

    async def amend(self, request: session_messages.AmendSession) -> session_messages.Info:
        """Change a session's call limit or state."""
        return await self._call(routes.AMEND, request)

    async def list(self, request: session_messages.ListSessions) -> session_messages.SessionList:
        """Return one page of sessions, newest first."""
        return await self._call(routes.LIST, request)

    async def show(self, session_id: str) -> session_messages.Info:
        """Return one session with its counters. Raises `BadRequest` if it does not exist."""
        try:
            request = session_messages.ShowSession(session_id=session_id)
        except ValidationError as error:
            raise BadRequest(describe_validation_error(error)) from None
        return await self._call(routes.SHOW, request)

    async def targets(self) -> fleet_messages.TargetList:
        """Return every registered target."""
        return await self._call(routes.TARGETS, fleet_messages.ListTargets())

    async def pause(self, target: str, duration_seconds: float) -> session_messages.TargetPause:
        """Stop all workers from calling a target for ``duration_seconds``. Raises `UnknownTarget`."""
        return await self._call(routes.PAUSE, session_messages.PauseTarget(target=target, for_seconds=duration_seconds))

    async def resume(self, target: str) -> session_messages.TargetPause:
        """End a target's pause, including one requested by its provider. Raises `UnknownTarget`."""
        return await self._call(routes.RESUME, session_messages.ResumeTarget(target=target))

    async def workers(self) -> session_messages.WorkerList:
        """Return every live worker, and those of the last day that were asked to drain."""
        return await self._call(routes.WORKERS, session_messages.ListWorkers())

    async def drain(self, worker_id: str) -> session_messages.WorkerList:
        """Ask all live processes with this worker id to drain. Raises `BadRequest` if none of them can drain."""
        return await self._call(routes.DRAIN, session_messages.DrainWorker(worker_id=worker_id))

    async def fleet(self) -> FleetFigures:
        """Return every target, worker, quota and service, and the newest open sessions, with their figures."""
        return await self._call(routes.FLEET, fleet_messages.GetFleet())

    async def quotas(self) -> fleet_messages.QuotaList:
        """Return what every quota does at present."""
        return await self._call(routes.QUOTAS, fleet_messages.ListQuotas())

    async def set_quota(self, request: fleet_messages.SetQuota) -> fleet_messages.QuotaSettings:
        """Set what a quota may use, in force within two seconds. Raises `BadRequest` where there is no such quota."""
        return await self._call(routes.SET_QUOTA, request)

    async def set_user(self, user: str, targets: Sequence[str] | None) -> fleet_messages.UserRights:
        """Record which targets the workers of a user of the broker may serve; None is any."""
        return await self._call(
            routes.SET_USER, fleet_messages.SetUser(user=user, targets=None if targets is None else [*targets])
        )

    async def _call(
        self, route: routes.Route[routes.RequestT, routes.ReplyT], request: routes.RequestT
    ) -> routes.ReplyT:
        return await self._transport.call_route(route, request, timeout_seconds=self._timeout_seconds)
