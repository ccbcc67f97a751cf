"""``GET /fleet`` and what belongs to it: the page, its files, who may look and for how long, its figures."""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from dataclasses import dataclass
from functools import cache
from urllib.parse import urlencode, urlsplit

import jinja2
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from quintain.bus.base import Bus
from quintain.client.admin import Admin
from quintain.client.amqp_transport import AmqpTransport
from quintain.contracts.fleet_figures import FleetFigures, TargetCondition, TargetFigures
from quintain.contracts.message import Message
from quintain.errors import BudgetUnavailable, Unauthorized
from quintain.fleet.look import LOOK_SECONDS, FleetLook
from quintain.fleet.tables import fleet_facts, fleet_tables
from quintain.rpc.requests import RpcClient
from quintain.web import HEADERS, STATIC_TYPES, entered_token, is_same_text, static_file, template_environment, to_html
from quintain_gateway.auth import bearer_token
from quintain_gateway.endpoint import Api, method_route
from quintain_gateway.errors import JSON_MEDIA_TYPE, NotFound, fault_response
from quintain_gateway.openapi import ADMIN_TOKEN, Operation, fault_responses

ROOT = "/fleet"

#: Which targets a page shows, by the value of its field ``show``.
SHOWN = {"": "all targets", "active": "with calls", "trouble": "paused, unserved or with errors"}

#: How many targets a page shows; a table of a thousand takes a browser as long as all else together.
TARGETS_PER_PAGE = 200

PAGES = Api(error_response=fault_response, headers=HEADERS)

#: The page asks to be loaded again after a second at the earliest, and its making takes at most this part of a
#: processor's time.
PAGE_SHARE = 1 / 30

_FAULT_STATUSES = (401, 431, 500, 503)


@dataclass(frozen=True, slots=True)
class FleetFilter:
    """Which targets are shown: those whose name contains a text, of those the ones with a property, and which page."""

    text: str = ""
    show: str = ""
    page: int = 1

    def matches(self, target: TargetFigures) -> bool:
        """Whether the target is shown."""
        if self.text.lower() not in target.name.lower():
            return False
        if self.show == "active":
            return bool(target.running or target.queued or target.calls_per_minute)
        if self.show == "trouble":
            return target.condition is not TargetCondition.READY or bool(target.faults)
        return True

    def address(self, page: int) -> str:
        """The address of another page of the same targets."""
        given = {"q": self.text, "show": self.show, "page": page}
        return f"{ROOT}?{urlencode({name: value for name, value in given.items() if value}, errors='replace')}"


