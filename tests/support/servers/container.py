"""Servers in containers, through testcontainers, where a Docker engine answers."""

from __future__ import annotations

import contextlib
import importlib
import secrets
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from support.servers.cleanup import CleanupProcess
from support.servers.commands import run_command
from support.servers.errors import ServerUnavailable
from support.servers.kind import AdminT, Server, ServerKind, wait_for_version
from support.servers.packages import Report
from support.servers.ports import LOOPBACK, free_port

if TYPE_CHECKING:
    from testcontainers.core.container import DockerContainer

_ENGINE_SECONDS = 10.0
_PULL_SECONDS = 300.0
_START_SECONDS = 120.0
_COMMAND_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Container:
    """A started container, and the URL of the server in it."""

    identity: str
    url: str
    environment: Mapping[str, str]

    def execute(self, *words: str) -> str:
        """Return what this program, run in the container, prints."""
        return self._docker("exec", self.identity, *words)

    def stop(self, signal: str) -> None:
        """Send a signal to the container's first process, and wait until the container ended."""
        self._docker("kill", "--signal", signal, self.identity)
        self._docker("wait", self.identity)

    def start(self) -> None:
        """Start the container again, on the same data and the same port."""
        self._docker("start", self.identity)

    def is_running(self) -> bool:
        """Whether the container runs."""
        return self._docker("inspect", "--format", "{{.State.Running}}", self.identity) == "true"

    def last_output(self) -> str:
        """The last lines that the container printed."""
        return self._docker("logs", "--tail", "15", self.identity)

    def _docker(self, *words: str) -> str:
        return run_command(["docker", *words], environment=self.environment, timeout_seconds=_COMMAND_SECONDS)


@contextlib.contextmanager
def container_server(
    kind: ServerKind[AdminT], environment: Mapping[str, str], report: Report
) -> Iterator[Server[AdminT]]:
    """A server in a container, until the block ends. Raises `ServerUnavailable` without an engine or the image, and
    where the server does not answer in time."""
    image = kind.image
    require_engine(environment)
    _require_image(image.name, environment, report)
    password = secrets.token_hex(12)
    port = free_port()  # a port that the engine chooses would change when the container is started again
    docker = _new_container(image.name).with_bind_ports(image.port, port)
    docker.with_envs(**{name: value.format(password=password) for name, value in image.environment.items()})
    # testcontainers would use an image of its own for this, which a machine without a registry does not have.
    cleanup = CleanupProcess('read -r container; cat; docker rm --force --volumes "$container"')
    try:
        identity = _start(docker)
        cleanup.write_line(identity)
        address = f"{_host(docker, port)}:{port}"
        container = Container(identity, kind.url.format(address=address, password=password), environment)
        version = _wait(kind, container)
        how = f"{kind.product} {version}, a container of {image.name} at {address}"
        yield Server(url=container.url, how=how, admin=kind.container_admin(container))
    finally:
        docker.stop()
        cleanup.finish()


def require_engine(environment: Mapping[str, str]) -> str:
    """Return the version of the Docker engine that answers. Raises `ServerUnavailable` where none does."""
    words = ["docker", "version", "--format", "{{.Server.Version}}"]
    return run_command(words, environment=environment, timeout_seconds=_ENGINE_SECONDS)


def _require_image(image: str, environment: Mapping[str, str], report: Report) -> None:
    with contextlib.suppress(ServerUnavailable):
        run_command(["docker", "image", "inspect", image], environment=environment, timeout_seconds=_ENGINE_SECONDS)
        return
    report(f"pulling {image} (at most {_PULL_SECONDS:g} s)")
    run_command(["docker", "pull", "--quiet", image], environment=environment, timeout_seconds=_PULL_SECONDS)


def _new_container(image: str) -> DockerContainer:
    try:
        # Imported here: superred's environment runs tests too, and has no testcontainers.
        importlib.import_module("testcontainers.core.config").testcontainers_config.ryuk_disabled = True
        module = importlib.import_module("testcontainers.core.container")
    except ImportError as error:
        raise ServerUnavailable(f"a container needs the package testcontainers: {error}") from error
    try:
        new: DockerContainer = module.DockerContainer(image)
    except Exception as error:  # the errors of docker, testcontainers and requests have no common base class
        raise ServerUnavailable(f"testcontainers cannot use this Docker engine: {error}") from error
    return new


def _start(docker: DockerContainer) -> str:
    try:
        docker.start()
        return docker.get_container_id()
    except Exception as error:  # the errors of docker, testcontainers and requests have no common base class
        raise ServerUnavailable(f"the container did not start: {error}") from error


def _host(docker: DockerContainer, port: int) -> str:
    """The host on which the container's port is open. testcontainers guesses it wrong on some machines, therefore the
    loopback is tried first."""
    with socket.socket() as probe:
        if probe.connect_ex((LOOPBACK, port)) == 0:
            return LOOPBACK
    return docker.get_container_host_ip()


def _wait(kind: ServerKind[AdminT], container: Container) -> str:
    try:
        return wait_for_version(
            lambda: kind.read_version(container.url), timeout_seconds=_START_SECONDS, alive=container.is_running
        )
    except ServerUnavailable as error:
        raise ServerUnavailable(f"{error}; the container's last output: {container.last_output()}") from error
