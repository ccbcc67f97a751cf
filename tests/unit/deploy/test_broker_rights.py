"""Each user of the broker may do what its service declares and says, by the broker's own rules, and little else."""

from __future__ import annotations

import re
from dataclasses import dataclass

import pytest

from quintain.topology import (
    CANCEL,
    DISCOVERY,
    EVENTS,
    HOST,
    INVOKE,
    LEDGER,
    METADATA,
    METADATA_TOPOLOGY,
    POISON,
    POISON_TOPOLOGY,
    PROBE,
    REPLY,
    RUN,
    Exchange,
    Topology,
    cancel_topology,
    discovery_topology,
    events_topology,
    host_topology,
    lease_topology,
    reply_topology,
    run_topology,
    target_topology,
)
from support.kubernetes_manifests import generated_secrets, names_of_kind, objects_of_kind

TARGET = target_topology("echo")


@dataclass(frozen=True)
class Needs:
    """What a service declares, where it publishes, and what it consumes: queues that begin with one of these."""

    declares: Topology
    publishes: tuple[Exchange, ...] = ()
    consumes: tuple[str, ...] = ()


def replies(user: str) -> Topology:
    """A user's own reply queue."""
    return reply_topology(f"quintain.reply.{user}.some", "some")


def own(*topologies: Topology) -> Topology:
    """Queues and bindings without the exchanges: the metadata service declares all of those but one."""
    whole = sum(topologies, Topology())
    return Topology((), whole.queues, whole.bindings)


FOUND, HEARD = discovery_topology("some"), events_topology("some")

NEEDS = {
    "metadata": Needs(
        METADATA_TOPOLOGY + TARGET + own(FOUND),
        (REPLY, INVOKE, CANCEL, POISON, PROBE, EVENTS),
        ("quintain.metadata", "quintain.ledger.", "quintain.discovery."),
    ),
    # It opens sessions for the agents it asks, under its callers'.
    "worker": Needs(
        own(cancel_topology("some"), run_topology("some"), replies("worker"), FOUND),
        (LEDGER, REPLY, INVOKE, HOST, METADATA),
        ("quintain.cancel.", "quintain.reply.", "quintain.run.", "quintain.target.", "quintain.discovery."),
    ),
    "gateway": Needs(
        own(replies("gateway"), FOUND, HEARD),
        (INVOKE, METADATA, REPLY, DISCOVERY),
        ("quintain.reply.", "quintain.discovery.", "quintain.events."),
    ),
    "host": Needs(
        own(host_topology("desk"), lease_topology("some"), FOUND),
        (REPLY, RUN),
        ("quintain.host.", "quintain.lease.", "quintain.discovery."),
    ),
    "controller": Needs(
        own(replies("controller"), run_topology("some")), (HOST, METADATA), ("quintain.reply.", "quintain.run.")
    ),
    "evaluator": Needs(own(replies("evaluator")), (INVOKE, METADATA), ("quintain.reply.",)),
    "operator": Needs(
        own(replies("operator"), POISON_TOPOLOGY, HEARD),
        (INVOKE, METADATA, DISCOVERY, POISON),
        ("quintain.poison", "quintain.reply.", "quintain.events."),
    ),
    "scaler": Needs(Topology()),
}

PERMISSIONS = {
    each["spec"]["userReference"]["name"]: each["spec"]["permissions"] for each in objects_of_kind("Permission")
}


def wanted(needs: Needs) -> set[tuple[str, str]]:
    """Which right on which name the broker asks for, as its documentation of access control lists them."""
    rights = {("write", exchange.name) for exchange in needs.publishes}
    for exchange in needs.declares.exchanges:
        rights.add(("configure", exchange.name))
        if exchange.alternate:
            rights |= {("read", exchange.name), ("write", exchange.alternate)}
    for queue in needs.declares.queues:
        rights.add(("configure", queue.name))
        if queue.dead_letter_exchange:
            rights |= {("read", queue.name), ("write", queue.dead_letter_exchange)}
    for queue in (needs.declares + TARGET).queues:
        if queue.name.startswith(needs.consumes):
            rights.add(("read", queue.name))
    for binding in needs.declares.bindings:
        rights |= {("write", binding.queue.name), ("read", binding.exchange.name)}
    return rights


def allowed(user: str, right: str, name: str) -> bool:
    return re.search(PERMISSIONS[user][right], name) is not None


def test_each_user_has_its_password_and_one_permission() -> None:
    assert names_of_kind("User") == NEEDS.keys() == PERMISSIONS.keys()
    assert {name.removeprefix("broker-") for name in generated_secrets() if name.startswith("broker-")} == NEEDS.keys()
    assert len(objects_of_kind("Permission")) == len(NEEDS)


@pytest.mark.parametrize("user", NEEDS)
def test_a_user_may_do_what_its_service_does(user: str) -> None:
    assert {each for each in wanted(NEEDS[user]) if not allowed(user, *each)} == set()


@pytest.mark.parametrize("user", NEEDS)
def test_nobody_has_the_default_exchange_or_what_is_not_ours(user: str) -> None:
    for right in ("configure", "write", "read"):
        assert not any(allowed(user, right, name) for name in ("amq.default", "amq.topic", "other", "xquintain.invoke"))
        assert PERMISSIONS[user][right].startswith("^")
        assert PERMISSIONS[user][right].endswith("$")


def test_the_ledgers_exchange_is_the_workers_alone() -> None:
    assert [user for user in NEEDS if allowed(user, "write", LEDGER.name)] == ["worker"]
    assert [user for user in NEEDS if allowed(user, "read", "quintain.ledger.admit")] == ["metadata"]
    for exchange in (CANCEL, PROBE, EVENTS):
        assert [user for user in NEEDS if allowed(user, "write", exchange.name)] == ["metadata"]


def test_who_asks_reads_no_calls_and_no_answers_of_others() -> None:
    for user in NEEDS.keys() - {"metadata", "worker"}:
        assert not allowed(user, "read", "quintain.target.echo")
        assert not allowed(user, "read", "quintain.metadata")
    readers = {
        user: [other for other in NEEDS if allowed(user, "read", f"quintain.reply.{other}.some")] for user in NEEDS
    }
    assert {user: of for user, of in readers.items() if of not in ([], [user])} == {}


def test_what_all_stand_on_is_the_metadata_services_to_declare() -> None:
    names = [exchange.name for exchange in METADATA_TOPOLOGY.exchanges]
    others = {name: [user for user in NEEDS if allowed(user, "configure", name)] for name in names}
    assert {name: users for name, users in others.items() if users != ["metadata"]} == {
        "quintain.poison": ["metadata", "operator"]  # the commands that look after it need no other service
    }


def test_the_scaler_may_look_and_nothing_else() -> None:
    (scaler,) = [each for each in objects_of_kind("User") if each["metadata"]["name"] == "scaler"]
    assert scaler["spec"]["tags"] == ["management"]
    assert set(PERMISSIONS["scaler"].values()) == {"^$"}
    tags = {
        each["metadata"]["name"]: each["spec"]["tags"] for each in objects_of_kind("User") if "tags" in each["spec"]
    }
    assert tags == {"scaler": ["management"], "operator": ["monitoring"]}
