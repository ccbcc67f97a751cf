"""``quintain quota list|show|set``: an administrator's view of provider keys, on a fleet behind a real broker."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from support.command_line import CommandLine, command_line, ready
from support.process_fleet import fleet_shell

CONFIG = """quotas: {team: {requests_per_minute: 600, concurrency: {start: 5}}}
targets: {echo: {provider: mock}, paced: {provider: mock, quota: team}}
"""


@pytest.fixture
def shell(broker_url: str) -> Iterator[CommandLine]:
    """A shell before a broker with a metadata service on it."""
    with fleet_shell(broker_url, CONFIG, targets=["echo", "paced"]) as shell:
        shell.start("serve", "metadata").wait_for(ready)
        yield shell


def quotas(shell: CommandLine, *words: str) -> list[dict[str, Any]]:
    """The quotas that a command prints."""
    found = shell.run(*words).json["quotas"]
    assert isinstance(found, list)
    return found


def test_without_a_quota_the_commands_say_so(shell: CommandLine) -> None:
    assert shell.run("quota", "list", "--json").json["quotas"] == []
    assert "next     quintain status" in shell.run("quota", "list").stderr
    shell.run("quota", "show", "team", code=2)
    refused = shell.run("quota", "set", "team", "--concurrency", "5", "--reason", "a test", "--json", code=1).json
    assert refused["code"] == "bad_request"


def test_a_quota_is_shown_and_set_while_its_worker_runs(shell: CommandLine) -> None:
    shell.start("serve", "worker").wait_for(ready)
    (listed,) = quotas(shell, "quota", "list", "--json")
    assert (listed["name"], listed["targets"], listed["limit"]) == ("team", ["paced"], 5)
    assert 540 <= listed["requestsPerMinute"] <= 600
    assert "next     quintain quota show team" in shell.run("quota", "list").stderr
    said = shell.run("quota", "set", "team", "--concurrency", "3", "--requests-per-minute", "60", "--reason", "a test")
    assert said.stdout.startswith("set      team: 3 calls in flight, 60 requests/min")

    deadline = time.monotonic() + 2.0
    while (shown := shell.run("quota", "show", "team", "--json").json)["limit"] != 3:
        assert time.monotonic() < deadline, shown
    rate = shown["requestsPerMinute"]
    assert isinstance(rate, float)
    assert 54 <= rate <= 60
    (seen,) = quotas(shell, "status", "--json", "--wait", "0.5")
    assert (seen["name"], seen["limit"], seen["condition"]) == ("team", 3, "open")
    shell.run("quota", "set", "team", "--reset", "--reason", "a test")


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--concurrency", "0"],
        ["--requests-per-minute", "-1"],
        ["--tokens-per-minute", "nan"],
        ["--requests-per-minute", "0"],
    ],
)
def test_what_no_quota_can_be_set_to_is_refused_before_anything_is_asked(
    tmp_path_factory: pytest.TempPathFactory, words: list[str]
) -> None:
    with command_line(tmp_path_factory.mktemp("shell"), {}) as shell:
        shell.run("quota", "set", "team", *words, "--reason", "a test", code=2)
