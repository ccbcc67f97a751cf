"""``quintain quota list|show|set``: an administrator's view of provider keys, on a fleet behind a real broker."""

from __future__ import annotations

from typing import Any

from support.command_line import CommandLine
from support.process_fleet import fleet_shell
from support.quick import lease_variable

CONFIG = """quotas: {team: {requests_per_minute: 600, concurrency: {start: 5}}}
targets: {echo: {provider: mock}, paced: {provider: mock, quota: team}}
"""


def test_quotas_are_listed_shown_and_set_and_nothing_is_said_of_one_that_is_not_there(broker_url: str) -> None:
    with fleet_shell(broker_url, CONFIG, targets=["echo", "paced"], variables=lease_variable()) as shell:
        shell.serve("metadata")
        assert shell.run("quota", "list", "--json").json["quotas"] == []
        assert "next     quintain status" in shell.run("quota", "list").stderr
        shell.run("quota", "show", "team", code=2)
        words = ("quota", "set", "team", "--reason", "a test")
        assert shell.run(*words, "--concurrency", "5", "--json", code=1).json["code"] == "bad_request"

        shell.serve("worker")
        (listed,) = quotas(shell, "quota", "list", "--json")
        assert (listed["name"], listed["targets"], listed["limit"]) == ("team", ["paced"], 5)
        assert 540 <= listed["requestsPerMinute"] <= 600
        assert "next     quintain quota show team" in shell.run("quota", "list").stderr
        said = shell.run(*words, "--concurrency", "3", "--requests-per-minute", "60")
        assert said.stdout.startswith("set      team: 3 calls in flight, 60 requests/min")
        while (shown := shell.run("quota", "show", "team", "--json").json)["limit"] != 3:
            pass
        assert 54 <= float(str(shown["requestsPerMinute"])) <= 60
        (seen,) = quotas(shell, "status", "--json", "--wait", "0.5")
        assert (seen["name"], seen["limit"], seen["condition"]) == ("team", 3, "open")
        shell.run(*words, "--reset")


def quotas(shell: CommandLine, *words: str) -> list[dict[str, Any]]:
    """The quotas that a command prints."""
    found = shell.run(*words).json["quotas"]
    assert isinstance(found, list)
    return found


def test_what_no_quota_can_be_set_to_is_refused_before_anything_is_asked(shell: CommandLine) -> None:
    for words in (
        (),
        ("--concurrency", "0"),
        ("--requests-per-minute", "-1"),
        ("--tokens-per-minute", "nan"),
        ("--requests-per-minute", "0"),
    ):
        shell.run("quota", "set", "team", *words, "--reason", "a test", code=2)
