"""Changes a broker's policies and users through RabbitMQ's management API."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import httpx2

from quintain.bus.broker_url import first_node_url, without_password
from quintain.errors import BusError, ConfigError

#: The ports of the management API, by the scheme of the broker's URL.
_PORTS = {"amqp": ("http", 15672), "amqps": ("https", 15671)}

_TIMEOUT_SECONDS = 10.0

#: The path of the default virtual host in a broker's URL may be empty.
_DEFAULT_VHOST = "/"


@dataclass(frozen=True, slots=True)
class Management:
    """The management API of one broker. Every method raises `BusError` if the API refuses or cannot be reached."""

    client: httpx2.Client
    vhost: str

    def put(self, path: str, body: Mapping[str, object]) -> None:
        """Create or replace an object; ``{vhost}`` in the path is the virtual host."""
        self._request("PUT", path, body)

    def get(self, path: str) -> Any:
        """Return an object or a list."""
        return self._request("GET", path).json()

    def clock(self) -> float:
        """Return the broker's clock in seconds since the epoch, by the ``Date`` of a response."""
        date = self._request("GET", "overview").headers.get("date", "")
        try:
            return parsedate_to_datetime(date).timestamp()
        except ValueError:
            raise BusError(f"The management API says no time: Date is {date!r}") from None

    def delete(self, path: str) -> None:
        """Delete an object."""
        self._request("DELETE", path)

    def _request(self, method: str, path: str, body: Mapping[str, object] | None = None) -> httpx2.Response:
        where = f"/api/{path.replace('{vhost}', quote(self.vhost, safe=''))}"
        try:
            response = self.client.request(method, where, json=body)
        except httpx2.HTTPError as error:
            raise BusError(
                f"The management API at {self.client.base_url} cannot be reached ({error}): enable the plugin "
                "rabbitmq_management, name its address with --management, or use --print"
            ) from None
        if response.status_code in {401, 403}:
            raise BusError(
                f"The management API refuses the user of QUINTAIN_BROKER_URL ({response.status_code}): name one with "
                "the tag administrator"
            )
        if response.is_error:
            raise BusError(f"The management API refused {method} {where}: {response.status_code} {response.text[:300]}")
        return response


def open_management(broker_url: str, address: str | None) -> Management:
    """Open the management API of the broker of this URL, with its user; ``address`` replaces the default one.

    Raises `ConfigError`.
    """
    parts = urlsplit(first_node_url(broker_url))
    if parts.scheme not in _PORTS or parts.hostname is None:
        raise ConfigError(f"QUINTAIN_BROKER_URL is {without_password(broker_url)}, and must be a broker's: amqp://…")
    scheme, port = _PORTS[parts.scheme]
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    auth = (unquote(parts.username or "guest"), unquote(parts.password or "guest"))
    client = httpx2.Client(
        base_url=address or f"{scheme}://{host}:{port}", auth=auth, timeout=_TIMEOUT_SECONDS, trust_env=False
    )
    return Management(client, unquote(parts.path.removeprefix("/")) or _DEFAULT_VHOST)
