"""A pytest plugin for superred's own suite: every Controller's target sits behind RabbitMQ.

Used with ``-p remote_plugin`` on superred's source distribution; no test of theirs is edited. With ``--host thread``
one host serves all Controllers from a thread of the test process, so that what their tests read off a target's
Python object can still be read. With ``--host process`` each Controller's host is a process of its own: a fork, so
that classes made inside a test are there.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import pytest
from superred.core.controller import Controller
from superred.core.types.event import Event, EventResponse
from superred.core.types.security_domain import SecurityDomainTag

from quintain.bus.connect import connect_bus
from quintain.remote.connection_thread import ConnectionThread, open_connection_thread
from quintain.remote.factory import RemoteFactory
from quintain.remote.target import RemoteTarget
from quintain.rpc.server import delete_queues
from quintain.superred import HostedTarget, RemoteTargetFactory
from quintain.target.tag_registry import TagRegistry
from quintain.target.type_registry import superred_types
from quintain.topology import host_topology
from quintain_host.host import Host
from support.thread_host import Create, ThreadHost

#: More than any of their tests has at once.
SLOTS = 8


class Hosts(Protocol):
    """Where the targets of a Controller's factory live."""

    def serve(self, create: Create, concurrency: int) -> tuple[str, Callable[[Create], Create]]:
        """The name they are leased under, and what the remote `create` is wrapped in."""

    def end_test(self) -> None: ...
    def close(self) -> None: ...


class ThreadHosts:
    """One host for all, on a thread of this process."""

    def __init__(self, url: str) -> None:
        self._host = ThreadHost(url, SLOTS)

    def serve(self, create: Create, concurrency: int) -> tuple[str, Callable[[Create], Create]]:
        assert concurrency <= SLOTS
        return self._host.name, lambda remote_create: lambda: self._host.lease_from(create, remote_create)

    def end_test(self) -> None:
        """Nothing: the leases of a Controller end with its tasks."""

    def close(self) -> None:
        self._host.close()


class ProcessHosts:
    """A process for each Controller's host."""

    def __init__(self, url: str, connection: ConnectionThread) -> None:
        self._url, self._connection = url, connection
        self._made = 0
        self._running: dict[int, str] = {}

    def serve(self, create: Create, concurrency: int) -> tuple[str, Callable[[Create], Create]]:
        self._made += 1
        name = f"suite.{os.getpid()}.{self._made}"
        child = os.fork()
        if child == 0:
            try:
                asyncio.run(serve_until_killed(self._url, name, create, concurrency))
            finally:
                os._exit(0)
        self._running[child] = name
        return name, lambda remote_create: remote_create

    def end_test(self) -> None:
        for child, name in self._running.items():
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            self._connection.run_blocking(delete_queues(self._connection.bus, host_topology(name)))
        self._running.clear()

    def close(self) -> None:
        self.end_test()


async def serve_until_killed(url: str, name: str, create: Create, slots: int) -> None:
    """A host, until its process is killed."""
    bus = await connect_bus(url, "hosts", timeout_seconds=30)
    await Host(bus, name, create, slots).start()
    await asyncio.Event().wait()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--host", choices=["thread", "process"], default="thread")


@pytest.fixture(scope="session")
def _connection_thread() -> Iterator[ConnectionThread]:
    line = open_connection_thread(os.environ["QUINTAIN_BROKER_URL"])
    yield line
    line.close()


@pytest.fixture(scope="session")
def _hosts(_connection_thread: ConnectionThread, pytestconfig: pytest.Config) -> Iterator[Hosts]:
    url = os.environ["QUINTAIN_BROKER_URL"]
    hosts: Hosts = ThreadHosts(url) if pytestconfig.option.host == "thread" else ProcessHosts(url, _connection_thread)
    yield hosts
    hosts.close()


@pytest.fixture(autouse=True)
def _behind_rabbitmq(
    _persistence_off_by_default: None,
    _hosts: Hosts,
    _connection_thread: ConnectionThread,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> Iterator[None]:
    original = Controller.__init__
    # As a user does who has the target's package at hand: its tags are those that the remote side hands out.
    known = [each for each in vars(request.module).values() if isinstance(each, SecurityDomainTag)]
    remotes: list[RemoteFactory] = []

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        local = self._target_factory
        name, wrapped = _hosts.serve(local.create, local.concurrency)
        remote = SuiteFactory(
            name,
            concurrency=local.concurrency,
            prefetch=0,
            connection=_connection_thread,
            tags=[*self._naming_scope, *self._naming_read_only, *known],
            type_registry=superred_types().with_classes([*all_subclasses(Event), *all_subclasses(EventResponse)]),
            target_class=HostedTarget,
        )
        remotes.append(remote)
        self._target_factory = RemoteTargetFactory(
            create=wrapped(remote.create), concurrency=remote.concurrency, remote=remote
        )
        self._resolve_write_scope = with_learned_tags(self._resolve_write_scope, remote.tags)
        self._resolve_read_only = with_learned_tags(self._resolve_read_only, remote.tags)

    monkeypatch.setattr(Controller, "__init__", init)
    yield
    for remote in remotes:
        remote.close()
    _hosts.end_test()


class SuiteFactory(RemoteFactory):
    """A factory that also takes tags made inside a test: those are in no module, and in no scope."""

    def _resolve_tags(self, target: RemoteTarget) -> None:
        target.unresolved_tags()


def all_subclasses(kind: type) -> list[type]:
    """Every class beneath this one, those of the tests too."""
    return [each for child in kind.__subclasses__() for each in (child, *all_subclasses(child))]


def with_learned_tags(resolver: Callable[[Any], Any], tag_registry: TagRegistry) -> Callable[[Any], Any]:
    """A scope's resolver, whose tags are those that the remote side hands out."""

    def resolve(task: Any) -> Any:
        scope = resolver(task)
        tag_registry.register(scope)
        return scope

    return resolve
