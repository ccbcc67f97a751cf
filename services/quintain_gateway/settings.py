"""The settings of a gateway: the address that it binds, with its TLS, and its limits."""

from __future__ import annotations

import ipaddress
import ssl
from dataclasses import dataclass
from pathlib import Path

from quintain.contracts.message import DEFAULT_REQUEST_BYTES
from quintain.errors import ConfigError
from quintain.runtime.http_server import LOOPBACK

#: The names that every machine has for itself, and those that Docker and Podman give it in containers. No page can be
#: served under the latter: ``.internal`` is reserved for private networks, and the public DNS has no such name.
_LOOPBACK_NAMES = (LOOPBACK, "localhost", "::1", "host.docker.internal", "host.containers.internal")


@dataclass(frozen=True, slots=True, kw_only=True)
class BindAddress:
    """The host and port to listen on, and the PEM files for TLS.

    Port 0 takes a free port. ``allow_plain_http`` permits an address beyond loopback without TLS. ``allowed_hosts`` are
    names under which clients reach this address, beside its own.
    """

    host: str = LOOPBACK
    port: int = 0
    tls_cert: Path | None = None
    tls_key: Path | None = None
    allow_plain_http: bool = False
    allowed_hosts: tuple[str, ...] = ()

    def ssl_context(self) -> ssl.SSLContext | None:
        """Return the TLS context, or None for plain HTTP.

        Raises `ConfigError` if a file cannot be used, or if tokens would cross a network unencrypted.
        """
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ConfigError("TLS needs both --tls-cert and --tls-key: PEM files, the certificate with its chain")
        if self.tls_cert is None or self.tls_key is None:
            if not _is_loopback(self.host) and not self.allow_plain_http:
                raise ConfigError(
                    f"{self.host} can be reached from other machines, and tokens would be sent unencrypted: "
                    "give --tls-cert and --tls-key, or --insecure-plain-http if a proxy in front of it does TLS"
                )
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self.tls_cert, self.tls_key, password=_refuse_password)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"--tls-cert {self.tls_cert} with --tls-key {self.tls_key} cannot be used ({error}): both are PEM "
                "files, the key without a password and made for this certificate"
            ) from None
        return context

    def host_names(self) -> frozenset[str] | None:
        """Return the names that requests may have as their ``Host``; None for any, beyond loopback without a list."""
        if not _is_loopback(self.host) and not self.allowed_hosts:
            return None
        return frozenset(name.lower() for name in (*_LOOPBACK_NAMES, self.host, *self.allowed_hosts))


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _refuse_password() -> str:
    raise ValueError("the key has a password")


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayLimits:
    """The limits of a gateway. With the defaults, one process holds at most about 1.5 GiB of request bodies."""

    #: Maximum size of a request body, in bytes, unless its session was opened with a larger one.
    max_body_bytes: int = DEFAULT_REQUEST_BYTES
    #: Maximum size of all larger bodies together, in bytes; a request for which no room is left is answered with 503.
    max_large_bodies_bytes: int = 512 * 1024 * 1024
    #: Maximum size of the request line and headers together, in bytes.
    max_header_bytes: int = 16 * 1024
    #: Maximum number of open connections; a further one is answered with 503 and closed.
    max_connections: int = 1000
    #: Maximum number of requests that one session makes at once; a further one is answered with 503.
    max_session_requests: int = 500
    #: Timeout from the first byte of a request (or from the connection's opening) to the end of the headers.
    header_timeout_seconds: float = 10.0
    #: Timeout from the headers to the end of the body.
    body_timeout_seconds: float = 30.0
    #: How long a stream waits for its first text before status 200 is sent, and the interval of keep-alive bytes after
    #: that; proxies often close connections that idle for a minute.
    keep_alive_seconds: float = 15.0
    #: How long a whole answer holds the status line; then it is 504. Node's fetch gives up at 300 s.
    answer_seconds: float = 280.0
    #: Send status 200 after ``keep_alive_seconds`` for whole answers too, and newlines until the body.
    early_status: bool = False
    #: How long a call goes on after a client that retries has disconnected; their retries come within 8 s.
    retry_window_seconds: float = 10.0
    #: Timeout for a connection without a request.
    idle_timeout_seconds: int = 30
    #: How long running requests may take after the gateway was told to stop.
    grace_seconds: float = 5.0
