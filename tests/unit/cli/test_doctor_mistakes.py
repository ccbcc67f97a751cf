"""Mistakes in a deployment, planted one at a time: `quintain doctor` finds each, and says how to mend it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quintain.bus.rabbit_declarations import DeclarationCheck, DeclarationStatus
from quintain.errors import BusError
from quintain.settings import secret_file_paths
from quintain_cli.broker_checks import (
    check_broker_user,
    check_clock,
    check_declaration,
    check_message_size,
    check_transport,
    check_version,
    management_checks,
)
from quintain_cli.broker_management import user_permissions
from quintain_cli.commands.doctor import check_free_disk, check_modes, database_checks
from quintain_cli.role_checks import check_running_roles
from quintain_metadata.store.opening import DatabaseServer

QUEUES = ["quintain.metadata", "quintain.poison", "quintain.target.echo"]


def binding(source: str, destination: str, key: str, kind: str = "queue") -> dict[str, str]:
    return {"source": source, "destination": destination, "destination_type": kind, "routing_key": key}


def connection(user: str, name: str) -> dict[str, Any]:
    return {"user": user, "client_properties": {"connection_name": f"quintain {name} publishing"}}


class Api:
    """A management API that tells of a sound broker, but for what a test changes."""

    def __init__(self) -> None:
        limits = {"max-length-bytes": 1024**2, "overflow": "reject-publish"}
        dropping = {**limits, "overflow": "drop-head"}
        self.queues: list[dict[str, Any]] = [
            {
                "name": name,
                "type": "quorum",
                "arguments": {},
                "effective_policy_definition": dropping if "poison" in name else limits,
            }
            for name in QUEUES
        ]
        self.flags = [{"name": "stream_queue", "state": "enabled", "stability": "stable"}]
        self.node: dict[str, Any] = {"name": "rabbit@a", "running": True, "disk_free_limit": 2 * 10**9}
        self.users: list[dict[str, Any]] = [{"name": "root", "tags": ["administrator"]}, {"name": "guest", "tags": []}]
        self.permissions = [
            {"user": "root", "configure": ".*", "write": ".*", "read": ".*"},
            {"user": "worker", "configure": "^$", "write": "^quintain\\.invoke$", "read": "^quintain\\.target\\..+$"},
            {"user": "worker-a", **user_permissions("worker", "worker-a", ["llama"])},
        ]
        self.exchanges = [{"name": name} for name in ("", "amq.direct", "quintain.invoke", "quintain.poison")]
        self.user_limits: list[dict[str, Any]] = [
            {"user": user, "value": {"max-connections": 500, "max-channels": 2000}} for user in ("worker", "worker-a")
        ]
        self.vhost_limits = [{"vhost": "/", "value": {"max-queues": 1000}}]
        self.bindings = [
            *(binding("quintain.invoke", "quintain.target.echo", "echo"), binding("", "anybodys", "anybodys")),
            *(binding("quintain.metadata", "quintain.metadata", "info"), binding("other", "anybodys", "")),
            *(
                binding("quintain.host", "quintain.lease.x", "lease/x"),
                binding("quintain.metadata", "quintain.ledger.admit.x", "beat"),
            ),
        ]
        self.connections: list[dict[str, Any]] = [connection("worker-a", "worker"), connection("root", "status")]
        self.skew_seconds = 0.0
        self.refuses = False

    def clock(self) -> float:
        return time.time() + self.skew_seconds

    def get(self, path: str) -> Any:
        if self.refuses:
            raise BusError("refused")
        return {
            "queues/{vhost}": self.queues,
            "feature-flags": self.flags,
            "nodes": [self.node],
            "users": self.users,
            "vhosts/{vhost}/permissions": self.permissions,
            "exchanges/{vhost}": self.exchanges,
            "user-limits": self.user_limits,
            "vhost-limits/{vhost}": self.vhost_limits,
            "bindings/{vhost}": self.bindings,
            "vhosts/{vhost}/connections": self.connections,
        }[path]


Plant = Callable[[Api], object]

#: By the mistake: how it is planted, what the doctor calls it, and how bad that is.
MISTAKES: dict[str, tuple[Plant, str, str]] = {
    "no policy": (lambda api: api.queues[0].update(effective_policy_definition=[]),
     "limit of quintain.metadata", "fail"),
    "a policy that drops": (
        lambda api: api.queues[2].update(
            effective_policy_definition={"max-length-bytes": 5, "overflow": "drop-head"}
        ),
        "limit of quintain.target.echo", "fail",
    ),
    "a disabled flag": (lambda api: api.flags[0].update(state="disabled"), "feature flags", "fail"),
    "an alarm": (lambda api: api.node.update(disk_free_alarm=True), "node rabbit@a", "fail"),
    "a stopped node": (lambda api: api.node.update(running=False), "node rabbit@a", "fail"),
    "a delivery limit": (lambda api: api.queues[1]["effective_policy_definition"].update({"delivery-limit": 20}),
     "delivery limit of quintain.poison", "fail"),
    "a low limit of the disk": (lambda api: api.node.update(disk_free_limit=50_000_000), "node rabbit@a", "warn"),
    "guest": (lambda api: api.users[1].update(tags=["administrator"]), "users", "warn"),
    "rights to everything": (lambda api: api.permissions[1].update(read=".*"), "rights", "fail"),
    "rights to every name of ours": (lambda api: api.permissions[1].update(write=r"quintain\..*"), "rights", "fail"),
    "a queue of copies": (lambda api: api.bindings.append(binding("quintain.invoke", "spy", "#")), "bindings", "fail"),
    "a queue of another target": (
        lambda api: api.bindings.append(binding("quintain.invoke", "quintain.target.spy", "echo")), "bindings", "fail",
    ),
    "an exchange of copies": (
        lambda api: api.bindings.append(binding("quintain.ledger", "quintain.ledger.x", "admit", kind="exchange")),
        "bindings", "fail",
    ),
    "a fast clock": (lambda api: setattr(api, "skew_seconds", 60), "clock of the broker", "fail"),
    "a slow clock": (lambda api: setattr(api, "skew_seconds", -5), "clock of the broker", "warn"),
    "a short consumer timeout": (lambda api: api.queues[0].update(arguments={"x-consumer-timeout": 60_000}),
     "consumer timeout of quintain.metadata", "warn"),
    "a foreign exchange": (lambda api: api.exchanges.append({"name": "quintain.reply.evaluator.x"}),
     "foreign exchanges", "fail"),
    "an exchange of another program": (lambda api: api.exchanges.append({"name": "orders"}),
     "foreign exchanges", "warn"),
    "a queue of another program": (lambda api: api.queues.append({"name": "spy", "type": "classic"}),
     "foreign queues", "warn"),
    "an unknown name": (lambda api: api.queues.append({"name": "quintain.anything.x", "type": "classic"}),
     "foreign queues", "fail"),
    "a reply queue of another type": (
        lambda api: api.queues.append({"name": "quintain.reply.evaluator.x", "type": "quorum"}),
        "foreign queues", "fail",
    ),
    "no limit of queues": (lambda api: api.vhost_limits.clear(), "limits of queues, connections and channels", "fail"),
    "a user without limits": (lambda api: api.user_limits[0]["value"].pop("max-channels"),
     "limits of queues, connections and channels", "fail"),
    "a worker without the ledger": (
        lambda api: api.permissions[2].update(write=api.permissions[2]["write"].replace("ledger|", "")),
        "rights of services", "fail",
    ),
    "a worker of another user's rights": (lambda api: api.connections.append(connection("worker", "worker")),
     "rights of services", "fail"),
    "a host without any": (lambda api: api.connections.append(connection("x", "host")), "rights of services", "fail"),
    "a refusal": (lambda api: setattr(api, "refuses", True), "management API", "warn"),
}  # fmt: skip


def test_a_sound_broker_has_no_finding() -> None:
    assert {check.verdict for check in management_checks(Api(), QUEUES, check_running_roles)} == {"ok"}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_at_the_broker_is_found(mistake: str) -> None:
    plant, what, verdict = MISTAKES[mistake]
    api = Api()
    plant(api)
    found = {
        check.what: check for check in management_checks(api, QUEUES, check_running_roles) if check.verdict != "ok"
    }
    assert found.keys() == {what}
    assert found[what].verdict == verdict
    assert found[what].mend


@pytest.mark.parametrize(
    ("url", "verdict"),
    [
        ("amqp://a:b@127.0.0.1:5672/", "ok"),
        ("amqps://a:b@broker.example/", "ok"),
        ("amqp://a:b@broker/", "warn"),
        ("amqp://a:b@10.1.2.3/", "warn"),
        ("amqps://a:b@one.example/,amqp://a:b@two.example/", "fail"),
    ],
)
def test_a_broker_elsewhere_without_encryption_is_found(url: str, verdict: str) -> None:
    check = check_transport(url)
    assert (check.verdict, check.mend is None) == (verdict, verdict == "ok")
    assert ":b@" not in check.says


def test_the_default_user_elsewhere_is_found() -> None:
    assert check_broker_user("amqp://guest:guest@broker.example/").verdict == "fail"
    assert check_broker_user("amqp://guest:guest@localhost/").verdict == "ok"
    assert check_broker_user("amqp://worker:x@broker.example/").verdict == "ok"


SOUND = {"fsync": "on", "full_page_writes": "on", "synchronous_commit": "on"}


@pytest.mark.parametrize("name", SOUND)
def test_a_database_that_forgets_what_it_confirmed_is_found(name: str) -> None:
    assert {check.verdict for check in database_checks(DatabaseServer(100.0, SOUND), 100.0)} == {"ok"}
    (found,) = [
        check
        for check in database_checks(DatabaseServer(100.0, {**SOUND, name: "off"}), 100.0)
        if check.verdict != "ok"
    ]
    assert (found.verdict, name in (found.mend or "")) == ("fail", True)


@pytest.mark.parametrize(("skew", "verdict"), [(0, "ok"), (2, "ok"), (-3, "warn"), (11, "fail"), (-3600, "fail")])
def test_a_clock_of_a_server_that_is_off_is_found(skew: float, verdict: str) -> None:
    check = check_clock("clock", 1000.0 + skew, 1000.0)
    assert (check.verdict, check.mend is None) == (verdict, verdict == "ok")


def test_files_that_others_can_read_are_found(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("admin-token", "ledger.sqlite3", "not there")]
    for path, mode in zip(paths, (0o600, 0o640), strict=False):
        path.touch()
        path.chmod(mode)
    own, shared = check_modes(paths)
    assert (own.verdict, shared.verdict, str(paths[1]) in (shared.mend or "")) == ("ok", "fail", True)


def test_files_named_by_variables_of_secrets_are_those_that_are_checked(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.touch(0o644)
    names = {"QUINTAIN_ADMIN_TOKEN_FILE": "admin", "OPENAI_API_KEY_FILE": str(key), "SSL_CERT_FILE": "ca", "KEY": "sk"}
    files = secret_file_paths({**names, "OTHER_PASSWORD_FILE": ""})
    assert files == [Path("admin"), key]
    assert [check.verdict for check in check_modes([key], shared="warn")] == ["warn"]


def test_a_full_disk_is_found(tmp_path: Path) -> None:
    found = [check_free_disk(tmp_path / "not" / "there", limit) for limit in (0, 2**80)]
    assert [check.verdict for check in found] == ["ok", "fail"]


@pytest.mark.parametrize(
    ("version", "verdict"),
    [
        *((version, "ok") for version in ("3.10.8", "4.0.5", "4.3.6")),
        *((version, "warn") for version in ("3.10.25", "4.2.1", "4.3.0", "4.4.0", "10.0", "of my own")),
        ("3.9.29", "fail"),
    ],
)
def test_a_version_is_held_against_those_that_were_tried(version: str, verdict: str) -> None:
    line = check_version(version)
    assert line.verdict == verdict
    assert (line.mend is None) == (verdict == "ok")


@pytest.mark.parametrize(
    ("standing", "verdict"),
    [
        *((DeclarationStatus.SAME, "ok"), (DeclarationStatus.MISSING, "warn"), (DeclarationStatus.HIDDEN, "warn")),
        (DeclarationStatus.DIFFERENT, "fail"),
    ],
)
def test_only_a_difference_fails(standing: DeclarationStatus, verdict: str) -> None:
    line = check_declaration(DeclarationCheck("quintain.invoke", standing, "the broker's word"))
    assert line.verdict == verdict
    assert (line.mend is None) == (verdict == "ok")


def test_a_broker_that_takes_larger_messages_than_the_protocol_has_is_found() -> None:
    verdicts = [check_message_size(refuses_larger=refuses).verdict for refuses in (True, False)]
    assert verdicts == ["ok", "warn"]
