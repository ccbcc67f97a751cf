"""``quintain invoke`` and Ctrl-C: the call is taken back, and the provider is not left working for nobody."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.command_line import CommandLine, RunningCommand
from support.process_fleet import fleet_shell
from support.waiting import block_until

#: A program that leaves its process id where the test finds it, and takes its time.
CONFIG = """
targets:
  slow: {{provider: command, command: [/bin/sh, -c, 'echo $$ > {pid}; exec sleep 600']}}
"""


@pytest.fixture(scope="module")
def pid_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("target") / "pid"


@pytest.fixture(scope="module")
def shell(broker_url: str, pid_file: Path) -> Iterator[CommandLine]:
    """A shell before a fleet whose only target takes its time."""
    with fleet_shell(
        broker_url, CONFIG.format(pid=pid_file), targets=["slow"], services=["metadata", "worker"]
    ) as shell:
        yield shell


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("words", [("invoke", "hi"), ("invoke", "hi", "--json")], ids=" ".join)
def test_an_interrupted_invoke_takes_its_call_back(shell: CommandLine, pid_file: Path, words: tuple[str, ...]) -> None:
    pid_file.unlink(missing_ok=True)
    opened = shell.run("session", "open", "--default-target", "slow", "--json").json
    evaluator = shell.with_environment({"QUINTAIN_SESSION_TOKEN": str(opened["token"])})
    asking = evaluator.start(*words)

    def reached_the_target(_: RunningCommand) -> bool:
        return pid_file.exists() and pid_file.read_text().endswith("\n")

    asking.wait_for(reached_the_target)
    pid = int(pid_file.read_text())
    assert alive(pid)
    interrupted = asking.stop(signal.SIGINT, seconds=15)
    assert (interrupted.code, interrupted.stdout) == (130, "")
    assert interrupted.stderr.splitlines() == [
        "cancelling the call; `quintain info` shows whether it was charged",
        "interrupted",
    ]
    block_until(lambda: not alive(pid))

    def settled() -> bool:
        info = evaluator.run("info", "--json").json
        return (info["reserved"], info["running"]) == (0, 0)

    block_until(settled)