def render_fleet(figures: FleetFigures, page_filter: FleetFilter, *, reload_ms: int = 1000) -> str:
    """The page, which asks to be loaded again after so many milliseconds."""
    found = [target for target in figures.targets if page_filter.matches(target)]
    pages = max(1, -(-len(found) // TARGETS_PER_PAGE))
    page = max(1, min(page_filter.page, pages))
    return to_html(
        _environment(),
        "fleet.html",
        facts=fleet_facts(figures),
        problems=[*figures.problems, *figures.warnings],
        tables=fleet_tables(figures, found[(page - 1) * TARGETS_PER_PAGE : page * TARGETS_PER_PAGE]),
        all=len(figures.targets),
        found=len(found),
        page=page,
        before=page_filter.address(page - 1) if page > 1 else None,
        after=page_filter.address(page + 1) if page < pages else None,
        page_filter=page_filter,
        reload_ms=reload_ms,
    )


def render_enter() -> str:
    """The page for those who may not look: it asks for the token."""
    return to_html(
        _environment(),
        "enter.html",
        title="Fleet",
        how="This page is for holders of the admin token.",
        wrong="The metadata service does not know this token as the administrator's.",
        asks=True,
    )


@cache
def _environment() -> jinja2.Environment:
    environment = template_environment("quintain_gateway", root=ROOT)
    environment.globals.update(shown=SHOWN, zip=zip)
    return environment


class FleetToken(Message):
    """The admin token, which is exchanged for a cookie that scripts cannot read."""

    token: str


class Entered(Message):
    """The token is the administrator's, and the response has the cookie."""


OPERATIONS = (
    Operation(
        "GET",
        ROOT,
        "The Fleet page; without its cookie, the page that asks for the admin token",
        responses={200: "text/html", 401: "text/html", **fault_responses(431, 500, 503)},
        query={"q": {"type": "string"}, "show": {"enum": list(SHOWN)}, "page": {"type": "integer", "minimum": 1}},
    ),
    Operation(
        "POST",
        f"{ROOT}/enter",
        "Exchange the admin token for the cookie of the Fleet page",
        request_model=FleetToken,
        responses={200: Entered, **fault_responses(*_FAULT_STATUSES)},
    ),
    Operation(
        "GET",
        f"{ROOT}/figures",
        "What the Fleet page shows, as JSON",
        token=ADMIN_TOKEN,
        responses={200: FleetFigures, **fault_responses(*_FAULT_STATUSES)},
    ),
    Operation(
        "GET",
        f"{ROOT}/static/{{name}}",
        "The style sheet and the script of the Fleet page",
        responses={200: "text/plain", **fault_responses(404, 431, 500)},
    ),
)


class FleetEndpoints:
    """The endpoints of the Fleet page."""

    def __init__(self, access: FleetAccess) -> None:
        self._access = access
        self._page_seconds = 0.0
        self.routes: list[Route] = [
            method_route(ROOT, {"GET": self.page}, PAGES.to_endpoint),
            method_route(f"{ROOT}/enter", {"POST": self.enter}, PAGES.to_endpoint),
            method_route(f"{ROOT}/figures", {"GET": self.figures}, PAGES.to_endpoint),
            method_route(f"{ROOT}/static/{{name}}", {"GET": self.static}, PAGES.to_endpoint),
        ]

    async def page(self, request: Request) -> Response:
        """``GET /fleet``: the page, or the one that asks for the token."""
        try:
            figures = await self._access.figures(request.cookies.get(_cookie_name(request), ""))
        except Unauthorized:
            return HTMLResponse(render_enter(), 401)
        query = request.query_params
        number = query.get("page", "")
        page = int(number) if number.isascii() and number.isdigit() and len(number) < 10 else 1
        page_filter = FleetFilter(query.get("q", ""), query.get("show", ""), page)
        # The time of this thread: on a machine with much else to do a page is not the less up to date.
        began = time.thread_time()
        reload_seconds = max(LOOK_SECONDS, self._page_seconds / PAGE_SHARE)
        html = render_fleet(figures, page_filter, reload_ms=int(reload_seconds * 1000))
        self._page_seconds = time.thread_time() - began
        return HTMLResponse(html)

    async def enter(self, request: Request) -> Response:
        """``POST /fleet/enter``: exchange the token for a cookie. A foreign page may not."""
        origin = request.headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != request.headers.get("host"):
            raise Unauthorized
        cookie = await self._access.enter(await entered_token(request))
        response = JSONResponse({})
        is_secure = request.url.scheme == "https"
        response.set_cookie(
            _cookie_name(request), cookie, path=ROOT, httponly=True, samesite="strict", secure=is_secure
        )
        return response

    async def figures(self, request: Request) -> Response:
        """``GET /fleet/figures``: the figures as JSON, with the admin token."""
        figures = await self._access.figures_for(bearer_token(request))
        return Response(figures.to_wire(), media_type=JSON_MEDIA_TYPE)

    async def static(self, request: Request) -> Response:
        """``GET /fleet/static/{name}``: the style sheet or the script."""
        name = request.path_params["name"]
        if name not in STATIC_TYPES:
            raise NotFound("There is no such file")
        return Response(static_file(name), media_type=STATIC_TYPES[name])


def _cookie_name(request: Request) -> str:
    """Gateways on several ports of one machine share their cookies, so that each needs a name of its own."""
    return f"quintain-fleet-{request.url.port or 0}"


#: How long a page waits for the figures of the fleet, in seconds.
ANSWER_SECONDS = 5.0

#: A cookie is valid for so long after it was used last, in seconds, and so many are.
COOKIE_SECONDS, MAX_COOKIES = 12 * 3600.0, 100


class FleetAccess:
    """Checks who may look at the fleet, and gives its figures, the same for all who look within a second.

    A token is the administrator's if the metadata service says so. It is kept in memory while its cookies are valid.
    Cookies are random, and end with the gateway or with the token.
    """

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._token = ""
        self._cookies: dict[str, float] = {}
        self._lock = asyncio.Lock()
        self._client: RpcClient | None = None
        self._look: FleetLook | None = None
        self._figures = FleetFigures()
        self._figures_until = -math.inf

    async def close(self) -> None:
        """Close the client."""
        if self._client is not None:
            await self._client.close()

    async def enter(self, token: str) -> str:
        """Return a cookie for the holder of the admin token. Raises `Unauthorized`, or what `figures_for` raises."""
        await self.figures_for(token)
        now = time.monotonic()
        # The cookie that was used first makes room.
        valid = sorted((used_at, one) for one, used_at in self._cookies.items() if now - used_at < COOKIE_SECONDS)
        self._cookies = {one: used_at for used_at, one in valid[-(MAX_COOKIES - 1) :]}
        cookie = secrets.token_urlsafe(24)
        self._cookies[cookie] = now
        return cookie

    async def figures_for(self, token: str) -> FleetFigures:
        """Return the figures for a token. Raises `Unauthorized` for one that is not the administrator's, `BusError`."""
        if not token:
            raise Unauthorized
        async with self._lock:
            if is_same_text(token, self._token):
                return await self._take()
            look = await self._open_look(token)
            figures = await look.take()
            if not figures.now:  # no metadata service has said whose token it is
                raise BudgetUnavailable(figures.problems[0])
            self._token, self._cookies, self._look = token, {}, look
            return self._keep(figures)

    async def figures(self, cookie: str) -> FleetFigures:
        """Return the figures for a cookie. Raises `Unauthorized` for one that is not valid, `BusError`."""
        now = time.monotonic()
        if now - self._cookies.get(cookie, -COOKIE_SECONDS) >= COOKIE_SECONDS:
            raise Unauthorized
        self._cookies[cookie] = now
        async with self._lock:
            return await self._take()

    async def _take(self) -> FleetFigures:
        if time.monotonic() < self._figures_until:
            return self._figures
        if self._look is None:
            raise Unauthorized
        try:
            return self._keep(await self._look.take())
        except Unauthorized:
            # The token was changed: nobody who came with the old one may look any more.
            self._token, self._cookies, self._look = "", {}, None
            raise

    def _keep(self, figures: FleetFigures) -> FleetFigures:
        self._figures, self._figures_until = figures, time.monotonic() + LOOK_SECONDS / 2
        return figures

    async def _open_look(self, token: str) -> FleetLook:
        if self._client is None:
            # A client of its own: what it waits for does not count as a call of the gateway.
            client = RpcClient(self._bus)
            await client.start()
            self._client = client
        return FleetLook(Admin(AmqpTransport(self._client, token), timeout_seconds=ANSWER_SECONDS))
