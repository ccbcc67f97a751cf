"""``--ops-port``: what a container's probe asks, of real services before a real broker, and one that is lost."""

from __future__ import annotations

import json
import re
import time
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


def wait_until_ready(url: str, *, seconds: float = 30) -> None:
    ends = time.monotonic() + seconds
    while (answer := http_get(url, "/health/ready")) != (200, '{"status":"ready"}'):
        assert time.monotonic() < ends, answer
        time.sleep(0.2)


def test_a_worker_is_ready_when_its_calls_would_be_answered(shell: CommandLine) -> None:
    worker = shell.start("serve", "worker", "--ops-port", "0")
    url = ops_url(worker)
    assert http_get(url, "/health/live") == (200, '{"status":"live"}')
    status, said = http_get(url, "/health/ready")
    assert (status, json.loads(said)["status"]) == (503, "unready")
    metadata = shell.start("serve", "metadata", "--ops-port", "0")
    wait_until_ready(ops_url(metadata))
    wait_until_ready(url)
    assert "quintain_broker_connected 1.0\n" in http_get(url, "/metrics")[1]
    assert [one.stop().code for one in (worker, metadata)] == [0, 0]


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
