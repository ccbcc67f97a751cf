"""Opens a listening socket, and runs uvicorn on it inside a process that owns its own signal handlers."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import re
import socket
from collections.abc import AsyncIterator, Iterator
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from quintain.errors import ConfigError

LOOPBACK = "127.0.0.1"

#: An IPv6 address in brackets, or a name, and perhaps a port.
_HOST = re.compile(r"(?:\[(?P<address>[0-9a-f:.]+)\]|(?P<name>[^:/@\[\]\s]+))(?::[0-9]*)?")


@functools.lru_cache(maxsize=64)
def host_name(host: str) -> str | None:
    """Return the name in a ``Host`` header, in lower case and without the port; None if there is none."""
    match = _HOST.fullmatch(host.lower())
    return None if match is None else match["address"] or match["name"].removesuffix(".")


#: Length of the queue of connections that wait to be accepted.
BACKLOG = 128

#: After how many seconds a peer that does not respond is disconnected.
_PEER_TIMEOUT_SECONDS = 60

#: TCP options, as far as the platform has them; accepted connections inherit them from their listener.
_SOCKET_OPTIONS = {
    "TCP_KEEPIDLE": _PEER_TIMEOUT_SECONDS // 2,
    "TCP_KEEPINTVL": _PEER_TIMEOUT_SECONDS // 6,
    "TCP_USER_TIMEOUT": _PEER_TIMEOUT_SECONDS * 1000,
}


def open_listener(host: str, port: int, *, prefix: str = "--") -> socket.socket:
    """Open a listening socket; port 0 takes a free one.

    ``prefix`` is the start of the options named in error messages (``--host`` or ``--ops-host``). Raises `ConfigError`
    if the port is in use or the host is not an address of this machine.
    """
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, proto)
    except OSError as error:
        raise ConfigError(f"There is no host {host} ({error.strerror}): choose another with {prefix}host") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _SOCKET_OPTIONS.items():
            if hasattr(socket, name):
                listener.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"Port {port} of {host} cannot be opened ({error.strerror}): choose another with {prefix}port"
        ) from None
    return listener


def url_of(scheme: str, host: str, listener: socket.socket) -> str:
    """Return the base URL of a listening socket, without a slash at its end."""
    shown = f"[{host}]" if ":" in host else host
    return f"{scheme}://{shown}:{listener.getsockname()[1]}"


#: How long requests that were cancelled at the end of the grace period may take to finish, in seconds.
CANCELLED_REQUEST_SECONDS = 2.0


class _UvicornServer(uvicorn.Server):
    """uvicorn without its signal handlers, which belong to the process's main program."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no signal handlers."""
        yield


@contextlib.asynccontextmanager
async def serve_uvicorn(listener: socket.socket, app: ASGIApp, name: str, **options: Any) -> AsyncIterator[None]:
    """Run uvicorn while the context is open; running requests get its configured grace period at the end.

    ``options`` are further ones of `uvicorn.Config`, such as ``timeout_graceful_shutdown`` in seconds.
    """
    # One process, no Server header in responses, and no trust in the X-Forwarded headers of requests.
    config = uvicorn.Config(
        app,
        **{
            "http": "h11",
            "ws": "none",
            "interface": "asgi3",
            "lifespan": "off",
            "log_config": None,
            "access_log": False,
            "server_header": False,
            "proxy_headers": False,
            "workers": 1,
            "backlog": BACKLOG,
            **options,
        },
    )
    server = _UvicornServer(config)
    task = asyncio.get_running_loop().create_task(server.serve(sockets=[listener]), name=name)
    try:
        yield
    finally:
        server.should_exit = True
        await asyncio.wait([task])
        if server.server_state.tasks:
            await asyncio.wait(server.server_state.tasks, timeout=CANCELLED_REQUEST_SECONDS)
        listener.close()
