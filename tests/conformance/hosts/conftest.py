"""The host that the suite drives, and a driver of each kind (docs/protocol/hosts.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import pytest

from conformance.hosts.checked_host import TAGS, CheckedHost, checked_host
from conformance.hosts.raw_driver import RawDriver
from quintain.remote.factory import RemoteFactory

#: Starts another host, with a folder for what it writes.
StartHost = Callable[[Path], AbstractContextManager[CheckedHost]]

OPTION, WITHOUT = "--host-command", "--without"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(OPTION, help="the host to check: its command line, with {name} for the name that it is to serve")
    parser.addoption(WITHOUT, choices=["reconnects"], help="leave out what a host need not have")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    left_out = config.getoption(WITHOUT, default=None)
    return True if left_out and collection_path.name == f"test_hosts_{left_out}.py" else None


@pytest.fixture(scope="session")
def start_host(pytestconfig: pytest.Config, broker_url: str) -> StartHost:
    command: str | None = pytestconfig.getoption(OPTION, default=None)
    return partial(checked_host, command, broker_url, invoked_in=pytestconfig.invocation_params.dir)


@pytest.fixture(scope="session")
def shared_host(start_host: StartHost, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CheckedHost]:
    with start_host(tmp_path_factory.mktemp("host")) as host:
        yield host


@pytest.fixture
def host(shared_host: CheckedHost) -> Iterator[CheckedHost]:
    """The host, which no test ends."""
    yield shared_host
    shared_host.require_running()


@pytest.fixture
def remote(host: CheckedHost, broker_url: str) -> Iterator[RemoteFactory]:
    """The public driver's way to instances; each is leased when it is created."""
    with RemoteFactory(host.name, url=broker_url, tags=TAGS, prefetch=0) as factory:
        yield factory


@pytest.fixture
def raw(host: CheckedHost, broker_url: str) -> Iterator[RawDriver]:
    """A lease by raw messages."""
    with RawDriver(broker_url, host.name) as driver:
        opened = driver.open()
        assert "descriptor" in opened, opened
        yield driver
