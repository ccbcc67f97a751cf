"""One gateway and one token: each question is one HTTP request, and what comes back is a message or a typed error.

Nothing is asked twice: a connection that is lost on the way may have carried a call that was charged, and only the
caller knows whether its request has an id to ask again under.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import ssl
from collections.abc import AsyncIterator, Mapping
from typing import TypeVar

import httpx2

from quintain.contracts.invoke import FaultReply
from quintain.contracts.message import Message
from quintain.errors import FAULTS, BadRequest, ConfigError, Fault, GatewayUnavailable, InternalFault, NoAnswer

Answer = TypeVar("Answer", bound=Message)

#: How long a connection may take to open, in seconds; after that the call's own deadline bounds everything.
CONNECT_SECONDS = 10.0

#: More calls than this at the same time wait for a connection. A gateway holds a thousand, of all its clients.
MOST_CONNECTIONS = 256

#: An idle connection is used again for so long, in seconds: less than a gateway keeps it, so that none is asked
#: on which has just been closed.
KEEPALIVE_SECONDS = 15.0

MOST_PORT = 65535


class HttpLine:
    """A way to ask one gateway. Use it as `line_to` gives it."""

    def __init__(self, http: httpx2.AsyncClient, place: str) -> None:
        self._http, self._place = http, place

    @property
    def place(self) -> str:
        """The gateway's address, to show."""
        return self._place

    async def ask(
        self,
        method: str,
        path: str,
        answers: type[Answer],
        *,
        timeout_seconds: float,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """The answer. Raises the `Fault` that came instead, `NoAnswer`, or `GatewayUnavailable`."""
        try:
            async with asyncio.timeout(timeout_seconds):
                response = await self._http.request(method, path, content=body, headers=headers)
        except TimeoutError:
            raise NoAnswer(f"{self._place} did not answer within {timeout_seconds:.1f} s") from None
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.ProxyError) as error:
            raise GatewayUnavailable(
                f"No gateway answers at {self._place} ({_why(error)}): does `quintain serve gateway` run there?"
            ) from None
        except httpx2.TransportError as error:
            raise GatewayUnavailable(
                f"The connection to {self._place} was lost before the answer came ({_why(error)}); whether a call "
                "was charged, `info` says, and the same request id asks for the same call"
            ) from None
        if not response.is_success:
            raise self._fault(response)
        try:
            return answers.from_wire(response.content)
        except BadRequest as unreadable:
            raise InternalFault(
                f"The answer of {self._place} cannot be read ({unreadable.message})", charged=True
            ) from None

    def _fault(self, response: httpx2.Response) -> Fault | GatewayUnavailable:
        try:
            reply = FaultReply.from_wire(response.content)
        except BadRequest:
            return GatewayUnavailable(
                f"{self._place} answered {response.status_code}, and not as a gateway does: is it one? "
                "(QUINTAIN_GATEWAY_URL)"
            )
        if reply.code not in FAULTS and reply.status < InternalFault.status:
            # What HTTP alone can get wrong (a path, a method) is the request's own mistake like any other.
            reply = reply.model_copy(update={"code": BadRequest.code})
        return reply.raised()


@contextlib.asynccontextmanager
async def line_to(url: str, token: str) -> AsyncIterator[HttpLine]:
    """A line to the gateway at this base URL, closed at the end; certificates are always verified.

    Raises `ConfigError` where the URL is none or the token cannot be sent.
    """
    try:
        where = httpx2.URL(url)
        headers = httpx2.Headers({"Authorization": f"Bearer {token}", "User-Agent": _user_agent()})
    except (httpx2.InvalidURL, UnicodeEncodeError) as error:
        raise ConfigError(f"QUINTAIN_GATEWAY_URL or the token cannot be used: {error}") from None
    if where.scheme not in {"http", "https"} or not where.host or (where.port or 0) > MOST_PORT:
        raise ConfigError("QUINTAIN_GATEWAY_URL is no address of a gateway: give one such as http://127.0.0.1:8787")
    if where.query or where.fragment:
        raise ConfigError("QUINTAIN_GATEWAY_URL has more than an address and a path: give it without ? and #")
    async with httpx2.AsyncClient(
        base_url=where,
        headers=headers,
        timeout=httpx2.Timeout(None, connect=CONNECT_SECONDS),
        limits=httpx2.Limits(
            max_connections=MOST_CONNECTIONS,
            max_keepalive_connections=MOST_CONNECTIONS,
            keepalive_expiry=KEEPALIVE_SECONDS,
        ),
        # A redirect would take the token elsewhere.
        follow_redirects=False,
    ) as http:
        yield HttpLine(http, _shown(where))


def _shown(url: httpx2.URL) -> str:
    """The address for people, without what may be secret in it."""
    return str(url.copy_with(userinfo=b"")).rstrip("/")


def _user_agent() -> str:
    return f"quintain/{importlib.metadata.version('quintain')}"


def _why(error: httpx2.TransportError) -> str:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"its certificate is not trusted: {cause.verify_message}"
        cause = cause.__cause__ or cause.__context__
    return str(error) or type(error).__name__
