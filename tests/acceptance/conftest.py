"""What the acceptance tests stand on: a shell in an empty folder, and one before a gateway."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from quintain.settings import environment
from support.client_tools import cache_folder
from support.command_line import CommandLine, command_line
from support.running_gateway import RunningGateway, run_gateway
from support.servers.errors import ServerUnavailable
from support.servers.nodejs import find_node, npm_package

AGENTV_VERSION = "4.42.4"


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[CommandLine]:
    """A shell in an empty folder, with no broker, no configuration and no key."""
    with command_line(tmp_path) as shell:
        yield shell


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    """A gateway, and a shell that knows it and no broker."""
    with run_gateway(tmp_path_factory.mktemp("gateway")) as gateway:
        yield gateway


@pytest.fixture(scope="session")
def node() -> str:
    """The program ``node``."""
    try:
        return find_node(environment(), print)
    except ServerUnavailable as reason:
        pytest.skip(f"no Node.js: {reason}")


@pytest.fixture(scope="session")
def agentv(node: str) -> Path:
    """AgentV's command, of the version that npm has."""
    variables = environment()
    try:
        return (
            npm_package("agentv", AGENTV_VERSION, variables, print, parent=cache_folder(variables)) / ".bin" / "agentv"
        )
    except ServerUnavailable as reason:
        pytest.skip(f"no AgentV from npm: {reason}")
