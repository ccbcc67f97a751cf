"""Disks that fill up under load: the ledger's, and that of a run's results. A limit on the size of a process's files
stands in for them: it can be had without a mount, and it can be lifted while the process runs."""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

import quintain
from faults.invariants import InvariantChecker
from faults.load import is_long
from faults.scenario import BOT, CONFIG, FaultScenario
from quintain.client.client import connect_admin
from quintain.contracts.session import OpenSession
from support.command_line import CommandLine, command_line
from support.process_fleet import ADMIN_TOKEN, ProcessFleet, process_fleet
from support.servers.rabbitmq_admin import BrokerUnderTest

FULL_SECONDS = 10.0 if is_long() else 2.0

EVALUATION = """
dataset: cases.jsonl
targets: [bot]
max_calls: 200
threshold: 0.5
graders:
  - {name: told, builtin: contains}
"""


@contextlib.contextmanager
def full_disk(pid: int, *files: Path) -> Iterator[None]:
    """None of this process's files grows beyond the largest of these as it is now."""
    size = max(file.stat().st_size for file in files)
    _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard, hard))


async def test_the_ledgers_disk_is_full_and_then_it_is_not(
    fleet: ProcessFleet, questions: list[str], invariants: InvariantChecker
) -> None:
    metadata = fleet.processes[0]
    ledger = fleet.folder / "state" / "ledger.sqlite3"

    async def inject_fault(fleet: ProcessFleet) -> None:
        with full_disk(metadata.pid, ledger, ledger.with_name("ledger.sqlite3-wal")):
            async with connect_admin(fleet.broker_url, ADMIN_TOKEN) as admin:
                with pytest.raises(quintain.BudgetUnavailable, match="out of reach"):
                    while True:  # a page that was written before may be written again
                        await admin.open(OpenSession(default_target="bot", max_calls=1))
            await asyncio.sleep(FULL_SECONDS)

    after = await FaultScenario(fleet, questions).run(f"the ledger's disk full {FULL_SECONDS:.0f} s", inject_fault)
    assert set(after.provider_calls.values()) == {1}
    await invariants.check(fleet, after)
    assert "cannot be written" in metadata.read_output()


@pytest.fixture
def shell(breakable_broker: BrokerUnderTest, fast_queue_stats: None) -> Iterator[CommandLine]:
    """A fleet, and a shell before it, in one folder."""
    with process_fleet(breakable_broker.url, CONFIG, targets=["bot"]) as fleet:
        (fleet.folder / "bot.py").write_text(BOT)
        fleet.start_services("metadata", "worker")
        env = {"QUINTAIN_BROKER_URL": fleet.broker_url, "QUINTAIN_ADMIN_TOKEN": ADMIN_TOKEN}
        with command_line(fleet.folder, env) as shell:
            yield shell


def test_the_disk_of_a_runs_results_is_full_and_the_same_command_goes_on(shell: CommandLine) -> None:
    cases = [{"id": f"c{number}", "question": f"question {number}", "expected": "answer"} for number in range(60)]
    (shell.folder / "cases.jsonl").write_text("".join(json.dumps(case) + "\n" for case in cases))
    (shell.folder / "eval.yaml").write_text(EVALUATION)
    results = shell.folder / "out" / "results.jsonl"
    words = ("run", "eval.yaml", "--output", "out", "--json")
    run = shell.start(*words)
    run.wait_for(lambda _: results.is_file() and results.read_bytes().count(b"\n") >= 5)
    with full_disk(run.pid, results):
        ended = run.wait()
    assert ended.code == 1
    assert "results.jsonl: a row cannot be written" in str(ended.json["error"])
    assert "give the same command again" in str(ended.json["error"])
    kept = results.read_bytes()
    assert 5 <= kept.count(b"\n") < len(cases)
    again = shell.run(*words)
    assert results.read_bytes().startswith(kept)
    assert again.json["totals"]["trials"] == len(cases)  # type: ignore[index]
    # What was answered when its row could not be written is answered from the ledger: each case is charged once.
    asked = (shell.folder / "provider-count").read_text().splitlines()
    assert len(asked) == len(set(asked)) == len(cases)
