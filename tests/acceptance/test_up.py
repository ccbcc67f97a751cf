"""``quintain up``: every service in one process, no broker, and a line to try it that works as it is printed."""

from __future__ import annotations

import contextlib
import json
import shlex
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import apsw
import pytest

from support.command_line import CommandLine, RunningCommand, clean_environment

CONFIG = "targets: {parrot: {provider: mock}, sage: {provider: mock, response: '42'}}\n"


@pytest.fixture
def configured_shell(shell: CommandLine) -> CommandLine:
    """A shell in a folder with a configuration."""
    (shell.folder / "quintain.yaml").write_text(CONFIG)
    return shell


@pytest.fixture
def taken_port() -> Iterator[int]:
    """A port of the loopback that somebody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def is_started(running: RunningCommand) -> bool:
    return "stop     " in running.stderr


def printed_facts(running: RunningCommand) -> dict[str, str]:
    return dict(line.split(maxsplit=1) for line in running.stdout.splitlines())


def run_as_printed(line: str) -> dict[str, object]:
    """What the printed line gets. Where there is no curl, the same request is sent without it."""
    words = shlex.split(line)
    assert words[:2] == ["curl", "-s"]
    if shutil.which("curl") is not None:
        said = subprocess.run(["sh", "-c", line], env=clean_environment(), capture_output=True, timeout=30, check=True)
        return dict(json.loads(said.stdout))
    name, _, value = words[words.index("-H") + 1].partition(": ")
    with urlopen(Request(words[2], words[words.index("-d") + 1].encode(), {name: value}), timeout=30) as response:
        return dict(json.load(response))


def status_for_host(url: str, host: str) -> int:
    """The status of the answer to a client that calls the gateway by this name."""
    try:
        with urlopen(Request(f"{url}/health/live", headers={"Host": host}), timeout=30) as response:
            return int(response.status)
    except HTTPError as error:
        with error:
            return error.code


def test_up_greets_with_a_line_that_works_as_printed_and_stops_when_told(configured_shell: CommandLine) -> None:
    up = configured_shell.start("up", "--port", "0", "--max-calls", "3", "--allowed-host", "proxy.example")
    up.wait_for(is_started)
    facts = printed_facts(up)
    for host, status in (("proxy.example", 200), ("host.docker.internal", 200), ("page.example", 421)):
        assert status_for_host(facts["gateway"], host) == status
    assert facts["gateway"].startswith("http://127.0.0.1:")
    assert facts["fleet"] == f"{facts['gateway']}/fleet"
    assert facts["broker"] == "memory://"
    assert facts["targets"] == "parrot, sage"
    answer = run_as_printed(facts["try"])
    assert (answer["rawText"], answer["target"], answer["callCount"], answer["maxCalls"]) == ("Hello?", "parrot", 1, 3)
    ended = up.stop()
    assert ended.code == 0
    assert "Traceback" not in ended.stderr


def test_up_with_json_prints_one_object_and_keeps_its_admin_token_for_this_user_alone(
    configured_shell: CommandLine,
) -> None:
    up = configured_shell.start("up", "--port", "0", "--json")
    up.wait_for(lambda one: "\n" in one.stdout)
    facts = json.loads(up.stdout)
    assert facts["targets"] == ["parrot", "sage"]
    assert facts["token"].startswith(f"qtn_ses_{facts['sessionId']}_")
    kept = configured_shell.folder / "state" / "admin-token"
    assert kept.stat().st_mode & 0o077 == 0
    assert up.stop(signal.SIGINT).code == 0
    assert up.stdout.count("\n") == 1


def test_a_port_that_is_taken_is_said_with_the_mend(configured_shell: CommandLine, taken_port: int) -> None:
    refused = configured_shell.run("up", "--port", str(taken_port), code=2)
    assert f"Port {taken_port} of 127.0.0.1" in refused.stderr
    assert "--port" in refused.stderr
    assert configured_shell.run("up", "--port", str(taken_port), "--json", code=2).json["code"] == "config_error"


def test_without_a_configuration_it_says_what_to_write(shell: CommandLine) -> None:
    refused = shell.run("up", code=2)
    assert "there is no quintain.yaml" in refused.stderr
    assert "QUINTAIN_CONFIG" in refused.stderr
    missing = shell.run("up", code=2, env={"QUINTAIN_CONFIG": "elsewhere.yaml"})
    assert "elsewhere.yaml" in missing.stderr


def test_sessions_that_ended_long_ago_are_deleted_where_the_environment_says_so(configured_shell: CommandLine) -> None:
    up = configured_shell.start("up", "--port", "0")
    up.wait_for(is_started)
    assert up.stop().code == 0
    with contextlib.closing(apsw.Connection(str(configured_shell.folder / "state" / "ledger.sqlite3"))) as ledger:
        ledger.execute("UPDATE session SET created_at = created_at - 864000000, state = 'closed'")
    again = configured_shell.start("up", "--port", "0", env={"QUINTAIN_RETENTION_DAYS": "3"})
    again.wait_for(is_started)
    # That of this start is left.
    again.wait_for(lambda _: configured_shell.run("ledger", "verify", "--json").json["sessions"] == 1)
    assert again.stop().code == 0
