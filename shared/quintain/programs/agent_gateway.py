"""The server of agents' URLs on loopback: it puts the token of the session for which a URL stands, and passes on."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Final

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from quintain.contracts.credentials import bearer_token
from quintain.contracts.invoke import FaultReply
from quintain.errors import Fault, TargetUnavailable, TimedOut, Unauthorized
from quintain.programs.agent_urls import AgentUrls
from quintain.runtime.http_client import ConnectionLost, HttpClient, NotSent
from quintain.runtime.http_server import LOOPBACK, open_listener, serve_uvicorn, url_of

#: How long a request that is passed on to another gateway may take, in seconds: its session ends before.
FORWARD_SECONDS: Final = 24 * 3600.0

#: How long an idle connection to another gateway is kept, in seconds: less than the gateway keeps it.
KEEPALIVE_SECONDS: Final = 15.0

#: How long running requests may take at the end, in seconds: their agents have ended.
GRACE_SECONDS: Final = 1

_TOKEN_HEADERS = frozenset({b"authorization", b"x-api-key"})

#: The headers of one connection.
_OF_CONNECTION = frozenset(
    {"accept-encoding", "connection", "content-length", "expect", "host", "keep-alive", "transfer-encoding"}
)


class AgentUrlApp:
    """Passes requests on with the token for which an agent's secret stands: the beginning of the path, or the key.

    Others are answered with what ``refuse`` makes of them.
    """

    def __init__(self, app: ASGIApp, urls: AgentUrls, refuse: Callable[[Scope, Fault], ASGIApp]) -> None:
        self._app, self._urls, self._refuse = app, urls, refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            return
        key, slash, rest = scope["path"].removeprefix("/").partition("/")
        inside = {**scope, "path": slash + rest, "raw_path": (slash + rest).encode()}
        if (token := self._urls.token_of(key)) is None:
            inside, headers = dict(scope), Headers(scope=scope)
            keys = (bearer_token(headers.getlist("authorization")), *headers.getlist("x-api-key"))
            token = next(filter(None, map(self._urls.token_of, keys)), None)
        if token is None:
            refused = Unauthorized("This URL stands for no session now: no call of its agent runs")
            await self._refuse(inside, refused)(scope, receive, send)
            return
        kept = [(name, value) for name, value in scope["headers"] if name not in _TOKEN_HEADERS]
        inside["headers"] = [*kept, (b"authorization", b"Bearer " + token.encode())]
        await self._app(inside, receive, send)


@contextlib.asynccontextmanager
async def forward_agent_urls(gateway_url: str, env: Mapping[str, str]) -> AsyncIterator[AgentUrls]:
    """Serve agents' URLs on loopback, and pass their requests on to the gateway at ``gateway_url``.

    ``env`` has the variables that name proxies. Raises `ConfigError` for a proxy that is no HTTP proxy.
    """
    listener = open_listener(LOOPBACK, 0)
    urls = AgentUrls(url_of("http", LOOPBACK, listener))
    client = HttpClient(gateway_url, {}, env, keepalive_seconds=KEEPALIVE_SECONDS)
    app = AgentUrlApp(_GatewayProxy(client), urls, _refused)
    try:
        async with serve_uvicorn(listener, app, "agents' URLs", timeout_graceful_shutdown=GRACE_SECONDS):
            yield urls
    finally:
        await client.close()


class _GatewayProxy:
    """Passes requests on to a gateway, and its answers back as they come."""

    def __init__(self, client: HttpClient) -> None:
        self._client = client

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        query = scope["query_string"].decode("latin-1")
        path = scope["raw_path"].decode("latin-1") + (f"?{query}" if query else "")
        headers, body = _passed_on(request.headers), await request.body()
        answer: Response | None = None
        try:
            async with self._client.request(request.method, path, body, headers, FORWARD_SECONDS) as response:
                content = response.content.iter_any()
                # The client has decoded the answer.
                answer = StreamingResponse(content, response.status, _passed_on(response.headers, "content-encoding"))
                await answer(scope, receive, send)
        except (NotSent, ConnectionLost, TimeoutError) as error:
            if answer is not None:
                # Its connection is closed, which says that the answer is incomplete.
                raise
            kind = TimedOut if isinstance(error, TimeoutError) else TargetUnavailable
            await _refused(scope, kind(f"The gateway of this agent's calls did not answer: {error}"))(
                scope, receive, send
            )


def _passed_on(headers: Mapping[str, str], but: str = "") -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in {*_OF_CONNECTION, but}}


def _refused(_: Scope, fault: Fault) -> Response:
    return Response(FaultReply.from_fault(fault).to_wire(), fault.status, media_type="application/json")
