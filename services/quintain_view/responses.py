"""What the pages of the server share: who may read, the folder of a request, a page as a response, and its changes.

The token stands in the fragment of the printed address, so that no server log, no history of a proxy and no referrer
holds it. The script of the page sends it once. The cookie is not readable by scripts, and browsers send it with
requests from pages of this server only.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import secrets
import shlex
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qsl, urlencode

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from quintain.errors import ConfigError
from quintain.runtime.http_server import host_name
from quintain.web import HEADERS, STATIC_TYPES, entered_token, is_same_text
from quintain_view.filters import TrialFilter
from quintain_view.folders import RunFolders
from quintain_view.reading import ContentMissing
from quintain_view.render import ServedLinks, render

#: The names that this machine has for itself; another name means that a foreign page has given itself our address.
LOOPBACK_NAMES = frozenset({"127.0.0.1", "localhost", "::1"})

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
        if host_name(host) not in LOOPBACK_NAMES:
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


#: How often a stream looks whether its page changed, and how often it sends a sign of life, in seconds.
POLL_SECONDS, KEEP_ALIVE_POLLS = 0.5, 30

#: A page that changes all the time is loaded again after this time at the earliest, in seconds.
CHANGE_SECONDS = 1.0

LINKS = ServedLinks()

_MAX_FORM_BYTES = 100_000


async def requested_folder(folders: RunFolders, request: Request, parameter: str = "name") -> tuple[str, Path]:
    """The run that a request's address names, and its folder. Raises `ContentMissing`."""
    name = request.path_params[parameter]
    folder = await asyncio.to_thread(folders.folder, name)
    if folder is None:
        raise ContentMissing(f"There is no run {name} in the folders that are shown")
    return name, folder


def opened_path(folders: RunFolders, at: str) -> str:
    """The path and the query of the page that ``quintain view --at`` names.

    ``at`` is the query in the address of the run's page, after ``case?`` in that of a case; with several runs it is
    that of their list. The result is made of its names and values anew: it can hold no other place and no fragment.
    Raises `ConfigError` of what the page has no filter for.
    """
    run = folders.only_run()
    is_case = run is not None and at.startswith("case?")
    query = at.removeprefix("case" if is_case else "").removeprefix("?").partition("#")[0]
    try:
        pairs = list(dict.fromkeys(parse_qsl(query, strict_parsing=True)))
    except ValueError:
        pairs = [(query, "")]
    own = {"q"} if run is None else {"id", "at", "text", "steps", "end"} if is_case else {"page"}
    held = [] if run is None else [name for name, _ in parse_qsl(TrialFilter.from_query(pairs).to_query())]
    names = [name for name, _ in pairs]
    if wrong := next((name for name in names if name not in own and names.count(name) > held.count(name)), None):
        raise ConfigError(
            f"--at: {wrong!r} or its value is no filter; give one run, and its page's address behind the ?"
        )
    path = "/" if run is None else LINKS.run(run) + "/case" * is_case
    return f"{path}?{urlencode(pairs, errors='replace')}"


def opening_command(folder: Path, at: str) -> str:
    """The command that opens this page of a run on a machine with its folder."""
    return shlex.join(["quintain", "view", str(folder), "--at", at])


async def read_form(request: Request) -> dict[str, str]:
    """The fields of a form. Raises `HTTPException` 413 of a longer one than any page has."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > _MAX_FORM_BYTES:
            raise HTTPException(413)
    return dict(parse_qsl(body.decode(errors="replace"), keep_blank_values=True))


async def page_response(template: str, status: int = 200, **values: object) -> Response:
    """A template with these values as a response."""
    html = await asyncio.to_thread(functools.partial(render, template, links=LINKS, **values))
    return HTMLResponse(html, status)


def event_stream(
    request: Request, version: Callable[[], str], on_poll: Callable[[], Awaitable[None]] | None = None
) -> Response:
    """A stream with an event "changed" each time that the version is another one than before.

    The page names in ``seen`` the version that it shows: what changed before its stream was open is told at once.
    """

    async def stream() -> AsyncIterator[str]:
        last = request.query_params.get("seen")
        yield "retry: 1000\n\n"
        quiet, next_at = 0, 0.0
        while True:
            now = await asyncio.to_thread(version)
            if now != last and time.monotonic() >= next_at:
                last, quiet, next_at = now, 0, time.monotonic() + CHANGE_SECONDS
                yield "event: changed\ndata: \n\n"
            elif quiet >= KEEP_ALIVE_POLLS:
                quiet = 0
                yield ": still here\n\n"
            await asyncio.sleep(POLL_SECONDS)
            quiet += 1
            if on_poll is not None:
                await on_poll()

    return StreamingResponse(stream(), media_type="text/event-stream")


def version_of(state: object) -> str:
    """A short name of what a page shows, which is another one for another state."""
    return hashlib.sha256(repr(state).encode()).hexdigest()[:16]


def page_number(request: Request) -> int:
    """The page of a list that a request asks for, from 1."""
    return max(1, min(to_number(request.query_params.get("page", ""), 1), 1_000_000))


def to_number(text: str, default: int) -> int:
    """A number of an address, else the default."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else default
