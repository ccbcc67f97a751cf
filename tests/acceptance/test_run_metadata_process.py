"""A run of a thousand trials has its metadata service in a process of its own; what a kill of either of them costs."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.command_line import CommandLine, RunningCommand, command_line
from support.evaluations import rows_of
from support.quick import lease_variable

TRIALS = 1000
MAX_CALLS = TRIALS + 100


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[CommandLine]:
    targets = {
        "bot": {"provider": "mock", "delay_ms": 20, "max_concurrency": 16},
        "model": {
            "provider": "openai",
            "model": "m",
            "base_url": "http://127.0.0.1:9",
            "api_key": "${{ PROVIDER_KEY }}",
        },
    }
    (tmp_path / "quintain.yaml").write_text(json.dumps({"targets": targets}))
    evaluation = {
        "dataset": "cases.jsonl",
        "targets": ["bot"],
        "graders": [{"name": "same", "builtin": "exact"}],
        "max_calls": MAX_CALLS,
    }
    (tmp_path / "eval.yaml").write_text(json.dumps(evaluation))
    rows = ({"id": f"c{n}", "question": f"q {n}", "expected": f"q {n}"} for n in range(TRIALS))
    (tmp_path / "cases.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    with command_line(tmp_path, {"PROVIDER_KEY": "sk-nobody-elses", **lease_variable()}) as shell:
        yield shell


@pytest.mark.timeout(120)
def test_its_process_ends_with_it_and_is_begun_again_when_killed(shell: CommandLine) -> None:
    running = shell.start("run", "eval.yaml")
    running.wait_for(has_rows(shell, 100))
    first = metadata_process_of(running.pid)
    os.kill(first, signal.SIGKILL)
    running.wait_for(has_rows(shell, 300))
    second = metadata_process_of(running.pid)
    assert second != first

    ended = running.wait(seconds=60)
    assert ended.code == 0, ended
    assert "in this process, its ledger in another" in ended.stderr
    assert "starting another one" in ended.stderr
    assert ends_soon(second)
    assert_complete(shell)


@pytest.mark.timeout(120)
def test_it_ends_by_itself_when_the_run_is_killed_and_the_run_goes_on(shell: CommandLine) -> None:
    running = shell.start("run", "eval.yaml")
    running.wait_for(has_rows(shell, 100))
    orphan = metadata_process_of(running.pid)
    running.kill()
    again = shell.start("run", "eval.yaml")
    assert again.wait(seconds=60).code == 0
    assert ends_soon(orphan)
    assert_complete(shell)


def test_it_has_no_providers_key_and_an_interrupt_is_the_runs_alone_to_understand(shell: CommandLine) -> None:
    running = shell.start("run", "eval.yaml")
    running.wait_for(has_rows(shell, 50))
    beside = metadata_process_of(running.pid)
    has = Path(f"/proc/{beside}/environ").read_bytes()
    assert b"QUINTAIN_LEDGER_URL=sqlite:///" in has
    assert b"PROVIDER_KEY" not in has, "a provider's key is the workers' alone"
    ended = running.stop(signal.SIGINT)
    assert ended.code == 130, ended
    assert ends_soon(beside)
    assert "Traceback" not in ended.stderr


def test_a_ledger_that_cannot_be_opened_is_said_as_in_a_small_run(shell: CommandLine) -> None:
    (shell.folder / "notes.txt").write_text("my notes, and no ledger; " * 100)
    url = f"sqlite://{shell.folder / 'notes.txt'}"
    refused = shell.run("run", "eval.yaml", code=2, env={"QUINTAIN_LEDGER_URL": url})
    assert "cannot be opened (NotADBError" in refused.stderr


def assert_complete(shell: CommandLine) -> None:
    """Every trial has its row once, and no more was charged than may be."""
    output = shell.folder / "runs" / "eval"
    rows = rows_of(output)
    assert sorted(str(row["caseId"]) for row in rows) == sorted(f"c{n}" for n in range(TRIALS))
    assert {row["status"] for row in rows} == {"graded"}
    charged = json.loads((output / "run.json").read_text())["totals"]["calls"]
    assert TRIALS <= charged <= MAX_CALLS


def has_rows(shell: CommandLine, count: int) -> Callable[[RunningCommand], bool]:
    path = shell.folder / "runs" / "eval" / "results.jsonl"
    return lambda _: path.is_file() and path.read_bytes().count(b"\n") >= count


def metadata_process_of(pid: int) -> int:
    """The one process that this one has started."""
    ends = time.monotonic() + 20
    while time.monotonic() < ends:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        alive = [int(child) for child in children if b"quintain_metadata" in command_line_of(int(child))]
        if alive:
            assert len(alive) == 1
            return alive[0]
        time.sleep(0.05)
    raise AssertionError("there is no metadata process")


def command_line_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def ends_soon(pid: int) -> bool:
    """Whether it ends within seconds."""
    ends = time.monotonic() + 10
    while time.monotonic() < ends:
        if not command_line_of(pid):
            return True
        time.sleep(0.05)
    return False
