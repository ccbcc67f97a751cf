"""The one broker that all tests share, and what the report says about it.

Unit tests ask for none. The broker starts before the first test when a selected test has `broker` among its
fixtures, so that an installation or a pull does not run on that test's time; asked for by name in the middle
of a test (``request.getfixturevalue``), it starts there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from quintain.errors import QuintainError
from quintain.settings import environment
from quintain.testing.broker import BrokerAdmin, BrokerUnderTest, find_broker
from quintain.testing.rabbitmq_container import require_engine


class SharedBroker:
    """Started once, when first asked for; a failure is remembered too."""

    def __init__(self, terminal: pytest.TerminalReporter | None, stack: contextlib.ExitStack) -> None:
        self.said: list[str] = []
        self._terminal = terminal
        self._stack = stack
        self._broker: BrokerUnderTest | QuintainError | None = None
        self._breakable: BrokerUnderTest | None = None

    def get(self) -> BrokerUnderTest:
        """The broker. Raises the error that finding one ended with, for every test that asks."""
        if self._broker is None:
            try:
                self._broker = self._stack.enter_context(find_broker(environment(), self._say))
            except QuintainError as error:
                self._broker = error
        if isinstance(self._broker, QuintainError):
            raise self._broker
        return self._broker

    def get_breakable(self) -> BrokerUnderTest:
        """A broker that a test may stop: the shared one, or one of our own where that was named to us."""
        if self.get().admin is not None:
            return self.get()
        if self._breakable is None:
            without_name = environment() | {"QUINTAIN_TEST_BROKER_URL": ""}
            self._breakable = self._stack.enter_context(find_broker(without_name, self._say))
        return self._breakable

    def _say(self, line: str) -> None:
        self.said.append(line)
        if self._terminal is not None:
            self._terminal.ensure_newline()
            self._terminal.write_line(line)


_SHARED = pytest.StashKey[SharedBroker]()


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop(session: pytest.Session) -> Iterator[None]:
    terminal = session.config.pluginmanager.getplugin("terminalreporter")
    with contextlib.ExitStack() as stack:
        shared = session.config.stash[_SHARED] = SharedBroker(terminal, stack)
        wanted = any("broker" in getattr(item, "fixturenames", ()) for item in session.items)
        if wanted and not session.config.option.collectonly:
            with contextlib.suppress(QuintainError):  # each test that asks for it fails with it
                shared.get()
        return (yield)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    shared = terminalreporter.config.stash.get(_SHARED, None)
    for line in shared.said if shared else ():
        terminalreporter.write_line(line)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that need Docker are the only ones that may be skipped: where no engine answers, with its reason."""
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
    return pytestconfig.stash[_SHARED].get()


@pytest.fixture(scope="session")
def broker_url(broker: BrokerUnderTest) -> str:
    """The URL of `broker`."""
    return broker.url


@pytest.fixture(scope="session")
def breakable_broker(broker: BrokerUnderTest, pytestconfig: pytest.Config) -> BrokerUnderTest:
    """A real RabbitMQ with an ``admin``, for tests that stop it; they start it again before they end."""
    return pytestconfig.stash[_SHARED].get_breakable()


@pytest.fixture(scope="session")
def broker_admin(breakable_broker: BrokerUnderTest) -> BrokerAdmin:
    """The switch of `breakable_broker`."""
    assert breakable_broker.admin is not None
    return breakable_broker.admin
