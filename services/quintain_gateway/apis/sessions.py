"""Sessions over HTTP with the admin token: ``POST`` and ``GET /sessions``; ``GET``, ``PATCH`` and ``DELETE`` of one.

A session's own token may only open child sessions of that session and close the session, as over the broker. ``GET
/quotas``, what the fleet's provider keys do at present, takes either token.
"""

from __future__ import annotations

import contextlib

from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from quintain.client.admin import Admin
from quintain.contracts.credentials import SessionToken
from quintain.contracts.fleet import QuotaList
from quintain.contracts.message import (
    Message,
    describe_validation_error,
    unknown_keys_message,
)
from quintain.contracts.session import (
    AmendSession,
    Info,
    ListSessions,
    OpenSession,
    SessionList,
    SessionOpened,
    SessionState,
    ShowSession,
)
from quintain.contracts.values import Id
from quintain.errors import BadRequest, PayloadTooLarge, Unauthorized
from quintain_gateway.auth import FleetGateway, bearer_token
from quintain_gateway.endpoint import PLAIN, method_route
from quintain_gateway.errors import JSON_MEDIA_TYPE, NotFound
from quintain_gateway.openapi import ADMIN_TOKEN, SESSION_TOKEN, Operation, fault_responses

SESSION_PATH = "/sessions/{session_id}"
CHILDREN_PATH = f"{SESSION_PATH}/children"

_COMMON_FAULT_STATUSES = (401, 431, 500, 503)
_BODY_FAULT_STATUSES = (400, 408, 413, 415)


class SessionPatch(AmendSession):
    """Change the limits or state of a session. Usage is never reset; a limit below the usage is raised to it.

    ``session_id`` may be repeated from the path.
    """

    session_id: Id | None = None  # type: ignore[assignment]


OPERATIONS = (
    Operation(
        "POST",
        "/sessions",
        "Open a session; its token is returned only once",
        token=ADMIN_TOKEN,
        request_model=OpenSession,
        responses={201: SessionOpened, **fault_responses(403, *_BODY_FAULT_STATUSES, *_COMMON_FAULT_STATUSES)},
    ),
    Operation(
        "GET",
        "/sessions",
        "List sessions, newest first, one page at a time",
        token=ADMIN_TOKEN,
        responses={200: SessionList, **fault_responses(400, *_COMMON_FAULT_STATUSES)},
        query={"cursor": {"type": "string"}, "state": {"enum": [state.value for state in SessionState]}},
    ),
    Operation(
        "GET",
        SESSION_PATH,
        "Show a session and its counters",
        token=ADMIN_TOKEN,
        responses={200: Info, **fault_responses(404, *_COMMON_FAULT_STATUSES)},
    ),
    Operation(
        "PATCH",
        SESSION_PATH,
        "Change a session's limits or state",
        token=ADMIN_TOKEN,
        request_model=SessionPatch,
        responses={200: Info, **fault_responses(404, *_BODY_FAULT_STATUSES, *_COMMON_FAULT_STATUSES)},
    ),
    Operation(
        "DELETE",
        SESSION_PATH,
        "Close a session permanently",
        token=ADMIN_TOKEN,
        responses={200: Info, **fault_responses(404, *_COMMON_FAULT_STATUSES)},
    ),
    Operation(
        "DELETE",
        CHILDREN_PATH,
        "Close all children of the token's session permanently",
        token=SESSION_TOKEN,
        responses={200: Info, **fault_responses(404, *_COMMON_FAULT_STATUSES)},
    ),
    Operation(
        "GET",
        "/quotas",
        "Show what each provider key does at present: its limits, and how many calls wait for it",
        token=SESSION_TOKEN,
        responses={200: QuotaList, **fault_responses(*_COMMON_FAULT_STATUSES)},
    ),
)


