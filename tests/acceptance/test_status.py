"""``quintain status``: who is there over a real broker, who is missing, and what it says where it cannot ask."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from support.command_line import CommandLine, RunningCommand, command_line
from support.process_fleet import ADMIN_TOKEN, process_fleet
from support.servers.rabbitmq import RABBITMQ
from support.servers.rabbitmq_admin import BrokerAdmin, BrokerUnderTest

CONFIG = "targets: {echo: {provider: mock, max_concurrency: 3}}\n"


@pytest.fixture
def shell(broker_url: str) -> Iterator[CommandLine]:
    """A shell before a broker with no service on it."""
    with process_fleet(broker_url, CONFIG, targets=["echo"]) as fleet:
        env = {"QUINTAIN_BROKER_URL": broker_url, "QUINTAIN_ADMIN_TOKEN": ADMIN_TOKEN}
        with command_line(fleet.folder, env) as shell:
            yield shell


def ready(running: RunningCommand) -> bool:
    return "ready  " in running.stderr


def test_it_shows_who_is_there_and_exits_1_where_somebody_is_missing(shell: CommandLine) -> None:
    nobody = shell.run("status", "--wait", "0.2", "--timeout", "1", code=1)
    assert "quintain serve metadata" in nobody.stderr
    metadata, worker = (shell.start("serve", name) for name in ("metadata", "worker"))
    worker.wait_for(ready)
    metadata.wait_for(ready)
    well = shell.run("status")
    assert "1 worker" in well.stdout
    assert "echo" in well.stdout
    assert "2 services answer" in well.stderr
    told = shell.run("status", "--json").json
    assert told["exitCode"] == 0
    services = told["services"]
    assert isinstance(services, list)
    assert [one["service"] for one in services] == ["metadata", "worker"]
    assert services[1]["slots"] == 3
    assert services[1]["heartbeatAgeMs"] < 15_000
    assert ADMIN_TOKEN not in str(told)
    watched = shell.run("top", "--json", "--wait", "1").json
    assert [one["name"] for one in watched["targets"]] == ["echo"]
    assert [one["condition"] for one in watched["workers"]] == ["live"]
    assert ADMIN_TOKEN not in str(watched)
    assert "echo" in shell.run("top", "--once").stdout
    # A worker that is gone leaves a target that is known, and served by nobody.
    worker.kill()
    gone = shell.run("status", "--wait", "0.5", code=1)
    assert re.search(r"^echo +mock +none ", gone.stdout, re.MULTILINE)
    assert "target echo has no live worker" in gone.stderr
    assert "quintain serve worker" in gone.stderr
    # Without the admin token nobody can say what should be there.
    blind = shell.run("status", "--wait", "0.5", env={"QUINTAIN_ADMIN_TOKEN": ""})
    assert "QUINTAIN_ADMIN_TOKEN" in blind.stderr


@pytest.fixture
def restricted_shell(breakable_broker: BrokerUnderTest, broker_admin: BrokerAdmin) -> Iterator[CommandLine]:
    """A shell before a broker whose user may do everything but be found, or ask who is there."""
    broker_admin.rabbitmqctl("add_user", "unseen", "unseen")
    broker_admin.rabbitmqctl(
        "set_permissions", "unseen", r"^(?!quintain\.discovery\.)", r"^(?!quintain\.discovery)", ".*"
    )
    env = {
        "QUINTAIN_BROKER_URL": f"amqp://unseen:unseen@{RABBITMQ.address(breakable_broker.url)}/",
        "QUINTAIN_ADMIN_TOKEN": ADMIN_TOKEN,
    }
    with (
        process_fleet(breakable_broker.url, CONFIG, targets=["echo"]) as fleet,
        command_line(fleet.folder, env) as shell,
    ):
        yield shell
    broker_admin.rabbitmqctl("delete_user", "unseen")


def test_a_service_that_may_not_be_found_serves_all_the_same(restricted_shell: CommandLine) -> None:
    metadata, worker = (restricted_shell.start("serve", name) for name in ("metadata", "worker"))
    for service in (worker, metadata):
        service.wait_for(ready)
        service.wait_for(lambda one: "`quintain status` will not show this service" in one.stderr)
    token = str(restricted_shell.run("session", "open", "--json").json["token"])
    assert restricted_shell.run("invoke", "hi", env={"QUINTAIN_SESSION_TOKEN": token}).stdout == "hi\n"
    refused = restricted_shell.run("status", "--json", code=1)
    assert refused.json["code"] == "broker_refused"


@pytest.mark.parametrize(
    ("env", "says"),
    [
        ({"QUINTAIN_BROKER_URL": "", "QUINTAIN_GATEWAY_URL": "http://127.0.0.1:8787"}, "http://127.0.0.1:8787/health"),
        ({"QUINTAIN_BROKER_URL": "memory://"}, "runs in one process"),
        ({"QUINTAIN_BROKER_URL": ""}, "QUINTAIN_BROKER_URL is not set"),
    ],
    ids=["over HTTP", "memory", "nothing"],
)
def test_it_says_where_it_cannot_ask(tmp_path_factory: pytest.TempPathFactory, env: dict[str, str], says: str) -> None:
    with command_line(tmp_path_factory.mktemp("shell"), {}) as shell:
        assert says in shell.run("status", code=2, env=env).stderr
