"""What describes one kind of server, and what a test gets."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar
from urllib.parse import urlsplit

from support.servers.errors import ServerUnavailable
from support.servers.packages import DebianPackages

if TYPE_CHECKING:
    from support.servers.container import Container

AdminT = TypeVar("AdminT")


@dataclass(frozen=True, kw_only=True)
class Server(Generic[AdminT]):
    """A running server. ``how`` says in one line which one it is; ``admin`` stops and starts it, and is None for a
    server that the environment names, because other programs may use it."""

    url: str
    how: str
    admin: AdminT | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerImage:
    """An image, the port that its server listens on, and its environment, in which ``{password}`` is replaced."""

    name: str
    port: int
    environment: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class ServerKind(Generic[AdminT]):
    """One kind of server.

    ``label`` begins the line that reports the choice; ``url_variable`` names a server that runs already, by a URL of
    one of ``schemes``; ``url`` is the URL of a container's server, with ``{address}`` and ``{password}``.

    ``read_version`` takes a URL and returns the version of the server that answers there; it raises `OSError` where
    none answers yet. ``container_admin`` prepares a container whose server answers. ``private_server`` starts the
    program that ``packages`` contain as a server of the test run alone.
    """

    label: str
    product: str
    url_variable: str
    schemes: tuple[str, ...]
    default_port: int
    url: str
    image: ContainerImage
    packages: DebianPackages
    read_version: Callable[[str], str]
    container_admin: Callable[[Container], AdminT]
    private_server: Callable[[Path, Mapping[str, str]], AbstractContextManager[Server[AdminT]]]

    def address(self, url: str) -> str:
        """Return host and port of a URL, without its login. Raises `ValueError` where it is no URL of this kind."""
        parts = urlsplit(url)
        if parts.scheme not in self.schemes:
            raise ValueError(f"the URL of a {self.product} starts with {self.schemes[0]}://")
        try:
            port = parts.port
        except ValueError:
            # The original message shows a part of the URL, which may be a part of the password.
            raise ValueError("the port in the URL is not a number") from None
        return f"{parts.hostname or 'localhost'}:{port or self.default_port}"


def wait_for_version(
    read_version: Callable[[], str], *, timeout_seconds: float, alive: Callable[[], bool] = lambda: True
) -> str:
    """Return the server's version as soon as it answers.

    Raises `ServerUnavailable` when ``alive`` is false before that, or the time is up.
    """
    until = time.monotonic() + timeout_seconds
    while True:
        try:
            return read_version()
        except OSError as error:
            if not alive():
                raise ServerUnavailable("the server ended before it answered") from error
            if time.monotonic() > until:
                raise ServerUnavailable(f"no server answered within {timeout_seconds:g} s: {error}") from error
        time.sleep(0.05)
