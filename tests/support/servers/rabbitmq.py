"""RabbitMQ as a kind of server."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from support.servers.amqp_handshake import read_version
from support.servers.container import Container
from support.servers.kind import ContainerImage, ServerKind
from support.servers.packages import DebianPackages
from support.servers.rabbitmq_admin import BrokerAdmin
from support.servers.rabbitmq_node import private_node

#: Where packages put the real scripts; Debian puts only wrappers on the PATH.
_PACKAGED = ("/usr/lib/rabbitmq/bin", "/usr/lib/rabbitmq/lib/*/sbin")

_LOGIN = "quintain"


def find_rabbitmq_server(environment: Mapping[str, str], packaged: Sequence[str] = _PACKAGED) -> Path | None:
    """Return the real ``rabbitmq-server`` script, or None.

    The real script has ``rabbitmq-env`` beside it. Never the wrapper of Debian's package: it turns root into the user
    ``rabbitmq``, refuses all other users, and works in the folders of the packaged node.
    """
    folders = [Path(folder) for folder in environment.get("PATH", "").split(os.pathsep) if folder]
    for pattern in packaged:
        folders += sorted(Path("/").glob(pattern.lstrip("/")), reverse=True)
    for folder in folders:
        script = (folder / "rabbitmq-server").resolve()
        # A link on the PATH may lead to the wrapper, which has another name.
        if script.name == "rabbitmq-server" and script.with_name("rabbitmq-env").is_file() and script.is_file():
            return script
    return None


def _container_admin(container: Container) -> BrokerAdmin:
    return BrokerAdmin(
        url=container.url, run_erlang=lambda program: container.execute("rabbitmqctl", "--quiet", "eval", program)
    )


RABBITMQ = ServerKind(
    label="broker",
    product="RabbitMQ",
    url_variable="QUINTAIN_TEST_BROKER_URL",
    schemes=("amqp", "amqps"),
    default_port=5672,
    url=f"amqp://{_LOGIN}:{{password}}@{{address}}/",
    image=ContainerImage(
        name="rabbitmq:4-management",
        port=5672,
        environment={"RABBITMQ_DEFAULT_USER": _LOGIN, "RABBITMQ_DEFAULT_PASS": "{password}"},
    ),
    packages=DebianPackages(("rabbitmq-server",), find_rabbitmq_server),
    read_version=read_version,
    container_admin=_container_admin,
    private_server=private_node,
)
