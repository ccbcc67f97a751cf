"""``--ops-port``: what a container's probe asks, of real services before a real broker, and one that is lost."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from support.command_line import CommandLine, RunningCommand
from support.process_fleet import fleet_shell
from support.quick import lease_variable
from support.servers.ports import free_port

CONFIG = "targets: {echo: {provider: mock}}\n"
NOWHERE = "amqp://guest:guest@127.0.0.1:1/"


@pytest.fixture
def shell(broker_url: str) -> Iterator[CommandLine]:
    """A shell before a broker with no service on it."""
    with fleet_shell(broker_url, CONFIG, targets=["echo"], variables=lease_variable()) as shell:
        yield shell


def http_get(url: str, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"{url}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, refused.read().decode()


def ops_url(service: RunningCommand) -> str:
    """The base URL of a service's operations port, once it listens."""
    service.wait_for(lambda one: "health   " in one.stderr)
    found = re.search(r"health   (http://\S+)/health/ready", service.stderr)
    return found[1]


def test_a_service_that_waits_for_its_broker_lives_and_says_so(shell: CommandLine) -> None:
    port = str(free_port())
    env = {"QUINTAIN_BROKER_URL": NOWHERE, "QUINTAIN_OPS_PORT": port}
    worker = shell.with_environment(env).start("serve", "worker")
    url = ops_url(worker)
    assert url == f"http://127.0.0.1:{port}"
    assert http_get(url, "/health/live") == (200, '{"status":"live"}')
    worker.wait_for(lambda one: "waiting  " in one.stderr)
    status, said = http_get(url, "/health/ready")
    assert status == 503
    assert "No broker at amqp://guest@127.0.0.1:1/" in json.loads(said)["reason"]
    assert worker.stop().code == 0
