"""Opens a listening socket, and runs uvicorn on it inside a process that owns its own signal handlers."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator

import uvicorn

from quintain.errors import ConfigError

LOOPBACK = "127.0.0.1"

#: Connections that wait to be taken; the kernel lets the next ones knock again.
BACKLOG = 128

#: A client that takes none of its answer, or is silently gone, is given up after so long.
_PEER_TIMEOUT_SECONDS = 60

#: As far as this platform has them; accepted connections inherit them from their listener.
_SOCKET_OPTIONS = {
    "TCP_KEEPIDLE": _PEER_TIMEOUT_SECONDS // 2,
    "TCP_KEEPINTVL": _PEER_TIMEOUT_SECONDS // 6,
    "TCP_USER_TIMEOUT": _PEER_TIMEOUT_SECONDS * 1000,
}


def open_listener(host: str, port: int, *, prefix: str = "--") -> socket.socket:
    """A socket that listens there; port 0 takes a free one. ``prefix`` begins the options that name host and port.

    Raises `ConfigError` where the port is taken or the host is not ours.
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
    """The base URL of this host on that socket, without a slash at its end."""
    shown = f"[{host}]" if ":" in host else host
    return f"{scheme}://{shown}:{listener.getsockname()[1]}"


#: What was cut off when the grace was over gets so long for its last word.
CANCELLED_REQUEST_SECONDS = 2.0


class _UvicornServer(uvicorn.Server):
    """uvicorn without its hands on the process's signals: who composes the process owns them."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.asynccontextmanager
async def serve_uvicorn(listener: socket.socket, config: uvicorn.Config, name: str) -> AsyncIterator[None]:
    """Serve while inside. Afterwards nothing new is taken, and what runs is answered within the configured grace."""
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
