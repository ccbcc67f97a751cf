"""The one broker and the one PostgreSQL that all tests share, and what the report says about them.

Unit tests ask for none. A server starts before the first test when a selected test has it among its fixtures, so
that an installation or a pull does not run on that test's time; asked for by name in the middle of a test
(``request.getfixturevalue``), it starts there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Generic, Protocol, TypeVar

import pytest
from hypothesis import settings

from quintain.errors import QuintainError
from quintain.settings import environment
from quintain.testing.broker import BrokerAdmin, BrokerUnderTest, find_broker
from quintain.testing.containers import require_engine
from quintain.testing.postgres import PostgresUnderTest, find_postgres

#: What hypothesis makes: the same each time in the suite, much more and new under ``--hypothesis-profile=long``.
settings.register_profile("quick", max_examples=100, deadline=None, derandomize=True)
settings.register_profile("long", max_examples=1_000, deadline=None, print_blob=True)
settings.load_profile("quick")


class Server(Protocol):
    """What tests are given; without an ``admin`` it is not ours to stop."""

    @property
    def admin(self) -> object | None: ...


Found = TypeVar("Found", bound=Server)
Find = Callable[[Mapping[str, str], Callable[[str], None]], AbstractContextManager[Found]]


class Shared(Generic[Found]):
    """A server, started once, when first asked for; a failure is remembered too."""

    def __init__(self, find: Find[Found], url_variable: str, said: Said, stack: contextlib.ExitStack) -> None:
        self._find, self._url_variable, self._said, self._stack = find, url_variable, said, stack
        self._server: Found | QuintainError | None = None
        self._breakable: Found | None = None

    def get(self) -> Found:
        """The server. Raises the error that finding one ended with, for every test that asks."""
        if self._server is None:
            try:
                self._server = self._stack.enter_context(self._find(environment(), self._said.say))
            except QuintainError as error:
                self._server = error
        if isinstance(self._server, QuintainError):
            raise self._server
        return self._server

    def get_breakable(self) -> Found:
        """A server that a test may stop: the shared one, or one of our own where that was named to us."""
        shared = self.get()
        if shared.admin is not None:
            return shared
        if self._breakable is None:
            without_name = environment() | {self._url_variable: ""}
            self._breakable = self._stack.enter_context(self._find(without_name, self._said.say))
        return self._breakable


class Said:
    """What was said of the servers, at once and again at the end."""

    def __init__(self, terminal: pytest.TerminalReporter | None) -> None:
        self.lines: list[str] = []
        self._terminal = terminal

    def say(self, line: str) -> None:
        self.lines.append(line)
        if self._terminal is not None:
            self._terminal.ensure_newline()
            self._terminal.write_line(line)


_SAID = pytest.StashKey[Said]()
_BROKER = pytest.StashKey[Shared[BrokerUnderTest]]()
_POSTGRES = pytest.StashKey[Shared[PostgresUnderTest]]()


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop(session: pytest.Session) -> Iterator[None]:
    stash = session.config.stash
    said = stash[_SAID] = Said(session.config.pluginmanager.getplugin("terminalreporter"))
    with contextlib.ExitStack() as stack:
        broker = stash[_BROKER] = Shared(find_broker, "QUINTAIN_TEST_BROKER_URL", said, stack)
        postgres = stash[_POSTGRES] = Shared(find_postgres, "QUINTAIN_TEST_POSTGRES_URL", said, stack)
        wanted = {name for item in session.items for name in getattr(item, "fixturenames", ())}
        for name, get in {"broker": broker.get, "postgres": postgres.get}.items():
            if name in wanted and not session.config.option.collectonly:
                with contextlib.suppress(QuintainError):  # each test that asks for it fails with it
                    get()
        return (yield)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    said = terminalreporter.config.stash.get(_SAID, None)
    for line in said.lines if said else ():
        terminalreporter.write_line(line)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs a broker, so that it can be run again on another one. Tests that need Docker may
    be skipped, where no engine answers, with its reason; beside them only those of support/node.py."""
    for item in items:
        if "broker" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.broker)
    for_docker = [item for item in items if item.get_closest_marker("docker")]
    if not for_docker:
        return
    try:
        require_engine(environment())
    except QuintainError as reason:
        for item in for_docker:
            item.add_marker(pytest.mark.skip(reason=f"no Docker engine answers: {reason}"))


@pytest.fixture(scope="session")
def broker(pytestconfig: pytest.Config) -> BrokerUnderTest:
    """A real RabbitMQ, shared by all tests: use names of your own on it, and leave it running."""
    return pytestconfig.stash[_BROKER].get()


@pytest.fixture(scope="session")
def broker_url(broker: BrokerUnderTest) -> str:
    """The URL of `broker`."""
    return broker.url


@pytest.fixture(scope="session")
def breakable_broker(broker: BrokerUnderTest, pytestconfig: pytest.Config) -> BrokerUnderTest:
    """A real RabbitMQ with an ``admin``, for tests that stop it; they start it again before they end."""
    return pytestconfig.stash[_BROKER].get_breakable()


@pytest.fixture(scope="session")
def broker_admin(breakable_broker: BrokerUnderTest) -> BrokerAdmin:
    """The switch of `breakable_broker`."""
    assert breakable_broker.admin is not None
    return breakable_broker.admin


@pytest.fixture(scope="session")
def postgres(pytestconfig: pytest.Config) -> PostgresUnderTest:
    """A real PostgreSQL, shared by all tests: make databases of your own on it, and leave it running."""
    return pytestconfig.stash[_POSTGRES].get()


@pytest.fixture(scope="session")
def postgres_url(postgres: PostgresUnderTest) -> str:
    """The URL of `postgres`, for whoever may share its one database."""
    return postgres.url


@pytest.fixture
def fresh_postgres_url(postgres: PostgresUnderTest) -> Iterator[str]:
    """The URL of a database that is this test's alone."""
    with postgres.fresh_database() as url:
        yield url


@pytest.fixture(scope="session")
def breakable_postgres(postgres: PostgresUnderTest, pytestconfig: pytest.Config) -> PostgresUnderTest:
    """A real PostgreSQL with an ``admin``, for tests that stop it; they start it again before they end."""
    return pytestconfig.stash[_POSTGRES].get_breakable()
