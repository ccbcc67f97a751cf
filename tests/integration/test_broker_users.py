"""The users that deploy/rabbitmq/definitions.json gives a broker: each service works as its own, and as no other."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiormq
import pika
import pytest
from pika.exceptions import ChannelClosedByBroker

import quintain
from quintain.bus.base import Bus
from quintain.bus.connect import connect_bus, open_bus
from quintain.client.client import connect_admin
from quintain.config.loader import load_config
from quintain.contracts.session import OpenSession
from quintain.dlq import PoisonQueue
from quintain.errors import BrokerUnavailable
from quintain.rpc.requests import RpcClient
from quintain.settings import environment, read_settings
from quintain.target import ObservableEvent
from quintain.topology import (
    METADATA_TOPOLOGY,
    POISON_TOPOLOGY,
    Topology,
    admit_topology,
    conversation_topology,
    host_topology,
    lease_topology,
    reply_topology,
    target_topology,
)
from quintain_cli.commands.doctor import run_checks
from quintain_cli.commands.status import look_at_fleet
from quintain_gateway.server import run_gateway
from quintain_gateway.settings import BindAddress, GatewayLimits
from quintain_host.host import Host
from quintain_host.instances import load_factory
from quintain_metadata.service import running_metadata
from quintain_metadata.store.opening import open_ledger_or_wait
from quintain_worker.worker import run_worker
from support.broker_users import DEFINITIONS, USERS, BrokerUsers, broker_users
from support.servers.rabbitmq_admin import BrokerAdmin, BrokerUnderTest

pytestmark = pytest.mark.every_broker

ADMIN_TOKEN = "an admin token of a test"
TARGETS = Path(__file__).parents[2] / "examples" / "targets"

CONFIG = """
targets:
  echo: {provider: mock}
  desk: {provider: target, query: reply, max_concurrency: 1}
