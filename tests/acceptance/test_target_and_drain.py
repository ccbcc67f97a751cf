"""``quintain target pause|resume`` and ``quintain drain``: an administrator's word to a fleet behind a real broker."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import pytest
import typer

from quintain.timings import DEFAULT_TIMINGS
from quintain_cli.console import parse_duration_seconds
from support.command_line import CommandLine, RunningCommand, ready
from support.process_fleet import fleet_shell
from support.quick import lease_variable

CONFIG = "targets: {echo: {provider: mock}, slow: {provider: mock, response: done, delay_ms: 4000}}\n"


@pytest.fixture
def shell(broker_url: str) -> Iterator[CommandLine]:
    """A shell before a broker with no service on it."""
    with fleet_shell(broker_url, CONFIG, targets=["echo", "slow"], variables=lease_variable()) as shell:
        yield shell


def worker_id(worker: RunningCommand) -> str:
    found = re.search(r"workerId (\S+)", worker.stderr)
    assert found is not None, worker
    return found[1]


def evaluator(shell: CommandLine, target: str) -> CommandLine:
    opened = shell.run("session", "open", "--default-target", target, "--json").json
    return shell.with_environment({"QUINTAIN_SESSION_TOKEN": str(opened["token"])})


def paused_ms(shell: CommandLine) -> dict[str, int | None]:
    targets = shell.run("status", "--json", "--wait", "0.3").json["targets"]
    assert isinstance(targets, list)
    now = time.time() * 1000
    return {one["name"]: None if "pausedUntil" not in one else int(one["pausedUntil"] - now) for one in targets}


def test_a_paused_target_takes_no_call_until_it_is_resumed_whoever_restarts_meanwhile(shell: CommandLine) -> None:
    metadata, _ = shell.serve("metadata", "worker")
    asking = evaluator(shell, "echo")
    said = shell.run("target", "pause", "echo", "--for", "10m")
    assert said.stdout == "paused   echo for 10 min\n"
    assert said.stderr == "next     quintain target resume echo\n"
    waiting = asking.start("invoke", "hi")
    # The pause is the ledger's: it outlives who keeps it.
    assert metadata.stop().code == 0
    shell.serve("metadata")
    left = paused_ms(shell)
    assert 500_000 < (left["echo"] or 0) <= 600_000
    assert left["slow"] is None
    shorter = shell.run("target", "pause", "echo", "--for", "1s")
    assert "it was already paused for longer" in shorter.stderr
    assert waiting.stdout == ""
    resumed = shell.run("target", "resume", "echo", "--json").json
    assert (resumed["target"], resumed.get("pausedUntil")) == ("echo", None)
    ended = waiting.wait()
    assert (ended.code, ended.stdout) == (0, "hi\n")
    unknown = shell.run("target", "pause", "ecko", "--for", "5s", "--json", code=1).json
    assert (unknown["code"], unknown["availableTargets"]) == ("unknown_target", ["echo", "slow"])


@pytest.mark.parametrize("time", ["0", "-5m", "25h", "soon", "1e3", "10 weeks", "nan", "٣m"])
def test_a_time_that_is_none_is_a_mistake_of_usage(time: str) -> None:
    with pytest.raises(typer.BadParameter, match="one day at most"):
        parse_duration_seconds(time)


@pytest.mark.parametrize(("time", "seconds"), [("90", 90), ("90s", 90), ("1.5 m", 90), ("10min", 600), ("1d", 86400)])
def test_a_time_has_a_unit_behind_it(time: str, seconds: float) -> None:
    assert parse_duration_seconds(time) == seconds


def test_a_worker_that_is_drained_finishes_what_it_runs_and_ends(shell: CommandLine) -> None:
    leaving, _ = shell.serve("worker", "metadata")
    asking = evaluator(shell, "slow")
    running = asking.start("invoke", "hi", "--json")
    while asking.run("info", "--json").json["running"] != 1:
        pass
    staying = shell.start("serve", "worker")
    drained = shell.run("drain", worker_id(leaving))
    assert drained.stdout == f"drained  {worker_id(leaving)}\n"
    assert leaving.wait().code == 0
    answer = running.wait().json
    assert (answer["rawText"], answer["attempts"]) == ("done", 1)
    # Asked again, it says the same for as long as anybody remembers the lease; then there is none of this id.
    again = shell.run("drain", worker_id(leaving), "--json").json
    assert isinstance(again["workers"], list)
    assert (again["exitCode"], [one["drain"] for one in again["workers"]]) == (0, ["drained"])
    staying.wait_for(ready)
    nobody = shell.run("drain", "nobody", code=1)
    assert f"No worker 'nobody' is alive; there are {worker_id(staying)}\n" in nobody.stderr
    asked = shell.run("drain", worker_id(staying), "--no-wait")
    within = DEFAULT_TIMINGS.heartbeat_seconds
    assert asked.stdout == f"asked    {worker_id(staying)}: it gets the request within {within:.0f} s\n"
    assert staying.wait().code == 0
