"""``quintain quota list|show|set``: an administrator's view of provider keys, on a fleet behind a real broker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.command_line import CommandLine, command_line
from support.process_fleet import ADMIN_TOKEN, process_fleet

CONFIG = "targets: {echo: {provider: mock}}\n"


@pytest.fixture
def shell(broker_url: str) -> Iterator[CommandLine]:
    """A shell before a broker with a metadata service on it."""
    with process_fleet(broker_url, CONFIG, targets=["echo"]) as fleet:
        env = {"QUINTAIN_BROKER_URL": broker_url, "QUINTAIN_ADMIN_TOKEN": ADMIN_TOKEN}
        with command_line(fleet.folder, env) as shell:
            shell.start("serve", "metadata").wait_for(lambda one: "ready  " in one.stderr)
            yield shell


def test_without_a_quota_the_commands_say_so(shell: CommandLine) -> None:
    assert shell.run("quota", "list", "--json").json["quotas"] == []
    assert "next     quintain status" in shell.run("quota", "list").stderr
    shell.run("quota", "show", "team", code=2)
    refused = shell.run("quota", "set", "team", "--concurrency", "5", "--reason", "a test", "--json", code=1).json
    assert refused["code"] == "bad_request"


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