"""

#: Who may publish to an exchange: docs/protocol/topology.md. A user that declares a queue that dead-letters, or an
#: exchange with an alternate one, must be allowed to write there.
WRITERS = {
    "": set(),
    "quintain.invoke": {"metadata", "worker", "gateway", "evaluator", "operator"},
    "quintain.conversation": {"gateway", "evaluator", "operator"},
    "quintain.backlog": {"worker"},
    "quintain.unrouted": {"metadata"},
    "quintain.metadata": {"metadata", "gateway", "evaluator", "operator", "worker", "controller", "host"},
    "quintain.ledger": {"worker"},
    "quintain.probe": {"metadata"},
    "quintain.reply": {"metadata", "worker", "host", "gateway"},
    "quintain.dead": {"metadata"},
    "quintain.poison": {"metadata", "operator"},
    "quintain.host": {"worker", "controller"},
}

#: Who may consume a queue; of what is one client's own, whose names begin with its user's, that user alone.
READERS = {
    "quintain.metadata": {"metadata"},
    "quintain.metadata.unrouted": {"metadata"},
    "quintain.metadata.dead": {"metadata"},
    "quintain.ledger.admit": {"metadata"},
    "quintain.ledger.admit.x": {"metadata"},
    "quintain.ledger.heartbeat": {"metadata"},
    "quintain.ledger.settle": {"metadata"},
    "quintain.poison": {"metadata", "operator"},
    "quintain.target.echo": {"metadata", "worker"},
    "quintain.target.echo/backlog": {"metadata", "worker"},
    "quintain.host.desk": {"host"},
    "quintain.lease.x": {"host"},
    "quintain.conversation.echo/x": {"worker"},
    **{f"quintain.reply.{user}.x": {user} for user in USERS},
}

#: Who may declare or delete what it does not own alone: nobody but its owner.
OWNERS = {
    **{queue: {"metadata"} for queue in READERS if queue.startswith(("quintain.metadata", "quintain.ledger"))},
    **{exchange: {"metadata"} for exchange in WRITERS if exchange and "poison" not in exchange},
    "quintain.target.echo": {"metadata"},
    "quintain.target.echo/backlog": {"metadata"},
}


@pytest.fixture(scope="module")
def users(breakable_broker: BrokerUnderTest, broker_admin: BrokerAdmin) -> BrokerUsers:
    """The users, in a virtual host with everything in it."""
    made = broker_users(broker_admin, breakable_broker.url)
    asyncio.run(_declare(made))
    return made


@pytest.fixture
def empty_vhost_users(breakable_broker: BrokerUnderTest, broker_admin: BrokerAdmin) -> BrokerUsers:
    """The users, in a virtual host with nothing in it."""
    return broker_users(broker_admin, breakable_broker.url)


async def _declare(users: BrokerUsers) -> None:
    own_admits = admit_topology("x")
    # Not exclusive: the queue must outlive the connection that declares it here.
    admit_queue = dataclasses.replace(own_admits.queues[0], exclusive=False)
    admit_bindings = tuple(dataclasses.replace(one, queue=admit_queue) for one in own_admits.bindings)
    owned = {
        "metadata": METADATA_TOPOLOGY + target_topology("echo") + Topology((), (admit_queue,), admit_bindings),
        "operator": POISON_TOPOLOGY,
        "host": host_topology("desk") + lease_topology("x"),
        "worker": conversation_topology("echo", "x"),
    }
    for user, topology in owned.items():
        async with open_user_bus(users, user) as bus:
            await bus.declare(topology)
    for user in USERS:
        async with open_user_bus(users, user) as bus:
            await bus.declare(reply_topology(f"quintain.reply.{user}.x", "x"))


@contextlib.asynccontextmanager
async def open_user_bus(users: BrokerUsers, user: str) -> AsyncIterator[Bus]:
    bus = await connect_bus(users.url(user), user)
    try:
        yield bus
    finally:
        await bus.close()


def test_no_password_is_among_the_definitions() -> None:
    assert all(set(user) == {"name", "hashing_algorithm", "tags", "limits"} for user in DEFINITIONS["users"])
    assert {one["user"] for one in DEFINITIONS["permissions"]} == set(USERS)


def test_the_page_has_the_tables() -> None:
    page = (Path(__file__).parents[2] / "docs" / "protocol" / "topology.md").read_text()
    exchanges, _, queues = page.partition("| exchange | who may write |")[2].partition("| queue |")
    for table, part in ((WRITERS, exchanges), (READERS, queues)):
        for name in filter(None, table):
            cell = ", ".join(f"`{user}`" for user in sorted(table[name]))
            assert f"| `{name}` | {cell} |\n" in part


def test_every_exchange_and_queue_of_the_protocol_is_in_the_tables() -> None:
    whole = METADATA_TOPOLOGY + target_topology("echo") + host_topology("desk")
    assert {exchange.name for exchange in whole.exchanges} | {""} == set(WRITERS)
    assert {queue.name for queue in whole.queues} <= set(READERS)


@pytest.mark.parametrize("user", USERS)
def test_a_user_writes_where_the_protocol_lets_it_and_nowhere_else(users: BrokerUsers, user: str) -> None:
    allowed = {name for name in WRITERS if users.is_allowed(user, "basic_publish", name, "nowhere", b"{}")}
    assert allowed == {name for name, who in WRITERS.items() if user in who}


@pytest.mark.parametrize("user", USERS)
def test_a_user_reads_its_own_queues_and_no_others(users: BrokerUsers, user: str) -> None:
    allowed = {name for name in READERS if users.is_allowed(user, "basic_get", name)}
    assert allowed == {name for name, who in READERS.items() if user in who}


@pytest.mark.parametrize("user", [user for user in USERS if user != "metadata"])
def test_what_everybody_stands_on_is_deleted_by_nobody_but_its_owner(users: BrokerUsers, user: str) -> None:
    for name in OWNERS:
        assert not users.is_allowed(user, "queue_delete" if name in READERS else "exchange_delete", name)


@pytest.mark.parametrize("user", ["gateway", "evaluator", "controller", "operator", "host"])
def test_nobody_listens_in_on_what_others_ask(users: BrokerUsers, user: str) -> None:
    for exchange in ("quintain.invoke", "quintain.metadata", "quintain.ledger"):
        assert not users.is_allowed(user, "queue_bind", f"quintain.reply.{user}.x", exchange, "#")


@contextlib.asynccontextmanager
async def fleet(users: BrokerUsers, folder: Path) -> AsyncIterator[str]:
    """Every service under its own user; those that may declare nothing of the others' come first, and wait."""
    (folder / "quintain.yaml").write_text(CONFIG)
    config = load_config(folder / "quintain.yaml")
    async with contextlib.AsyncExitStack() as stack:
        buses = {user: await stack.enter_async_context(open_user_bus(users, user)) for user in USERS}
        host = Host(buses["host"], "desk", load_factory("desk:Desk", TARGETS), 1)
        stack.push_async_callback(host.stop, 0)
        hosting = asyncio.create_task(host.start())
        serving = run_worker(buses["worker"], config, environment(), grace_seconds=1)
        working = asyncio.create_task(stack.enter_async_context(serving))
        ledger = await stack.enter_async_context(open_ledger_or_wait(f"sqlite://{folder / 'ledger.sqlite3'}"))
        await stack.enter_async_context(running_metadata(buses["metadata"], ledger, ADMIN_TOKEN))
        await asyncio.gather(hosting, working)
        yield await stack.enter_async_context(run_gateway(buses["gateway"], BindAddress(), GatewayLimits()))


