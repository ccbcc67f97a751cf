"""Mistakes in a deployment, planted one at a time: `quintain doctor` finds each, and says how to mend it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quintain.errors import BusError
from quintain.settings import secret_file_paths
from quintain_cli.broker_checks import DoctorCheck, check_broker_user, check_clock, check_transport, management_checks
from quintain_cli.commands.doctor import check_free_disk, check_modes, database_checks
from quintain_metadata.store.opening import DatabaseServer

QUEUES = ["quintain.metadata", "quintain.poison", "quintain.target.echo"]


def binding(source: str, destination: str, key: str, kind: str = "queue") -> dict[str, str]:
    return {"source": source, "destination": destination, "destination_type": kind, "routing_key": key}


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
        ]
        self.exchanges = [{"name": name} for name in ("", "amq.direct", "quintain.invoke", "quintain.poison")]
        self.user_limits = [{"user": "worker", "value": {"max-connections": 500, "max-channels": 2000}}]
        self.vhost_limits = [{"vhost": "/", "value": {"max-queues": 1000}}]
        self.bindings = [
            *(binding("quintain.invoke", "quintain.target.echo", "echo"), binding("", "anybodys", "anybodys")),
            *(binding("quintain.metadata", "quintain.metadata", "info"), binding("other", "anybodys", "")),
            *(binding("quintain.host", "quintain.lease.x", "lease/x"), binding("quintain.events", "anybodys", "fleet")),
        ]
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
        }[path]


def plant_no_policy(api: Api) -> None:
    api.queues[0]["effective_policy_definition"] = []


def plant_dropping_policy(api: Api) -> None:
    api.queues[2]["effective_policy_definition"] = {"max-length-bytes": 5, "overflow": "drop-head"}


def plant_disabled_flag(api: Api) -> None:
    api.flags[0]["state"] = "disabled"


def plant_alarm(api: Api) -> None:
    api.node["disk_free_alarm"] = True


def plant_delivery_limit(api: Api) -> None:
    api.queues[1]["effective_policy_definition"] |= {"delivery-limit": 20}


def plant_stopped_node(api: Api) -> None:
    api.node["running"] = False


def plant_low_disk_limit(api: Api) -> None:
    api.node["disk_free_limit"] = 50_000_000


def plant_guest(api: Api) -> None:
    api.users[1]["tags"] = ["administrator"]


def plant_rights(api: Api) -> None:
    api.permissions[1]["read"] = ".*"


def plant_rights_of_every_name_of_ours(api: Api) -> None:
    api.permissions[1]["write"] = r"quintain\..*"


def plant_copying_queue(api: Api) -> None:
    api.bindings.append(binding("quintain.invoke", "spy", "#"))


def plant_queue_of_another_target(api: Api) -> None:
    api.bindings.append(binding("quintain.invoke", "quintain.target.spy", "echo"))


def plant_copying_exchange(api: Api) -> None:
    api.bindings.append(binding("quintain.ledger", "quintain.ledger.x", "admit", kind="exchange"))


def plant_fast_clock(api: Api) -> None:
    api.skew_seconds = 60


def plant_slow_clock(api: Api) -> None:
    api.skew_seconds = -5


def plant_foreign_exchange(api: Api) -> None:
    api.exchanges.append({"name": "quintain.reply.evaluator.x"})


def plant_exchange_of_another_program(api: Api) -> None:
    api.exchanges.append({"name": "orders"})


def plant_queue_that_copies(api: Api) -> None:
    api.queues.append({"name": "spy", "type": "classic"})


def plant_unknown_name(api: Api) -> None:
    api.queues.append({"name": "quintain.anything.x", "type": "classic"})


def plant_reply_queue_of_another_type(api: Api) -> None:
    api.queues.append({"name": "quintain.reply.evaluator.x", "type": "quorum"})


def plant_no_queue_limit(api: Api) -> None:
    api.vhost_limits.clear()


def plant_user_without_limits(api: Api) -> None:
    del api.user_limits[0]["value"]["max-channels"]  # type: ignore[attr-defined]


def plant_short_consumer_timeout(api: Api) -> None:
    api.queues[0]["arguments"] = {"x-consumer-timeout": 60_000}


def plant_refusal(api: Api) -> None:
    api.refuses = True


def test_a_sound_broker_has_no_finding() -> None:
    assert {check.verdict for check in management_checks(Api(), QUEUES)} == {"ok"}


@pytest.mark.parametrize(
    ("plant", "what", "verdict"),
    [
        (plant_no_policy, "limit of quintain.metadata", "fail"),
        (plant_dropping_policy, "limit of quintain.target.echo", "fail"),
        (plant_disabled_flag, "feature flags", "fail"),
        (plant_alarm, "node rabbit@a", "fail"),
        (plant_stopped_node, "node rabbit@a", "fail"),
        (plant_delivery_limit, "delivery limit of quintain.poison", "fail"),
        (plant_low_disk_limit, "node rabbit@a", "warn"),
        (plant_guest, "users", "warn"),
        (plant_rights, "rights", "fail"),
        (plant_rights_of_every_name_of_ours, "rights", "fail"),
        (plant_copying_queue, "bindings", "fail"),
        (plant_queue_of_another_target, "bindings", "fail"),
        (plant_copying_exchange, "bindings", "fail"),
        (plant_fast_clock, "clock of the broker", "fail"),
        (plant_slow_clock, "clock of the broker", "warn"),
        (plant_short_consumer_timeout, "consumer timeout of quintain.metadata", "fail"),
        (plant_foreign_exchange, "foreign exchanges", "fail"),
        (plant_exchange_of_another_program, "foreign exchanges", "warn"),
        (plant_queue_that_copies, "foreign queues", "warn"),
        (plant_unknown_name, "foreign queues", "fail"),
        (plant_reply_queue_of_another_type, "foreign queues", "fail"),
        (plant_no_queue_limit, "limits of queues, connections and channels", "fail"),
        (plant_user_without_limits, "limits of queues, connections and channels", "fail"),
        (plant_refusal, "management API", "warn"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_mistake_at_the_broker_is_found(plant: Callable[[Api], None], what: str, verdict: str) -> None:
    api = Api()
    plant(api)
    found = {check.what: check for check in management_checks(api, QUEUES) if check.verdict != "ok"}
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
    found: list[DoctorCheck] = [check_free_disk(tmp_path / "not" / "there", limit) for limit in (0, 2**80)]
    assert [check.verdict for check in found] == ["ok", "fail"]
