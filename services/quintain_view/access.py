"""Who may read: requests to a name of this machine, with the cookie that the token was exchanged for.

The token stands in the fragment of the printed address, so that no server log, no history of a proxy and no referrer
holds it. The script of the page sends it once. The cookie is not readable by scripts, and browsers send it with
requests from pages of this server only.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from quintain.web import HEADERS, STATIC_TYPES, entered_token, is_same_text
from quintain_view.render import render

#: The names that this machine has for itself; another name means that a foreign page has given itself our address.
LOOPBACK_NAMES = frozenset({"127.0.0.1", "localhost", "[::1]"})

#: The paths that need no cookie: they hold nothing of a run.
_OPEN_PATHS = frozenset({"/enter", *(f"/static/{name}" for name in STATIC_TYPES)})

_REFUSED = "The token in the address is not the one of this server: start quintain view again."


@dataclass(frozen=True, slots=True)
class AccessKeys:
    """The token of the printed address, and the value of the cookie; both new for each start."""

    token: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    cookie: str = field(default_factory=lambda: secrets.token_urlsafe(24))


class AccessCheck:
    """Passes requests on to an application, adds `HEADERS` to its answers, and refuses those that may not read."""

    def __init__(self, app: ASGIApp, keys: AccessKeys) -> None:
        self._app, self._keys = app, keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request: 421 for another host, 403 for another origin, 401 without the cookie."""
        if scope["type"] != "http":
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                added = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
                message["headers"] = [*message.get("headers", []), *added]
            await send(message)

        request = Request(scope, receive)
        handler = self._refusal(request) or (self._enter if request.url.path == "/enter" else self._app)
        await handler(scope, receive, send_with_headers)

    def _refusal(self, request: Request) -> Response | None:
        host = request.headers.get("host", "")
        if host.rpartition(":")[0].lower() not in LOOPBACK_NAMES and host.lower() not in LOOPBACK_NAMES:
            return Response("This server answers only to names of this machine.\n", 421)
        if request.method == "POST" and request.headers.get("origin") != f"http://{host}":
            return Response("Only pages of this server may write.\n", 403)
        if request.url.path in _OPEN_PATHS or is_same_text(
            request.cookies.get(self._cookie_name(request), ""), self._keys.cookie
        ):
            return None
        return HTMLResponse(
            render(
                "enter.html",
                title="quintain view",
                how="This page opens with the address that the command quintain view printed, with the token in it.",
                wrong=_REFUSED,
                asks=False,
            ),
            401,
        )

    async def _enter(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        response: Response = JSONResponse({"error": "The token is not the one of this server"}, 401)
        if request.method == "POST" and is_same_text(await entered_token(request), self._keys.token):
            response = JSONResponse({})
            response.set_cookie(self._cookie_name(request), self._keys.cookie, httponly=True, samesite="strict")
        await response(scope, receive, send)

    @staticmethod
    def _cookie_name(request: Request) -> str:
        """Servers on several ports of one machine share their cookies, so that each needs a name of its own."""
        return f"quintain-view-{request.url.port or 80}"