async def drive_run(url: str) -> list[str]:
    """What the hosted target shows in one run of a controller's."""
    async with quintain.lease("desk", url=url) as target:
        trajectory = await target.run()
    return [item.content for item in trajectory.snapshot() if isinstance(item, ObservableEvent)]


@pytest.fixture
def looked_for(monkeypatch: pytest.MonkeyPatch) -> set[tuple[str, str]]:
    """Each user that asks the broker whether something exists, and the name of it."""
    found = set[tuple[str, str]]()

    def noting(declare: Callable[..., Any]) -> Callable[..., Any]:
        async def note_and_declare(channel: aiormq.Channel, name: str, **options: Any) -> Any:
            if options.get("passive"):
                found.add((str(channel.connection.url.user), name))
            return await declare(channel, name, **options)

        return note_and_declare

    for method in ("queue_declare", "exchange_declare"):
        monkeypatch.setattr(aiormq.Channel, method, noting(getattr(aiormq.Channel, method)))
    return found


def test_nobody_names_another_user(users: BrokerUsers) -> None:
    with pika.BlockingConnection(pika.URLParameters(users.url("worker"))) as connection:
        for named, refused in (("worker", False), ("metadata", True)):
            channel = connection.channel()
            channel.confirm_delivery()
            with pytest.raises(ChannelClosedByBroker) if refused else contextlib.nullcontext():
                channel.basic_publish("quintain.ledger", "register", b"{}", pika.BasicProperties(user_id=named))


async def test_every_service_works_as_its_own_user(
    empty_vhost_users: BrokerUsers, looked_for: set[tuple[str, str]], tmp_path: Path
) -> None:
    async with fleet(empty_vhost_users, tmp_path) as gateway_url:
        async with connect_admin(empty_vhost_users.url("operator"), ADMIN_TOKEN) as admin:
            opened = await admin.open(OpenSession(default_target="echo", max_calls=10))
        async with quintain.connect(empty_vhost_users.url("evaluator"), opened.token) as client:
            assert (await client.invoke("by default")).raw_text == "by default"
            assert (await client.invoke("by name", target="echo")).raw_text == "by name"
            hosted = await client.invoke("hello", target="desk")
            assert hosted.raw_text == "Thank you for asking: hello"
            await client.cancel(["never asked"])
        async with quintain.connect(gateway_url, opened.token) as client:
            assert (await client.invoke("over HTTP")).raw_text == "over HTTP"
        said = await drive_run(empty_vhost_users.url("controller"))
        assert said == ["Thank you for asking: Good morning."]
        async with open_user_bus(empty_vhost_users, "operator") as bus:
            assert await PoisonQueue(bus).list() == []
        seen = list[str]()
        async with asyncio.timeout(30):  # each service is seen with its next heartbeat
            while seen != ["gateway", "host", "metadata"]:
                figures = await look_at_fleet(
                    empty_vhost_users.url("operator"), "status", ADMIN_TOKEN, wait_seconds=1, timeout_seconds=10
                )
                assert figures.problems == []
                seen = [one.service for one in figures.services]
        assert [one.condition for one in figures.workers] == ["live"]
        looked_for_by_services = set(looked_for)
        settings = read_settings({"QUINTAIN_ADMIN_TOKEN": ADMIN_TOKEN, "QUINTAIN_STATE_DIR": str(tmp_path)})
        report = await run_checks(settings, empty_vhost_users.url("operator"), timeout_seconds=10)
        told = {line.what: line.verdict for line in report.lines}
        assert told["services"] == "ok"
        assert looked_for - looked_for_by_services == {("operator", "quintain.unrouted")}
    # RabbitMQ 4.2.6 and later refuse who looks for what it may not configure; later ones are content with any right.
    configurable = {one["user"]: one["configure"] for one in DEFINITIONS["permissions"]}
    assert looked_for_by_services
    assert [each for each in looked_for_by_services if not re.search(configurable[each[0]], each[1])] == []


async def test_who_may_not_declare_an_exchange_says_who_does(
    empty_vhost_users: BrokerUsers,
) -> None:
    async with open_bus(empty_vhost_users.url("evaluator"), "evaluator", timeout_seconds=1) as bus:
        with pytest.raises(BrokerUnavailable, match=r"quintain.reply does not exist.*quintain serve metadata"):
            await RpcClient(bus).start()
