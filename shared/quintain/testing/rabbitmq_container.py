"""A RabbitMQ in a container, through testcontainers, where a Docker engine answers."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from quintain.errors import BrokerUnavailable
from quintain.testing.commands import run_command
from quintain.testing.containers import new_container, removal, require_engine, require_image
from quintain.testing.handshake import Address, wait_for_version
from quintain.testing.under_test import BrokerAdmin, BrokerUnderTest
from quintain.testing.watcher import Watcher

if TYPE_CHECKING:
    from testcontainers.core.container import DockerContainer

IMAGE = "rabbitmq:4-management"

_START_SECONDS = 120.0
_CONTROL_SECONDS = 60.0
_AMQP_PORT = 5672
_LOGIN = "quintain"


@contextlib.contextmanager
def container(environment: Mapping[str, str], say: Callable[[str], None]) -> Iterator[BrokerUnderTest]:
    """A container of `IMAGE`, until left. Raises `QuintainError` without an engine, an image, an answer."""
    require_engine(environment)
    require_image(IMAGE, environment, say)
    started = new_container(IMAGE).with_exposed_ports(_AMQP_PORT)
    started.with_envs(RABBITMQ_DEFAULT_USER=_LOGIN, RABBITMQ_DEFAULT_PASS=_LOGIN)
    watcher = removal()
    try:
        yield _under_test(started, watcher, environment)
    finally:
        started.stop()
        watcher.finish()


def _under_test(started: DockerContainer, watcher: Watcher, environment: Mapping[str, str]) -> BrokerUnderTest:
    try:
        started.start()
        identity = started.get_container_id()
        watcher.tell(identity)
        address = _address(started)
    except Exception as error:  # the errors of docker, testcontainers and requests have no common root
        raise BrokerUnavailable(f"the container did not start: {error}") from error

    def docker(*arguments: str) -> str:
        return run_command(["docker", *arguments], environment=environment, timeout_seconds=_CONTROL_SECONDS)

    try:
        version = wait_for_version(address, timeout_seconds=_START_SECONDS, alive=lambda: _is_running(started))
    except BrokerUnavailable as error:
        last_words = docker("logs", "--tail", "15", identity)
        raise BrokerUnavailable(f"{error}; the container's last words: {last_words}") from error
    return BrokerUnderTest(
        url=f"amqp://{_LOGIN}:{_LOGIN}@{address}/",
        how=f"RabbitMQ {version}, a container of {IMAGE} at {address}",
        admin=BrokerAdmin(
            address=address, control=lambda words: docker("exec", identity, "rabbitmqctl", "--quiet", *words)
        ),
    )


def _address(started: DockerContainer) -> Address:
    """Where the container's port is from here.

    testcontainers guesses, and takes a machine that was itself made from an image for a container within this
    engine. A port that is open on the loopback is no guess.
    """
    mapped = int(started.get_docker_client().port(started.get_container_id(), _AMQP_PORT))
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", mapped)) == 0:
            return Address("127.0.0.1", mapped)
    return Address(started.get_container_host_ip(), started.get_exposed_port(_AMQP_PORT))


def _is_running(started: DockerContainer) -> bool:
    wrapped = started.get_wrapped_container()
    wrapped.reload()
    return bool(wrapped.status == "running")
