"""``quintain broker``: users through the management API, and what a user of one's own may do."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import typer

from quintain.bus.connect import connect_bus
from quintain.errors import ConfigError
from quintain.settings import url_user
from quintain.topology import METADATA_TOPOLOGY, host_topology, reply_topology, target_topology
from quintain_cli.broker_management import (
    ROLES,
    USER_LIMITS,
    user_permissions,
)
from quintain_cli.commands.broker import add_user
from support.broker_users import DEFINITIONS, broker_users
from support.command_line import CommandLine, command_line, ready
from support.process_fleet import fleet_shell
from support.servers.rabbitmq_admin import BrokerAdmin, BrokerUnderTest

BROKER_URL = "amqp://root:word@127.0.0.1:5672/evals"


@dataclass
class ManagementApi:
    """A management API that keeps what it is asked."""

    url: str = ""
    status: int = 200
    requests: list[tuple[str, str, object]] = field(default_factory=list)

    def written(self) -> dict[str, object]:
        """The bodies of what was written, by path."""
        return {path: body for method, path, body in self.requests if method == "PUT"}


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[ManagementApi]:
    made = ManagementApi()

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            made.requests.append((self.command, self.path, json.loads(body) if body else None))
            self.send_response(made.status)
            self.send_header("content-length", "0")
            self.end_headers()

        do_GET = do_PUT = do_DELETE = answer  # noqa: N815 -- the names of http.server

        def log_message(self, *_: object) -> None:
            pass

    monkeypatch.setenv("QUINTAIN_BROKER_URL", BROKER_URL)
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        made.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield made
        server.shutdown()
        thread.join()


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[CommandLine]:
    """A shell whose broker has that API."""
    with command_line(tmp_path, {"QUINTAIN_BROKER_URL": BROKER_URL}) as shell:
        yield shell


def test_the_deployment_gives_its_users_the_rights_and_limits_of_their_roles() -> None:
    assert all(user_permissions(role, role) == ROLES[role] for role in ROLES)
    assert {user["name"] for user in DEFINITIONS["users"]} == ROLES.keys()
    assert all(user["limits"] == USER_LIMITS for user in DEFINITIONS["users"])


@pytest.mark.parametrize(
    ("url", "vhost", "printed_vhost"),
    [
        ("amqp://root:word@127.0.0.1:5672/evals", None, "evals"),
        ("amqp://root:word@127.0.0.1:5672/evals", "other", "other"),
        ("amqps://root:word@a.example/a%2Fb?cafile=ca.pem,amqps://root:word@b.example/a%2Fb", None, "a/b"),
        ("amqp://root:word@127.0.0.1:5672/", None, "/"),
        ("", None, "/"),
    ],
)
def test_printed_definitions_are_of_the_urls_virtual_host_and_change_nothing(
    api: ManagementApi,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    url: str,
    vhost: str | None,
    printed_vhost: str,
) -> None:
    monkeypatch.setenv("QUINTAIN_BROKER_URL", url)
    add_user("worker-a", role="worker", only=["echo"], management=api.url, vhost=vhost, print_only=True)
    told = capsys.readouterr()
    definitions = json.loads(told.out)
    assert {each["vhost"] for each in definitions["permissions"]} == {printed_vhost}
    (user,) = definitions["users"]
    assert user["password_hash"]
    assert user["limits"] == USER_LIMITS
    assert told.err.split()[-1] not in told.out, "the password is printed beside the definitions"
    assert api.requests == []


@pytest.mark.parametrize(("vhost", "path"), [(None, "evals"), ("other/one", "other%2Fone")])
def test_a_user_is_added_with_the_permissions_of_its_role(
    api: ManagementApi, shell: CommandLine, vhost: str | None, path: str
) -> None:
    there = ("--management", api.url, *(() if vhost is None else ("--vhost", vhost)))
    added = shell.run("broker", "add-user", "evaluator-alice", "--role", "evaluator", *there, "--json").json
    assert api.written() == {
        "/api/users/evaluator-alice": {"password": added["password"], "tags": ""},
        f"/api/permissions/{path}/evaluator-alice": user_permissions("evaluator", "evaluator-alice"),
        **{f"/api/user-limits/evaluator-alice/{name}": {"value": most} for name, most in USER_LIMITS.items()},
    }


def test_a_worker_is_added_with_the_targets_of_only_in_the_ledger_or_not_at_all(
    api: ManagementApi, broker_url: str
) -> None:
    add = ("broker", "add-user", "worker-a", "--role", "worker", "--only", "echo", "--management", api.url)
    with fleet_shell(broker_url, "targets: {echo: {provider: mock}}\n", targets=["echo"]) as shell:
        assert "QUINTAIN_ADMIN_TOKEN" in shell.run(*add, code=2, env={"QUINTAIN_ADMIN_TOKEN": ""}).stderr
        assert api.requests == []
        shell.start("serve", "metadata").wait_for(ready)
        shell.run(*add)
        assert "/api/users/worker-a" in api.written()
        # The tests' own user: its worker is refused until it may serve any target again.
        user = url_user(broker_url)
        assert shell.run("broker", "limit", user, "--only", "other", "--json").json["targets"] == ["other"]
        worker = shell.start("serve", "worker")
        worker.wait_for(lambda one: "Not registered yet" in one.stderr and user in one.stderr)
        shell.run("broker", "limit", user)
        worker.wait_for(ready)


@pytest.mark.parametrize("status", [401, 403, 500])
def test_what_the_api_refuses_ends_the_command(api: ManagementApi, status: int) -> None:
    api.status = status
    with pytest.raises(typer.Exit):
        add_user("worker-a", role="worker", management=api.url)


@pytest.mark.parametrize(
    ("role", "name", "only"),
    [("king", "king", []), ("evaluator", ".*", []), ("evaluator", "alice", ["echo"]), ("worker", "w", [".*|x)"])],
)
def test_no_name_widens_a_permission(role: str, name: str, only: list[str]) -> None:
    with pytest.raises(ConfigError):
        user_permissions(role, name, only)


@pytest.mark.every_broker
async def test_a_user_of_ones_own_reaches_only_its_own(
    breakable_broker: BrokerUnderTest, broker_admin: BrokerAdmin
) -> None:
    own = {
        "evaluator-alice": ("evaluator", []),
        "evaluator-bob": ("evaluator", []),
        "worker-echo": ("worker", ["echo"]),
        "host-desk": ("host", ["desk"]),
    }
    rights = [{"user": name, **user_permissions(role, name, only)} for name, (role, only) in own.items()]
    users = broker_users(broker_admin, breakable_broker.url, [*DEFINITIONS["permissions"], *rights])
    topologies = {
        "metadata": METADATA_TOPOLOGY + target_topology("echo") + target_topology("paid"),
        "evaluator-alice": reply_topology("quintain.reply.evaluator-alice.x", "x"),
        "evaluator-bob": reply_topology("quintain.reply.evaluator-bob.x", "x"),
        "host-desk": host_topology("desk"),
        "host": host_topology("other"),
    }
    for user, topology in topologies.items():
        bus = await connect_bus(users.url(user), user)
        await bus.declare(topology)
        await bus.close()

    def may_read(user: str, queue: str) -> bool:
        return users.is_allowed(user, "basic_get", queue)

    assert may_read("evaluator-bob", "quintain.reply.evaluator-bob.x")
    assert not may_read("evaluator-bob", "quintain.reply.evaluator-alice.x")
    assert not users.is_allowed("evaluator-bob", "queue_delete", "quintain.reply.evaluator-alice.x")
    for queue in ("", "/backlog"):
        assert may_read("worker-echo", f"quintain.target.echo{queue}")
        assert not may_read("worker-echo", f"quintain.target.paid{queue}")
    assert may_read("host-desk", "quintain.host.desk")
    assert not may_read("host-desk", "quintain.host.other")
    assert not users.is_allowed("host-desk", "queue_delete", "quintain.host.other")
