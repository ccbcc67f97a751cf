"""Sessions over HTTP, with the admin token: ``POST`` and ``GET /sessions``, ``GET``, ``PATCH`` and ``DELETE`` of one.

A session's own token opens children of that session, as over the bus, and nothing else here.
"""

from __future__ import annotations

import contextlib

from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from quintain.client.admin import Admin
from quintain.contracts.message import Message, explain
from quintain.contracts.metadata import (
    AmendSession,
    Count,
    Info,
    ListSessions,
    OpenSession,
    SessionList,
    SessionOpened,
    SessionState,
    ShowSession,
)
from quintain.contracts.token import SessionToken
from quintain.errors import BadRequest, PayloadTooLarge, Unauthorized
from quintain_gateway.door import Api, Door, bearer
from quintain_gateway.methods import resource
from quintain_gateway.operation import ADMIN_TOKEN, Operation, faults
from quintain_gateway.refusals import JSON, NotFound, plain_refusal

API = Api(refusal=plain_refusal)

ONE = "/sessions/{session_id}"

_ALWAYS = (401, 431, 500, 503)
_BODY = (400, 408, 413)


class Amendment(Message):
    """Change a session's limit or state; usage is never reset, and a limit below it becomes it."""

    max_calls: Count | None = None
    state: SessionState | None = None


OPERATIONS = (
    Operation(
        "POST", "/sessions", "Open a session; its token is shown this once", token=ADMIN_TOKEN, asks=OpenSession,
        answers={201: SessionOpened, **faults(403, *_BODY, *_ALWAYS)},
    ),
    Operation(
        "GET", "/sessions", "The sessions, newest first, a page at a time", token=ADMIN_TOKEN,
        answers={200: SessionList, **faults(400, *_ALWAYS)},
        query={"cursor": {"type": "string"}, "state": {"enum": [state.value for state in SessionState]}},
    ),
    Operation(
        "GET", ONE, "One session and its counters", token=ADMIN_TOKEN, answers={200: Info, **faults(404, *_ALWAYS)}
    ),
    Operation(
        "PATCH", ONE, "Change a session's limit or state", token=ADMIN_TOKEN, asks=Amendment,
        answers={200: Info, **faults(404, *_BODY, *_ALWAYS)},
    ),
    Operation(
        "DELETE", ONE, "Close a session for ever", token=ADMIN_TOKEN, answers={200: Info, **faults(404, *_ALWAYS)}
    ),
)  # fmt: skip


class Sessions:
    """The endpoints of sessions."""

    def __init__(self, door: Door) -> None:
        self._door = door
        self.routes: list[Route] = [
            resource("/sessions", {"GET": self.list, "POST": self.open}, API.endpoint),
            resource(ONE, {"GET": self.show, "PATCH": self.amend, "DELETE": self.close}, API.endpoint),
        ]

    async def open(self, request: Request) -> Response:
        """``POST /sessions``"""
        admin = self._door.admin(request)
        try:
            ask = OpenSession.from_wire(await self._door.read_body(request))
        except (BadRequest, PayloadTooLarge):
            await self._prove(request, admin)
            raise
        return _answer(await admin.open(ask), status=201)

    async def list(self, request: Request) -> Response:
        """``GET /sessions?cursor=&state=``"""
        admin = self._door.admin(request)
        try:
            ask = ListSessions.model_validate({name: value for name, value in request.query_params.items() if value})
        except ValidationError as error:
            await self._prove(request, admin)
            raise BadRequest(explain(error)) from None
        return _answer(await admin.list(ask))

    async def show(self, request: Request) -> Response:
        """``GET /sessions/{id}``"""
        return _answer(await _existing(self._door.admin(request), request))

    async def amend(self, request: Request) -> Response:
        """``PATCH /sessions/{id}``"""
        admin = self._door.admin(request)
        session = await _existing(admin, request)
        change = Amendment.from_wire(await self._door.read_body(request))
        ask = AmendSession(session_id=session.session_id, max_calls=change.max_calls, state=change.state)
        return _answer(await admin.amend(ask))

    async def close(self, request: Request) -> Response:
        """``DELETE /sessions/{id}``"""
        admin = self._door.admin(request)
        session = await _existing(admin, request)
        return _answer(await admin.amend(AmendSession(session_id=session.session_id, state=SessionState.CLOSED)))

    async def _prove(self, request: Request, admin: Admin) -> None:
        """The token before the body: whoever may open nothing hears nothing about what was wrong with it."""
        with contextlib.suppress(Unauthorized):
            SessionToken.parse(bearer(request))
            await (await self._door.client(request)).get_info()
            return
        with contextlib.suppress(BadRequest):
            await admin.show("")


async def _existing(admin: Admin, request: Request) -> Info:
    """The session of the path. Raises `NotFound`, which is all that a good token's `show` can be refused for."""
    try:
        return await _shown(admin, request.path_params["session_id"])
    except BadRequest as nobody:
        raise NotFound(nobody.message) from None


async def _shown(admin: Admin, session_id: str) -> Info:
    try:
        ShowSession(session_id=session_id)
    except ValidationError:
        # What can be no session's name; the token is looked at all the same.
        session_id = ""
    return await admin.show(session_id)


def _answer(said: Message, *, status: int = 200) -> Response:
    return Response(said.to_wire(), status_code=status, media_type=JSON)
