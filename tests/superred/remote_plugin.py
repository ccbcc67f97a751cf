"""A pytest plugin for superred's own suite: every Controller's target is a hosted one, through `remote_factory`.

Used with ``-p remote_plugin`` on superred's source distribution; no test of theirs is edited. With ``--host process``
each Controller's host is a process of its own: a fork, so that classes made inside a test are there. With ``--host
thread`` one host serves all Controllers from a thread of the test process, so that what their tests read off a
target's Python object can still be read. A test's report says whether its hosts ran a target.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import pytest
from superred.core.controller import Controller
from superred.core.types.event import Event, EventResponse
from superred.core.types.security_domain import SecurityDomainTag

from quintain.bus.connect import connect_bus
from quintain.remote.connection_thread import ConnectionThread
from quintain.superred import RemoteTargetFactory, remote_factory
from quintain.target.type_registry import TagRegistry
from quintain.topology import host_topology
from quintain_host.host import Host
from support.thread_host import Create, ThreadHost

#: More than any of their tests has at once.
SLOTS = 8

#: The property that the report of a test has whose hosts ran a target.
RAN_PROPERTY = "ran a target over the bus"

#: What a host's process writes once it serves, and at the start of each run.
READY, RUN = b"+", b"."


class Hosts(Protocol):
    """Where the targets of a Controller's factory live."""

    def serve(self, create: Create, concurrency: int) -> tuple[str, Callable[[Create], Create]]:
        """The name they are leased under, and what the remote `create` is wrapped in."""

    def end_test(self) -> bool:
        """End what a test began. Whether a target's `run` was called on a host."""

    def close(self) -> None: ...


class ThreadHosts:
    """One host for all, on a thread of this process."""

    def __init__(self, url: str) -> None:
        self._host = ThreadHost(url, SLOTS)
        self._runs = 0

    def serve(self, create: Create, concurrency: int) -> tuple[str, Callable[[Create], Create]]:
        assert concurrency <= SLOTS
        counted = with_counted_runs(create, self._count)
        return self._host.name, lambda remote_create: lambda: self._host.lease_from(counted, remote_create)

    def _count(self) -> None:
        self._runs += 1

    def end_test(self) -> bool:
        runs, self._runs = self._runs, 0
        return runs > 0

    def close(self) -> None:
        self._host.close()


@dataclass(frozen=True)
class HostProcess:
    """A host's process, and the end of the pipe to which it writes."""

    name: str
    pid: int
    read_fd: int


class ProcessHosts:
    """A process for each Controller's host."""

    def __init__(self, url: str) -> None:
        self._url, self._connection = url, ConnectionThread(url)
        self._started = 0
        self._running: list[HostProcess] = []

    def serve(self, create: Create, concurrency: int) -> tuple[str, Callable[[Create], Create]]:
        self._started += 1
        name = f"suite.{os.getpid()}.{self._started}"
        read_fd, write_fd = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                asyncio.run(serve_until_killed(self._url, name, create, concurrency, write_fd))
            finally:
                os._exit(0)
        os.close(write_fd)
        self._running.append(HostProcess(name, pid, read_fd))
        assert os.read(read_fd, 1) == READY
        return name, lambda remote_create: remote_create

    def end_test(self) -> bool:
        has_run = False
        for each in self._running:
            os.kill(each.pid, signal.SIGKILL)
            os.waitpid(each.pid, 0)
            with os.fdopen(each.read_fd, "rb") as pipe:
                has_run |= RUN in pipe.read()
            self._connection.run_blocking(self._connection.bus.delete(host_topology(each.name).queues[0]))
        self._running.clear()
        return has_run

    def close(self) -> None:
        self._connection.close()


async def serve_until_killed(url: str, name: str, create: Create, slots: int, write_fd: int) -> None:
    """A host, until its process is killed; it writes when it serves and when it runs a target."""
    bus = await connect_bus(url, "hosts", timeout_seconds=30)
    await Host(bus, name, with_counted_runs(create, lambda: os.write(write_fd, RUN)), slots).start()
    os.write(write_fd, READY)
    await asyncio.Event().wait()


def with_counted_runs(create: Create, on_run: Callable[[], Any]) -> Create:
    """A factory whose targets call `on_run` at the start of each run."""

    def create_counted() -> Any:
        target = create()
        run = target.run

        async def run_counted(emit: Any, send_event: Any) -> None:
            on_run()
            await run(emit, send_event)

        target.run = run_counted
        return target

    return create_counted


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--host", choices=["thread", "process"], default="process")


@pytest.fixture(scope="session")
def _hosts(pytestconfig: pytest.Config) -> Iterator[Hosts]:
    url = os.environ["QUINTAIN_BROKER_URL"]
    hosts: Hosts = ThreadHosts(url) if pytestconfig.option.host == "thread" else ProcessHosts(url)
    yield hosts
    hosts.close()


@pytest.fixture(autouse=True)
def _behind_rabbitmq(
    _persistence_off_by_default: None, _hosts: Hosts, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[None]:
    original = Controller.__init__
    # As a user does who has the target's package at hand: its tags are those that the remote side hands out.
    known = [each for each in vars(request.module).values() if isinstance(each, SecurityDomainTag)]
    remotes: list[RemoteTargetFactory] = []

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        local = self._target_factory
        name, wrapped = _hosts.serve(local.create, local.concurrency)
        remote = remote_factory(
            name,
            concurrency=local.concurrency,
            prefetch=0,
            url=os.environ["QUINTAIN_BROKER_URL"],
            # Tags made inside a test are in no module, and not all of them are in its scope.
            tags="by-path",
            events=[*all_subclasses(Event), *all_subclasses(EventResponse)],
        )
        remotes.append(remote)
        remote.tags.register([*self._naming_scope, *self._naming_read_only, *known])
        self._target_factory = dataclasses.replace(remote, create=wrapped(remote.create))
        self._resolve_write_scope = with_learned_tags(self._resolve_write_scope, remote.tags)
        self._resolve_read_only = with_learned_tags(self._resolve_read_only, remote.tags)

    monkeypatch.setattr(Controller, "__init__", init)
    yield
    for remote in remotes:
        remote.close()
    if _hosts.end_test():
        request.node.user_properties.append((RAN_PROPERTY, True))


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
