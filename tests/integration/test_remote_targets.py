"""What only shows where a target stands on a host: leases, repeated and lost messages, and what is refused there."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest

import quintain
from quintain.bus.base import Envelope
from quintain.contracts.hosting import DriverMessage
from quintain.remote.connection_thread import ConnectionThread
from quintain.remote.factory import RemoteFactory
from quintain.remote.lease import TargetTimeouts
from quintain.target import ObservableEvent, scope_includes
from quintain.target.type_registry import QUINTAIN_TYPES
from quintain.timings import DEFAULT_TIMINGS, Timings
from quintain.topology import Exchange
from support.target_placements import Controller, scripted_target_class
from support.thread_host import ThreadHost, thread_host
from support.waiting import wait_until

Emit = Callable[[Any], None]
Send = Callable[[Any], Awaitable[Any]]

Bot: Any = scripted_target_class("ours")
#: The tags of the bots, as a driver has them.
TAGS = [Bot.user, Bot.tools]


@pytest.fixture
def timings(request: pytest.FixtureRequest) -> Timings:
    """The promised timings, unless a test names its own."""
    chosen: Timings = getattr(request, "param", DEFAULT_TIMINGS)
    return chosen


@pytest.fixture(scope="module")
def shared_host(broker_url: str) -> Iterator[ThreadHost]:
    with thread_host(broker_url, slots=2) as host:
        yield host


@pytest.fixture
def host(broker_url: str, timings: Timings, shared_host: ThreadHost) -> Iterator[ThreadHost]:
    """A host of two slots, which most tests share."""
    with nullcontext(shared_host) if timings is DEFAULT_TIMINGS else thread_host(broker_url, 2, timings) as host:
        host.instances.clear()
        host.serve(lambda: Bot(do_nothing))
        yield host


@pytest.fixture(scope="module")
def connection_thread(broker_url: str) -> Iterator[ConnectionThread]:
    line = ConnectionThread(broker_url)
    yield line
    line.close()


def factory_of(host: ThreadHost, connection: ConnectionThread, *, prefetch: int = 0, **options: Any) -> RemoteFactory:
    """Instances of what the host serves; by default each is leased when it is wanted."""
    return RemoteFactory(host.name, tags=TAGS, prefetch=prefetch, connection=connection, **options)


@pytest.fixture
def remote(host: ThreadHost, connection_thread: ConnectionThread, timings: Timings) -> Iterator[RemoteFactory]:
    with factory_of(host, connection_thread, timings=timings) as factory:
        yield factory


async def do_nothing(target: Any, emit: Emit, send: Send) -> None: ...


def controller(answer: Callable[[Any], Awaitable[Any]] | None = None) -> Controller:
    return Controller(QUINTAIN_TYPES, answer)


async def test_what_a_factory_raises_is_raised_by_create_and_the_slot_is_free_again(
    host: ThreadHost, remote: RemoteFactory
) -> None:
    def broken() -> Any:
        raise KeyError("model")

    for _ in range(3):  # there are two slots
        host.serve(broken)
        with pytest.raises(KeyError, match="model") as caught:
            remote.create()
        assert "in broken" in "".join(caught.value.__notes__)
    host.serve(lambda: Bot(do_nothing))
    await remote.create().teardown()


@pytest.mark.parametrize("prefetch", [0, 1])
async def test_an_instance_is_waited_for_longer_than_a_slot(
    host: ThreadHost, connection_thread: ConnectionThread, prefetch: int
) -> None:
    timeouts = TargetTimeouts(slot_seconds=0.3)

    def slow() -> Any:
        time.sleep(0.8)
        return Bot(do_nothing)

    host.serve(slow)
    with factory_of(host, connection_thread, prefetch=prefetch, timeouts=timeouts) as factory:
        target = await asyncio.to_thread(factory.create)
        await controller().drive(target)
        await target.teardown()


def test_a_factory_that_never_returns_is_an_error_after_the_time_of_a_boot(
    host: ThreadHost, connection_thread: ConnectionThread
) -> None:
    may_end = threading.Event()
    host.serve(lambda: may_end.wait(30))
    timeouts = TargetTimeouts(boot_seconds=0.3)
    with factory_of(host, connection_thread, timeouts=timeouts) as factory:
        with pytest.raises(TimeoutError, match="boot_seconds"):
            factory.create()
        may_end.set()
        host.serve(lambda: Bot(do_nothing))
        assert factory.create().get_controllables()


async def test_a_run_that_does_not_end_is_cancelled_and_a_controller_that_does_not_respond_is_an_error(
    host: ThreadHost, connection_thread: ConnectionThread
) -> None:
    async def script(target: Any, emit: Emit, send: Send) -> None:
        if target.total_runs == 1:
            await send(target.request_event("anybody?"))
        await asyncio.Event().wait()

    async def never(event: Any) -> Any:
        await asyncio.Event().wait()

    host.serve(lambda: Bot(script))
    timeouts = TargetTimeouts(run_seconds=1.0, event_seconds=0.2)
    with factory_of(host, connection_thread, timeouts=timeouts) as factory:
        target = factory.create()
        with pytest.raises(TimeoutError, match="event_seconds"):
            await controller(never).drive(target)
        with pytest.raises(TimeoutError, match="run_seconds"):
            await controller(never).drive(target)
        await target.teardown()


async def test_what_is_no_part_of_the_interface_does_not_cross(remote: RemoteFactory) -> None:
    with pytest.raises(AttributeError, match=r"no 'messages' here: only the Target interface crosses"):
        _ = remote.create().messages


# Leases.


async def test_a_drivers_cancelled_error_is_raised_in_the_target_and_ends_the_run(
    host: ThreadHost, remote: RemoteFactory
) -> None:
    async def ask(target: Any, emit: Emit, send: Send) -> None:
        try:
            await send(target.request_event("question"))
        except Exception as error:
            target.notes.append(str(error))
            raise

    async def cancelled(event: Any) -> Any:
        raise asyncio.CancelledError

    host.serve(lambda: Bot(ask))
    target = remote.create()
    async with asyncio.timeout(5):
        with pytest.raises(asyncio.CancelledError):
            await Controller(QUINTAIN_TYPES, cancelled).drive(target)
    assert "CancelledError" in host.instances[0].notes[0]
    await target.teardown()


async def test_a_task_needs_few_requests_and_each_does_what_it_did(
    host: ThreadHost, connection_thread: ConnectionThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: list[str] = []
    publish = connection_thread.bus.publish

    async def noting_publish(exchange: Exchange, key: str, envelope: Envelope, **options: Any) -> None:
        requests.extend(item.type for item in DriverMessage.from_wire(envelope.body).items)
        await publish(exchange, key, envelope, **options)

    monkeypatch.setattr(connection_thread.bus, "publish", noting_publish)

    class Noting(Bot):
        async def reset_ephemeral_state(self) -> None:
            self.notes.append("reset")

        async def teardown(self) -> None:
            self.notes.append("teardown")

    host.serve(lambda: Noting(do_nothing))
    with factory_of(host, connection_thread) as factory:
        for persona in ("calm", "bold"):
            target = factory.create()
            # As superred's Controller and a task of three slots and four queries use it.
            for value in ("a", "b", persona):
                target.set_config("persona", value)
            assert target.get_controllables()[1].name == f"voice of {persona}"
            assert target.get_observables()[0].content == {"persona": persona}
            await controller().drive(target)
            for spec in target.query_specs * 4:
                assert target.query(spec.name, since="lease") == "1"
            await target.reset_ephemeral_state()
            await target.reset_ephemeral_state()
            await target.teardown()
            assert host.instances[-1].notes == ["reset", "reset", "teardown"]
    assert requests == 2 * [
        "open",
        *["set_config"] * 3,
        "describe",
        "run",
        *["query"] * 4,
        "reset",
        "reset",
        "teardown",
    ]


async def test_leases_are_made_ahead_and_replaced(host: ThreadHost, connection_thread: ConnectionThread) -> None:
    with RemoteFactory(host.name, tags=TAGS, concurrency=1, connection=connection_thread) as factory:
        await wait_until(lambda: len(host.instances) == 1)
        await factory.create().teardown()
        await wait_until(lambda: len(host.instances) == 2 and len(factory.pool._ready) == 1)
    # A factory that is closed leaves no lease behind: both slots can be had at once.
    await wait_until(lambda: host.instances[1].torn_down)
    with RemoteFactory(host.name, tags=TAGS, concurrency=2, connection=connection_thread) as factory:
        await wait_until(lambda: len(host.instances) == 4)


async def test_who_shares_a_pool_may_have_more_than_are_made_ahead(
    host: ThreadHost, connection_thread: ConnectionThread
) -> None:
    with RemoteFactory(host.name, tags=TAGS, concurrency=1, connection=connection_thread) as factory:
        one = factory.create()
        two = await asyncio.to_thread(factory.create)
        assert len(host.instances) == 2
        for target in (one, two):
            await target.teardown()


async def test_a_scope_by_names_includes_what_the_target_says(host: ThreadHost, remote: RemoteFactory) -> None:
    async def script(target: Any, emit: Emit, send: Send) -> None:
        emit(target.observation_event("by tools"))
        await send(target.request_event("by user"))

    host.serve(lambda: Bot(script))
    scope = remote.scope("tools")
    one = controller()
    await one.drive(remote.create())
    assert [scope_includes(scope, event.security_domain) for event in one.seen] == [True, False]
    with pytest.raises(ValueError, match="No tag is named tool; there are root, user, tools"):
        remote.scope("tool")


async def test_instances_of_one_factory_have_the_same_tags(remote: RemoteFactory) -> None:
    first, second = (remote.create().security_domain.tags for _ in range(2))
    assert all(one is other for one, other in zip(first, second, strict=True))


# What the controller's own loop is spared.


#: A host or a controller that is silent for 1.5 s is lost.
SHORT_LIVED = DEFAULT_TIMINGS.scaled(1 / 6)
BLOCKED_SECONDS = SHORT_LIVED.host_lost_seconds + 0.5


@pytest.mark.parametrize("timings", [SHORT_LIVED], indirect=True)
async def test_a_controller_whose_loop_is_blocked_keeps_its_lease(host: ThreadHost, remote: RemoteFactory) -> None:
    target = remote.create()
    time.sleep(BLOCKED_SECONDS)
    target.set_config("persona", "patient")
    assert host.instances[-1].persona == "patient"


async def test_an_emit_that_the_controller_refuses_ends_the_run_here_and_there(
    host: ThreadHost, remote: RemoteFactory
) -> None:
    async def script(target: Any, emit: Emit, send: Send) -> None:
        try:
            emit(target.observation_event("refused"))
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            target.notes = ["cancelled"]
            raise

    def refuse(event: ObservableEvent) -> None:
        raise OSError("the disk is full")

    host.serve(lambda: Bot(script))
    target = remote.create()
    async with asyncio.timeout(30):
        with pytest.raises(OSError, match="the disk is full"):
            await target.run(refuse, controller().send)
        await target.reset_ephemeral_state()
    assert host.instances[-1].notes == ["cancelled"]


async def test_leases_share_a_connection(host: ThreadHost, connection_thread: ConnectionThread) -> None:
    async with (
        quintain.lease(host.name, connection=connection_thread) as one,
        quintain.lease(host.name, connection=connection_thread) as other,
    ):
        await asyncio.gather(one.run(), other.run())
    assert [each.total_runs for each in host.instances[-2:]] == [1, 1]
