"""The address that a gateway binds: loopback, unless TLS is configured or plain HTTP is explicitly allowed."""

from __future__ import annotations

import ipaddress
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path

from quintain.errors import ConfigError
from quintain.runtime.http_server import LOOPBACK, open_listener, url_of


@dataclass(frozen=True, slots=True, kw_only=True)
class BindAddress:
    """A host and a port to listen on; port 0 takes a free one. ``allow_plain_http`` insists on no TLS beyond
    loopback."""

    host: str = LOOPBACK
    port: int = 0
    tls_cert: Path | None = None
    tls_key: Path | None = None
    allow_plain_http: bool = False

    def ssl_context(self) -> ssl.SSLContext | None:
        """What encrypts, or None. Raises `ConfigError` where tokens would go over a network in the clear."""
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ConfigError("TLS takes both --tls-cert and --tls-key: PEM files, the certificate with its chain")
        if self.tls_cert is None or self.tls_key is None:
            if not _is_loopback(self.host) and not self.allow_plain_http:
                raise ConfigError(
                    f"{self.host} can be reached from other machines, and tokens would go there in the clear: "
                    "give --tls-cert and --tls-key, or --insecure-plain-http where something before it encrypts"
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

    def open_socket(self) -> socket.socket:
        """A socket that listens there. Raises `ConfigError` where the port is taken or the host is not ours."""
        return open_listener(self.host, self.port)

    def url(self, listener: socket.socket) -> str:
        """The base URL of this address on that socket, without a slash at its end."""
        return url_of("http" if self.tls_cert is None else "https", self.host, listener)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _refuse_password() -> str:
    raise ValueError("the key has a password")
