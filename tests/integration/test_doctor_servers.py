"""What `quintain doctor` asks of real servers: a PostgreSQL, a broker under an alarm, and its management API."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from quintain.bus.connect import connect_bus
from quintain.bus.rabbit_declarations import inspect_broker
from quintain.contracts.message import MAX_BODY_BYTES
from quintain.errors import BusError, ConfigError
from quintain.settings import read_settings
from quintain.topology import INVOKE, METADATA_TOPOLOGY, Binding, Queue, Topology, target_queue, target_topology
from quintain_cli.broker_checks import DoctorCheck, management_checks
from quintain_cli.broker_management import Management, open_management
from quintain_cli.commands.doctor import database_checks, run_checks
from quintain_cli.role_checks import check_running_roles
from quintain_metadata.store.opening import open_snapshot
from support.broker_users import DEFINITIONS, broker_users
from support.command_line import command_line
from support.servers.ports import free_port
from support.servers.rabbitmq_admin import BrokerAdmin, BrokerUnderTest
from support.waiting import block_until


async def test_a_postgresql_tells_what_a_crash_can_lose(postgres_url: str) -> None:
    async with open_snapshot(postgres_url) as snapshot:
        server = await snapshot.server()
    assert server is not None
    assert server.settings.keys() == {"fsync", "full_page_writes", "synchronous_commit"}
    failed = {check.what for check in database_checks(server, time.time()) if check.verdict == "fail"}
    assert failed == {f"durability: {name}" for name, setting in server.settings.items() if setting == "off"}


async def test_a_broker_tells_whether_it_refuses_a_message_by_its_size(broker_url: str) -> None:
    async with inspect_broker(broker_url, timeout_seconds=10) as inspection:
        assert await inspection.refuses_message_of(MAX_BODY_BYTES + 1)
        assert not await inspection.refuses_message_of(MAX_BODY_BYTES)


#: Starts the management API, if the broker does not have it yet, and asks it from inside its node.
ASK_MANAGEMENT = """
case lists:keymember(rabbitmq_management, 1, application:which_applications()) of
    true -> ok;
    false ->
        application:load(rabbitmq_management),
        application:set_env(rabbitmq_management, tcp_config, [{port, PORT}, {ip, "127.0.0.1"}]),
        {ok, Plugins} = application:get_env(rabbit, enabled_plugins_file),
        ok = file:write_file(Plugins, "[rabbitmq_management]."),
        {ok, _, _} = rabbit_plugins:ensure(Plugins)
end,
inets:start(),
[Port | _] = [P || {listener, _, http, _, _, P, _} <- rabbit_networking:active_listeners()],
{ok, {{_, Status, _}, _, Body}} = httpc:request(
    get, {"http://127.0.0.1:" ++ integer_to_list(Port) ++ "PATH", [{"authorization", "AUTH"}]}, [], []
),
io:format("~b ~s", [Status, Body])
"""


@contextlib.contextmanager
def open_stub(answer: Callable[[str], str], date: str | None = None) -> Iterator[Management]:
    """A management API that answers a path with ``status body``, and gives this date or the true one."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.headers["authorization"] == "Basic Z3Vlc3Q6Z3Vlc3Q="
            status, _, body = answer(self.path).partition(" ")
            self.send_response(int(status))
            self.send_header("content-length", str(len(body.encode())))
            self.end_headers()
            self.wfile.write(body.encode())

        def date_time_string(self, timestamp: float | None = None) -> str:
            return super().date_time_string(timestamp) if date is None else date

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield open_management("amqp://127.0.0.1/", f"http://127.0.0.1:{server.server_port}")
        server.shutdown()
        thread.join()


@pytest.fixture
def management_of_broker(broker_admin: BrokerAdmin) -> Iterator[Management]:
    login = urlsplit(broker_admin.url)
    word = b64encode(f"{login.username}:{login.password}".encode()).decode()
    program = ASK_MANAGEMENT.replace("PORT", str(free_port())).replace("AUTH", f"Basic {word}")
    with open_stub(lambda path: broker_admin.evaluate(program.replace("PATH", path))) as management:
        yield management


ADD_ALMIGHTY = """
ok = rabbit_auth_backend_internal:add_user(<<"almighty">>, <<"word">>, <<"test">>),
ok = rabbit_auth_backend_internal:set_permissions(<<"almighty">>, <<"/">>, <<".*">>, <<".*">>, <<".*">>, <<"test">>)
"""
DELETE_ALMIGHTY = 'ok = rabbit_auth_backend_internal:delete_user(<<"almighty">>, <<"test">>)'


async def test_rights_and_copies_are_found_through_a_real_management_api(
    management_of_broker: Management, breakable_broker: BrokerUnderTest, broker_admin: BrokerAdmin
) -> None:
    bus = await connect_bus(breakable_broker.url, "spy", timeout_seconds=10)
    spy = Queue("spy", "classic", exclusive=True)
    await bus.declare(METADATA_TOPOLOGY + target_topology("echo"))
    await asyncio.to_thread(broker_admin.evaluate, ADD_ALMIGHTY)
    try:
        checked = (management_of_broker, [], check_running_roles)
        before = await asyncio.to_thread(lambda: list(management_checks(*checked)))
        assert "management API" not in {check.what for check in before}
        verdicts = {check.what: check for check in before}
        assert (verdicts["rights"].verdict, verdicts["bindings"].verdict) == ("fail", "ok")
        assert "almighty" in verdicts["rights"].says
        await bus.declare(Topology((INVOKE,), (spy,), (Binding(INVOKE, spy, "#"),)))

        def is_found() -> bool:
            # One answer of the API may fail while the broker collects the figures of a new queue.
            checks = management_checks(management_of_broker, [])
            return any(each.what == "bindings" and each.verdict == "fail" and "spy" in each.says for each in checks)

        await asyncio.to_thread(block_until, is_found)
    finally:
        await asyncio.to_thread(broker_admin.evaluate, DELETE_ALMIGHTY)
        await bus.delete(target_queue("echo"))
        await bus.close()


