"""A PostgreSQL in a container, through testcontainers, where a Docker engine answers."""

from __future__ import annotations

import contextlib
import secrets
import socket
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from quintain.errors import QuintainError
from quintain.testing.commands import run_command
from quintain.testing.containers import new_container, removal, require_engine, require_image
from quintain.testing.ports import LOOPBACK, free_port
from quintain.testing.postgres_under_test import PostgresAdmin, PostgresUnderTest, run_sql, wait_for_version
from quintain.testing.watcher import Watcher

if TYPE_CHECKING:
    from testcontainers.core.container import DockerContainer

IMAGE = "postgres:17"

_START_SECONDS = 120.0
_CONTROL_SECONDS = 60.0
_PORT = 5432
_LOGIN = "quintain"


@contextlib.contextmanager
def container(environment: Mapping[str, str], say: Callable[[str], None]) -> Iterator[PostgresUnderTest]:
    """A container of `IMAGE`, until left. Raises `QuintainError` without an engine, an image, an answer."""
    require_engine(environment)
    require_image(IMAGE, environment, say)
    password = secrets.token_urlsafe(12)
    port = free_port()
    # A port that we choose: one that the engine chooses is another one after a crash.
    started = new_container(IMAGE).with_bind_ports(_PORT, port)
    started.with_envs(POSTGRES_USER=_LOGIN, POSTGRES_PASSWORD=password, POSTGRES_DB="postgres")
    watcher = removal()
    try:
        identity = _start(started, watcher)
        url = f"postgresql://{_LOGIN}:{password}@{_host_of(started, port)}:{port}/postgres"
        yield _under_test(url, identity, environment)
    finally:
        started.stop()
        watcher.finish()


def _start(started: DockerContainer, watcher: Watcher) -> str:
    try:
        started.start()
        identity = started.get_container_id()
    except Exception as error:  # the errors of docker, testcontainers and requests have no common root
        raise QuintainError(f"the container did not start: {error}") from error
    watcher.tell(identity)
    return identity


def _under_test(url: str, identity: str, environment: Mapping[str, str]) -> PostgresUnderTest:
    def docker(*arguments: str) -> str:
        return run_command(["docker", *arguments], environment=environment, timeout_seconds=_CONTROL_SECONDS)

    def runs() -> bool:
        return docker("inspect", "--format", "{{.State.Running}}", identity) == "true"

    def ended_by(signal: str) -> Callable[[], None]:
        def end() -> None:
            docker("kill", "--signal", signal, identity)
            docker("wait", identity)

        return end

    def start() -> None:
        docker("start", identity)
        wait_for_version(url, timeout_seconds=_START_SECONDS, alive=runs)

    try:
        version = wait_for_version(url, timeout_seconds=_START_SECONDS, alive=runs)
    except QuintainError as error:
        last_words = docker("logs", "--tail", "5", identity)
        raise QuintainError(f"{error}; the container's last words: {last_words}") from error
    # Durability is PostgreSQL's own promise, not ours to test: a crash of the server alone loses nothing without it.
    run_sql(url, "ALTER SYSTEM SET fsync = off")
    run_sql(url, "SELECT pg_reload_conf()")
    address = url.rpartition("@")[2].partition("/")[0]
    return PostgresUnderTest(
        url=url,
        how=f"PostgreSQL {version}, a container of {IMAGE} at {address}",
        admin=PostgresAdmin(crash=ended_by("QUIT"), stop=ended_by("INT"), kill=ended_by("KILL"), start=start),
    )


def _host_of(started: DockerContainer, port: int) -> str:
    """Where the engine's ports are from here: a port that is open on the loopback is no guess."""
    with socket.socket() as probe:
        if probe.connect_ex((LOOPBACK, port)) == 0:
            return LOOPBACK
    return started.get_container_host_ip()
