"""A socket to listen on, and an error that names the option to mend where it cannot be had."""

from __future__ import annotations

import socket

from quintain.errors import ConfigError

LOOPBACK = "127.0.0.1"

#: Connections that wait to be taken; the kernel lets the next ones knock again.
BACKLOG = 128

#: A client that takes none of its answer, or is silently gone, is given up after so long.
_DEAD_SECONDS = 60

#: As far as this platform has them; accepted connections inherit them from their listener.
_SOCKET_OPTIONS = {
    "TCP_KEEPIDLE": _DEAD_SECONDS // 2,
    "TCP_KEEPINTVL": _DEAD_SECONDS // 6,
    "TCP_USER_TIMEOUT": _DEAD_SECONDS * 1000,
}


def listening_at(host: str, port: int, *, prefix: str = "--") -> socket.socket:
    """A socket that listens there; port 0 takes a free one. ``prefix`` begins the options that name host and port.

    Raises `ConfigError` where the port is taken or the host is not ours.
    """
    try:
        family, kind, proto, _, where = socket.getaddrinfo(
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
        listener.bind(where)
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