async def declare(broker_url: str) -> None:
    bus = await connect_bus(broker_url, "metadata", timeout_seconds=10)
    await bus.declare(METADATA_TOPOLOGY)
    await bus.close()


def test_a_worker_that_may_not_reach_the_ledger_is_named_by_doctor_and_by_its_own_log(
    tmp_path: Path, management_of_broker: Management, breakable_broker: BrokerUnderTest, broker_admin: BrokerAdmin
) -> None:
    # The API lists the connections that were opened after its plugin began.
    assert [check.verdict for check in check_running_roles(management_of_broker)]
    rights = {each["user"]: dict(each) for each in DEFINITIONS["permissions"] if each["user"] in {"worker", "metadata"}}
    rights["worker"]["write"] = rights["worker"]["write"].replace("ledger|", "")
    users = broker_users(broker_admin, breakable_broker.url, [*rights.values()])
    management = dataclasses.replace(management_of_broker, vhost=users.vhost)
    (tmp_path / "quintain.yaml").write_text("targets: {echo: {provider: mock}}")
    broker = urlsplit(breakable_broker.url)._replace(path=f"/{users.vhost}").geturl()
    try:
        with command_line(tmp_path, {"QUINTAIN_BROKER_URL": broker}) as shell:
            asyncio.run(declare(users.url("metadata")))
            worker = shell.start("serve", "worker", env={"QUINTAIN_BROKER_URL": users.url("worker")})
            worker.wait_for(lambda one: "quintain.ledger" in one.stderr)
            block_until(lambda: next(check_running_roles(management)).verdict == "fail")
            doctor: Any = shell.run("doctor", "--json", "--management", management.address, code=1).json
        (found,) = [line for line in doctor["lines"] if line["what"] == "rights of services"]
        assert (found["verdict"], found["says"]) == (
            "fail", "a worker is connected as worker, which may not write to quintain.ledger"
        )  # fmt: skip
        assert "access to exchange 'quintain.ledger'" in worker.stderr
        assert "refused for user 'worker'" in worker.stderr
    finally:
        broker_admin.evaluate(f'ok = rabbit_vhost:delete(<<"{users.vhost}">>, <<"test">>)')


async def test_under_an_alarm_each_check_ends_and_says_so(
    tmp_path: Path, breakable_broker: BrokerUnderTest, broker_admin: BrokerAdmin
) -> None:
    settings = read_settings({"QUINTAIN_STATE_DIR": str(tmp_path), "QUINTAIN_ADMIN_TOKEN": "t" * 16})
    await asyncio.to_thread(broker_admin.evaluate, 'rabbit_disk_monitor:set_disk_free_limit("100000GB")')
    try:
        async with asyncio.timeout(30):
            report = await run_checks(settings, breakable_broker.url, timeout_seconds=1)
    finally:
        await asyncio.to_thread(broker_admin.evaluate, 'rabbit_disk_monitor:set_disk_free_limit("50MB")')
    (alarms,) = [check for check in report.lines if check.what == "alarms"]
    assert (alarms.verdict, "rabbitmq-diagnostics alarms" in (alarms.mend or "")) == ("fail", True)
    assert {"broker", "version", "quintain.invoke", "ledger"} <= {check.what for check in report.lines}


def test_the_clock_of_the_broker_is_the_date_of_its_answer() -> None:
    with open_stub(lambda _: "200 {}", "Thu, 01 Jan 1970 00:01:40 GMT") as management:
        assert management.clock() == 100
    with open_stub(lambda _: "200 {}", "no date") as management, pytest.raises(BusError):
        management.clock()


@pytest.mark.parametrize("address", ["broker:15672", "ftp://broker", "http://", "http://me:word@broker:15672"])
def test_what_is_no_address_of_a_management_api_is_refused(address: str) -> None:
    with pytest.raises(ConfigError) as refused:
        open_management("amqp://127.0.0.1/", address)
    assert "word" not in refused.value.message.replace("password", "")


async def test_a_broker_that_refuses_and_one_that_is_away_have_mends_of_their_own(
    tmp_path: Path, broker_url: str
) -> None:
    settings = read_settings({"QUINTAIN_STATE_DIR": str(tmp_path)})
    address = urlsplit(broker_url).netloc.rpartition("@")[2]
    found = dict[str, DoctorCheck]()
    for url in (f"amqp://guest:wrong@{address}/", f"amqp://guest:guest@127.0.0.1:{free_port()}/"):
        report = await run_checks(settings, url, timeout_seconds=2)
        (found[url],) = [check for check in report.lines if check.what == "broker"]
    refused, absent = found.values()
    assert (refused.verdict, absent.verdict) == ("fail", "fail")
    assert "the user or password" in refused.says
    assert "add-user" in (refused.mend or "")
    assert "start a broker" in (absent.mend or "")
