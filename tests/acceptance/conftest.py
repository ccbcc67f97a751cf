"""What the acceptance tests stand on: a shell in an empty folder, and one before a gateway."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.command_line import CommandLine, command_line
from support.node import agentv_or_skip, node_or_skip
from support.running_gateway import RunningGateway, run_gateway


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
    return node_or_skip(print)


@pytest.fixture(scope="session")
def agentv() -> Path:
    """AgentV's command, of the version that npm has."""
    return agentv_or_skip(print)
