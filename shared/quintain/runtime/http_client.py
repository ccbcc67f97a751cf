"""The HTTP client: one connection pool to one provider or gateway, and what is known of a request that failed.

There are no redirects, no cookies and no credentials from files: each could carry the key, or what it pays for, to
somebody else.
"""

from __future__ import annotations

import asyncio
import functools
import importlib.metadata
import io
import os
import socket
import ssl
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from urllib.parse import urlsplit, urlunsplit
from urllib.request import proxy_bypass_environment  # type: ignore[attr-defined]

import aiohttp

from quintain.errors import ConfigError

#: How long a connection may take to open, in seconds.
CONNECT_SECONDS = 10.0

#: The longest header of an answer, in bytes.
MAX_HEADER_BYTES = 64 * 1024

#: The largest body that is sent at once, in bytes: the event loop is held while it is.
MAX_BYTES_AT_ONCE = 1024 * 1024


class NotSent(Exception):
    """No byte of a request was sent; the message is what the operating system says of it.

    ``is_address_wrong``: the name of its host is not found, or its certificate is not valid.
    """

    is_address_wrong = False


class ConnectionLost(Exception):
    """The connection broke after a byte of the request may have been sent."""


#: A proxy that refuses to connect has passed nothing on.
_NOT_SENT = (
    aiohttp.ClientConnectorError,
    aiohttp.ClientHttpProxyError,
    aiohttp.ConnectionTimeoutError,
    aiohttp.InvalidURL,
)


class HttpClient:
    """Sends requests to the API below one URL.

    ``proxy_environment`` holds the variables that name proxies, such as ``HTTPS_PROXY`` and ``NO_PROXY``. An idle
    connection is kept for ``keepalive_seconds``; with ``max_connections`` further requests wait for a free one. Raises
    `ConfigError` for a proxy that is no HTTP proxy.
    """

    def __init__(
        self,
        base_url: str,
        headers: Mapping[str, str],
        proxy_environment: Mapping[str, str],
        *,
        keepalive_seconds: float,
        max_connections: int | None = None,
        idle_seconds: float | None = None,
    ) -> None:
        base = urlsplit(base_url)
        self._is_tls, self._headers = base.scheme == "https", {"user-agent": _user_agent(), **headers}
        self._keepalive_seconds, self._max_connections = keepalive_seconds, max_connections
        self._idle_seconds = idle_seconds
        self._proxy = _proxy_of(base.scheme, base.netloc, proxy_environment)
        self._url = urlunsplit(base._replace(path=base.path.rstrip("/"), query="", fragment=""))
        self._query = f"?{base.query}" if base.query else ""
        self._session: aiohttp.ClientSession | None = None

    @asynccontextmanager
    async def request(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str], timeout_seconds: float
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request and yield the response, whose body is not read yet; leaving early closes the connection.

        Raises `NotSent`, `ConnectionLost` and `TimeoutError`; what is raised inside passes through.
        """
        try:
            async with (
                asyncio.timeout(timeout_seconds),
                self._open_session().request(
                    method,
                    f"{self._url}{path}{self._query}",
                    # aiohttp sends a large body piece by piece only from a file.
                    data=body if body is None or len(body) <= MAX_BYTES_AT_ONCE else io.BytesIO(body),
                    # Not those of the session: it would send them to a proxy too.
                    headers={**self._headers, **headers},
                    proxy=self._proxy,
                    allow_redirects=False,
                ) as response,
            ):
                yield response
        except _NOT_SENT as error:
            not_sent = NotSent(system_words(error))
            not_sent.is_address_wrong = is_address_wrong(error)
            raise not_sent from None
        except aiohttp.SocketTimeoutError:
            raise TimeoutError from None
        except aiohttp.ClientError as error:
            raise ConnectionLost(system_words(error)) from None

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    def _open_session(self) -> aiohttp.ClientSession:
        # Opened with the first request: a session belongs to a running event loop.
        if self._session is None:
            connector = aiohttp.TCPConnector(
                limit=self._max_connections or 0,
                keepalive_timeout=self._keepalive_seconds,
                ssl=_tls_context() if self._is_tls else True,
            )
            self._session = aiohttp.ClientSession(
                connector=connector,
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(sock_connect=CONNECT_SECONDS, sock_read=self._idle_seconds),
                max_line_size=MAX_HEADER_BYTES,
                max_field_size=MAX_HEADER_BYTES,
                trust_env=False,
            )
        return self._session


@functools.cache
def _tls_context() -> ssl.SSLContext:
    """The TLS context that clients share: reading the certificates takes 50 ms of processor time."""
    return ssl.create_default_context()


@functools.cache
def _user_agent() -> str:
    return f"quintain/{importlib.metadata.version('quintain')}"


def _proxy_of(scheme: str, host: str, environment: Mapping[str, str]) -> str | None:
    names = ((name.lower(), url) for name, url in environment.items())
    proxies = {name.removesuffix("_proxy"): url for name, url in names if url and name.endswith("_proxy")}
    proxy = proxies.get(scheme) or proxies.get("all")
    if proxy is None or proxy_bypass_environment(host, proxies):
        return None
    if "://" not in proxy:
        proxy = f"http://{proxy}"
    if not proxy.lower().startswith(("http://", "https://")):
        raise ConfigError(f"{scheme.upper()}_PROXY: only proxies of http:// and https:// can be used")
    return proxy


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def is_address_wrong(error: BaseException) -> bool:
    """Whether a connection failed because the host's name is not found, or what is there cannot prove to be it."""
    return any(
        isinstance(cause, socket.gaierror | ssl.SSLCertVerificationError)
        # The library's own errors of TLS have no reason.
        or getattr(cause, "reason", None) == "WRONG_VERSION_NUMBER"
        for cause in _causes(error)
    )


def system_words(error: BaseException) -> str:
    """Return what the operating system says of a failed connection; empty where it says nothing."""
    found = ""
    for cause in _causes(error):
        # The library's own errors are errors of TLS too, without a message or a reason.
        if (untrusted := getattr(cause, "verify_message", None)) is not None:
            return f"TLS: its certificate is not trusted: {untrusted}"
        if isinstance(cause, aiohttp.http_exceptions.ContentEncodingError):
            return "its content-encoding cannot be decoded"
        if isinstance(cause, ssl.SSLError) and (reason := getattr(cause, "reason", None)):
            return f"TLS: {reason}"
        if isinstance(cause, OSError) and cause.errno is not None:
            # asyncio writes a text of its own over the system's; a failed look-up of a name has a number of its own.
            found = os.strerror(cause.errno) if cause.errno > 0 else str(cause.strerror)
    return found