class SessionEndpoints:
    """The endpoints that open, list, show, change and close sessions, and that list quotas."""

    def __init__(self, gateway: FleetGateway) -> None:
        self._gateway = gateway
        self.routes: list[Route] = [
            method_route("/sessions", {"GET": self.list, "POST": self.open}, PLAIN.to_endpoint),
            method_route(
                SESSION_PATH, {"GET": self.show, "PATCH": self.amend, "DELETE": self.close}, PLAIN.to_endpoint
            ),
            method_route(CHILDREN_PATH, {"DELETE": self.close_children}, PLAIN.to_endpoint),
            method_route("/quotas", {"GET": self.quotas}, PLAIN.to_endpoint),
        ]

    async def open(self, request: Request) -> Response:
        """``POST /sessions``: open a session and return its token."""
        admin = self._gateway.admin_client(request)
        try:
            open_session = OpenSession.from_wire(await self._gateway.bodies.read(request))
        except (BadRequest, PayloadTooLarge):
            await self._verify_token(request, admin)
            raise
        return _message_response(await admin.open(open_session), status=201)

    async def list(self, request: Request) -> Response:
        """``GET /sessions?cursor=&state=``: list sessions, newest first, one page at a time."""
        admin = self._gateway.admin_client(request)
        query = {name: value for name, value in request.query_params.items() if value}
        try:
            list_sessions = ListSessions.model_validate(query)
            message = unknown_keys_message(query.keys() - ListSessions.model_fields.keys(), ListSessions.model_fields)
        except ValidationError as error:
            message = describe_validation_error(error)
        if message:
            await self._verify_token(request, admin)
            raise BadRequest(message)
        return _message_response(await admin.list(list_sessions))

    async def show(self, request: Request) -> Response:
        """``GET /sessions/{session_id}``: return a session and its counters."""
        return _message_response(await _existing_session(self._gateway.admin_client(request), request))

    async def amend(self, request: Request) -> Response:
        """``PATCH /sessions/{session_id}``: change the call limit or the state of a session."""
        admin = self._gateway.admin_client(request)
        session = await _existing_session(admin, request)
        patch = SessionPatch.from_wire(await self._gateway.bodies.read(request))
        if patch.session_id not in {None, session.session_id}:
            raise BadRequest("sessionId: it is not the session of the path")
        fields = patch.model_dump(exclude={"session_id"})
        amend_session = AmendSession(session_id=session.session_id, **fields)
        return _message_response(await admin.amend(amend_session))

    async def close(self, request: Request) -> Response:
        """``DELETE /sessions/{session_id}``: close a session permanently, with the admin token or its own."""
        with contextlib.suppress(Unauthorized):
            if SessionToken.parse(bearer_token(request)).id == request.path_params["session_id"]:
                return _message_response(await (await self._gateway.session_client(request)).close_session())
        admin = self._gateway.admin_client(request)
        session = await _existing_session(admin, request)
        return _message_response(
            await admin.amend(AmendSession(session_id=session.session_id, state=SessionState.CLOSED))
        )

    async def close_children(self, request: Request) -> Response:
        """``DELETE /sessions/{session_id}/children``: close the children of a session, with its own token."""
        client = await self._gateway.session_client(request)
        if SessionToken.parse(bearer_token(request)).id != request.path_params["session_id"]:
            raise NotFound("There is no such session of this token")
        return _message_response(await client.close_children())

    async def quotas(self, request: Request) -> Response:
        """``GET /quotas``: return the quotas; the metadata service takes either token."""
        return _message_response(await self._gateway.admin_client(request).quotas())

    async def _verify_token(self, request: Request, admin: Admin) -> None:
        """Raise `Unauthorized` if the token is not valid, before details of an invalid request are disclosed."""
        with contextlib.suppress(Unauthorized):
            SessionToken.parse(bearer_token(request))
            await (await self._gateway.session_client(request)).get_info()
            return
        with contextlib.suppress(BadRequest):
            await admin.show("")


async def _existing_session(admin: Admin, request: Request) -> Info:
    """Return the session of the path. Raises `NotFound` for any `BadRequest`: the session does not exist."""
    session_id = request.path_params["session_id"]
    try:
        ShowSession(session_id=session_id)
    except ValidationError:
        # Not a valid session id; the request is sent anyway so that the token is checked.
        session_id = ""
    try:
        return await admin.show(session_id)
    except BadRequest as bad_request:
        raise NotFound(bad_request.message) from None


def _message_response(message: Message, *, status: int = 200) -> Response:
    return Response(message.to_wire(), status_code=status, media_type=JSON_MEDIA_TYPE)
