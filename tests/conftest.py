"""The RabbitMQ and the PostgreSQL that all tests of one pytest process share, and what the report says about them.

Unit tests use none. A server starts before the first test when a selected test has it among its fixtures, so that an
installation or a pull does not count as that test's time; a test that asks for it with ``request.getfixturevalue``
starts it there. Under pytest-xdist each worker process has its own servers: queue names are constants of the protocol,
so one broker serves one fleet at a time.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Generic

import pytest
from hypothesis import settings

from quintain.settings import environment
from support.command_line import command_server
from support.servers.chooser import running_server
from support.servers.container import require_engine
from support.servers.errors import ServerUnavailable
from support.servers.kind import AdminT, Server, ServerKind
from support.servers.postgres import POSTGRES
from support.servers.postgres_admin import PostgresAdmin, PostgresUnderTest
from support.servers.postgres_sql import fresh_database
from support.servers.rabbitmq import RABBITMQ
from support.servers.rabbitmq_admin import BrokerAdmin, BrokerUnderTest
from support.summary import Summary

# ``python`` is this interpreter, as in an activated environment: a version manager's wrapper of that name takes 0.1 s
# of processor time for each program that a test starts.
os.environ["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)))

# Ctrl-C interrupts as at a terminal; a shell that starts the tests in the background has it ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)

#: What hypothesis makes: the same each time in the suite, much more and new under ``--hypothesis-profile=long``.
settings.register_profile("quick", max_examples=50, deadline=None, derandomize=True)
settings.register_profile("long", max_examples=1_000, deadline=None, print_blob=True)
settings.load_profile("quick")


class SharedServer(Generic[AdminT]):
    """A server that starts when it is first asked for; a failure is kept too, and raised again."""

    def __init__(self, kind: ServerKind[AdminT], summary: Summary, stack: contextlib.ExitStack) -> None:
        self._kind, self._summary, self._stack = kind, summary, stack
        self._server: Server[AdminT] | ServerUnavailable | None = None
        self._breakable: Server[AdminT] | None = None

    def get(self) -> Server[AdminT]:
        """Return the server. Raises `ServerUnavailable` where there is none."""
        if self._server is None:
            try:
                self._server = self._start(environment())
            except ServerUnavailable as error:
                self._server = error
        if isinstance(self._server, ServerUnavailable):
            raise self._server
        return self._server

    def get_breakable(self) -> Server[AdminT]:
        """Return a server that a test may stop: the shared one, or another where the environment names the shared."""
        shared = self.get()
        if shared.admin is not None:
            return shared
        if self._breakable is None:
            self._breakable = self._start(environment() | {self._kind.url_variable: ""})
        return self._breakable

    def _start(self, variables: dict[str, str]) -> Server[AdminT]:
        return self._stack.enter_context(running_server(self._kind, variables, self._summary.report))


_BROKER = pytest.StashKey[SharedServer[BrokerAdmin]]()
_POSTGRES = pytest.StashKey[SharedServer[PostgresAdmin]]()


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Summary(config), "quintain-summary")
    if getattr(config.option, "numprocesses", None) and not hasattr(config, "workerinput"):
        command_server()  # before the processes of pytest-xdist, which share it: it imports all packages


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Import the tests without looking for garbage: there is none, and it takes a fifth of the time. Later it is not
    looked for among what was imported, and seldom: at Python's own threshold it takes a tenth of the tests' time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()
        gc.set_threshold(100_000, 20, 100)


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop(session: pytest.Session) -> Iterator[None]:
    stash = session.config.stash
    summary = session.config.pluginmanager.getplugin("quintain-summary")
    with contextlib.ExitStack() as stack:
        broker = stash[_BROKER] = SharedServer(RABBITMQ, summary, stack)
        postgres = stash[_POSTGRES] = SharedServer(POSTGRES, summary, stack)
        fixtures = {name for item in session.items for name in getattr(item, "fixturenames", ())}
        for name, get in {"broker": broker.get, "postgres": postgres.get}.items():
            if name in fixtures and not session.config.option.collectonly:
                with contextlib.suppress(ServerUnavailable):  # each test that asks for it fails with it
                    get()
        return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that need a broker, so that they can be selected for another broker.

    Tests that need Docker may be skipped, where no engine answers, with the reason; besides them only the tests of
    tests/acceptance that need Node.js.
    """
    for item in items:
        if "broker" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.broker)
    for_docker = [item for item in items if item.get_closest_marker("docker")]
    if not for_docker:
        return
    try:
        require_engine(environment())
    except ServerUnavailable as reason:
        for item in for_docker:
            item.add_marker(pytest.mark.skip(reason=f"no Docker engine answers: {reason}"))


@pytest.fixture(scope="session")
def broker(pytestconfig: pytest.Config) -> BrokerUnderTest:
    """A RabbitMQ that all tests share: use other names than they, and leave it running."""
    return pytestconfig.stash[_BROKER].get()


@pytest.fixture(scope="session")
def broker_url(broker: BrokerUnderTest) -> str:
    """The URL of `broker`."""
    return broker.url


@pytest.fixture(scope="session")
def breakable_broker(broker: BrokerUnderTest, pytestconfig: pytest.Config) -> BrokerUnderTest:
    """A RabbitMQ with an ``admin``, for tests that stop it; they start it again before they end."""
    return pytestconfig.stash[_BROKER].get_breakable()


@pytest.fixture(scope="session")
def broker_admin(breakable_broker: BrokerUnderTest) -> BrokerAdmin:
    """The operations that stop and start `breakable_broker`."""
    assert breakable_broker.admin is not None
    return breakable_broker.admin


@pytest.fixture(scope="session")
def postgres(pytestconfig: pytest.Config) -> PostgresUnderTest:
    """A PostgreSQL that all tests share: create your own databases on it, and leave it running."""
    return pytestconfig.stash[_POSTGRES].get()


@pytest.fixture(scope="session")
def postgres_url(postgres: PostgresUnderTest) -> str:
    """The URL of `postgres`, for tests that may share its one database."""
    return postgres.url


@pytest.fixture
def fresh_postgres_url(postgres: PostgresUnderTest) -> Iterator[str]:
    """The URL of a database for this test alone."""
    with fresh_database(postgres.url) as url:
        yield url


@pytest.fixture(scope="session")
def breakable_postgres(postgres: PostgresUnderTest, pytestconfig: pytest.Config) -> PostgresUnderTest:
    """A PostgreSQL with an ``admin``, for tests that stop it; they start it again before they end."""
    return pytestconfig.stash[_POSTGRES].get_breakable()
