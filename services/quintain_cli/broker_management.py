"""RabbitMQ's management API, and the limits and permissions that `quintain broker add-user` sets with it.

They are read from ``deploy/rabbitmq/definitions.json``, which is a part of this package.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from importlib import resources
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote, urlsplit

from quintain.errors import BrokerUnavailable, BusError, ConfigError
from quintain.settings import first_node_url, without_password

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


#: The users, permissions, policies and limits of a broker: the file with which Compose starts one.
_DEFINITIONS: Final = json.loads(resources.files("quintain_cli").joinpath("definitions.json").read_text("utf-8"))

#: The most connections and channels of each user.
USER_LIMITS: Final[Mapping[str, int]] = _DEFINITIONS["users"][0]["limits"]

#: The permissions of each role: regular expressions of the names that it may declare and delete, write to, and read.
ROLES: Final[Mapping[str, Mapping[str, str]]] = {
    each["user"]: {right: each[right] for right in ("configure", "write", "read")}
    for each in _DEFINITIONS["permissions"]
}

#: What the names of a user may consist of: they become part of regular expressions and of queues' names.
_USER_NAME = re.compile(r"[a-z][a-z0-9_-]{0,62}")

#: The names of targets that ``only`` may list.
_TARGET_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")

#: The roles that consume targets' queues, and the word of those queues' names before the target's.
_QUEUE_WORDS: Final = {"worker": "target", "host": "host"}


def user_permissions(role: str, name: str, only: Sequence[str] = ()) -> dict[str, str]:
    """Return the permissions of a user of this role, whose queues for replies have its own name.

    ``only`` narrows a worker to the queues of these targets, and a host to the targets of these names. Raises
    `ConfigError`.

        user_permissions("evaluator", "evaluator-alice")["read"]
    """
    if role not in ROLES:
        raise ConfigError(f"--role {role}: there is no such role; the roles are {', '.join(ROLES)}")
    if not _USER_NAME.fullmatch(name):
        raise ConfigError(f"{name!r} cannot be a user: use lower-case letters, digits, - and _, a letter first")
    if only and role not in _QUEUE_WORDS:
        raise ConfigError(f"--only: a user of the role {role} has no queues of targets; leave it out")
    if unfit := [each for each in only if not _TARGET_NAME.fullmatch(each)]:
        raise ConfigError(f"--only {unfit[0]!r}: it is no name of a target")
    return {
        right: _narrowed(role, re.sub(rf"(reply\(?\\.){role}\b", rf"\g<1>{name}", expression), only)
        for right, expression in ROLES[role].items()
    }


def _narrowed(role: str, expression: str, only: Sequence[str]) -> str:
    """The expression with the queues of these targets in place of all targets'."""
    if not only:
        return expression
    word = _QUEUE_WORDS[role]
    names = "|".join(re.escape(each) for each in only)
    beginning, _, own = expression.rpartition("(")
    kinds, _, end = own.partition(r")\..+")
    words = kinds.split("|")
    if word not in words:
        return expression
    others = "|".join(each for each in words if each != word)
    backlogs = "(/backlog)?" if role == "worker" else ""
    return rf"{beginning}({others})\..+{end}".removesuffix(")$") + rf"|{word}\.({names}){backlogs})$"
