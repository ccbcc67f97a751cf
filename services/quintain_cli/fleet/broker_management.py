"""Changes a broker's policies and users through RabbitMQ's management API."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any, NamedTuple
from urllib.parse import quote, unquote, urlsplit

from quintain.bus.broker_url import first_node_url, without_password
from quintain.errors import BrokerUnavailable, BusError, ConfigError

#: The ports of the management API, by the scheme of the broker's URL.
_PORTS = {"amqp": ("http", 15672), "amqps": ("https", 15671)}

#: How long the API may take to answer, in seconds.
TIMEOUT_SECONDS = 10.0

#: The path of the default virtual host in a broker's URL may be empty.
DEFAULT_VHOST = "/"


class _Answer(NamedTuple):
    date: str
    body: bytes


@dataclass(frozen=True, slots=True)
class Management:
    """The management API at this address, with the user of this ``Authorization`` header.

    Every method raises `BusError` if the API refuses, and `BrokerUnavailable` if it cannot be reached.
    """

    address: str
    authorization: str
    vhost: str
    timeout_seconds: float = TIMEOUT_SECONDS

    def put(self, path: str, body: Mapping[str, object]) -> None:
        """Create or replace an object; ``{vhost}`` in the path is the virtual host."""
        self._request("PUT", path, json.dumps(body).encode())

    def get(self, path: str) -> Any:
        """Return an object or a list."""
        return json.loads(self._request("GET", path).body)

    def clock(self) -> float:
        """Return the broker's clock in seconds since the epoch, by the ``Date`` of a response."""
        date = self._request("GET", "overview").date
        try:
            return parsedate_to_datetime(date).timestamp()
        except ValueError:
            raise BusError(f"The management API says no time: Date is {date!r}") from None

    def delete(self, path: str) -> None:
        """Delete an object."""
        self._request("DELETE", path)

    def _request(self, method: str, path: str, body: bytes | None = None) -> _Answer:
        where = f"/api/{path.replace('{vhost}', quote(self.vhost, safe=''))}"
        base = urlsplit(self.address)
        connection_type = HTTPSConnection if base.scheme == "https" else HTTPConnection
        headers = {"authorization": self.authorization, "content-type": "application/json"}
        try:
            with closing(connection_type(base.hostname or "", base.port, timeout=self.timeout_seconds)) as connection:
                connection.request(method, f"{base.path.rstrip('/')}{where}", body, headers)
                response = connection.getresponse()
                answer = _Answer(response.headers.get("date", ""), response.read())
        except (OSError, HTTPException) as error:
            raise BrokerUnavailable(
                f"The management API at {self.address} cannot be reached ({error}): enable the plugin "
                "rabbitmq_management, name its address with --management, or use --print"
            ) from None
        if response.status in {401, 403}:
            raise BusError(
                f"The management API refuses the user of QUINTAIN_BROKER_URL ({response.status}): name one with "
                "the tag administrator"
            )
        if not 200 <= response.status < 300:
            text = answer.body.decode(errors="replace")[:300]
            raise BusError(f"The management API refused {method} {where}: {response.status} {text}")
        return answer


def open_management(broker_url: str, address: str | None, *, timeout_seconds: float = TIMEOUT_SECONDS) -> Management:
    """Return the management API of the broker of this URL, with its user; ``address`` replaces the default one.

    Raises `ConfigError`.
    """
    parts = urlsplit(first_node_url(broker_url))
    if parts.scheme not in _PORTS or parts.hostname is None:
        raise ConfigError(f"QUINTAIN_BROKER_URL is {without_password(broker_url)}, and must be a broker's: amqp://…")
    scheme, port = _PORTS[parts.scheme]
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    address = address or f"{scheme}://{host}:{port}"
    if not _is_address(address):
        raise ConfigError("--management: give an address such as http://HOST:15672, without user and password")
    user = f"{unquote(parts.username or 'guest')}:{unquote(parts.password or 'guest')}"
    authorization = f"Basic {base64.b64encode(user.encode()).decode()}"
    return Management(address, authorization, vhost_of(broker_url), timeout_seconds)


def _is_address(address: str) -> bool:
    try:
        base = urlsplit(address)
        return base.scheme in {"http", "https"} and bool(base.hostname) and base.port != 0 and base.username is None
    except ValueError:
        return False


def vhost_of(broker_url: str) -> str:
    """Return the name of the virtual host of a broker's URL."""
    return unquote(urlsplit(first_node_url(broker_url)).path.removeprefix("/")) or DEFAULT_VHOST
