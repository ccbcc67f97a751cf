"""``quintain ledger``: the books of a run, read by the commands a user types."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import apsw
import pytest

from support.command_line import CommandLine, command_line
from support.evaluations import write_files

CALLS = 12


@pytest.fixture(scope="module")
def ledger_shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    """A shell whose QUINTAIN_LEDGER_URL is the ledger of a finished run."""
    folder = tmp_path_factory.mktemp("ledger")
    evaluation = "dataset: cases.jsonl\ngraders: [{name: same, builtin: exact}]\n"
    write_files(folder, cases=CALLS, quintain_yaml="targets: {bot: {provider: mock}}\n", eval_yaml=evaluation)
    with command_line(folder, {"QUINTAIN_LEDGER_URL": f"sqlite://{folder / 'ledger'}"}) as shell:
        shell.run("run", "eval.yaml", "--json")
        yield shell


def test_a_runs_ledger_has_no_findings_and_every_call_is_exported(ledger_shell: CommandLine) -> None:
    verdict = ledger_shell.run("ledger", "verify", "--json").json
    assert (verdict["calls"], verdict["findings"]) == (CALLS, [])
    assert f"{CALLS} calls: clean" in ledger_shell.run("ledger", "verify").stdout
    calls = [json.loads(line) for line in ledger_shell.run("ledger", "export").stdout.splitlines()]
    assert {call["state"] for call in calls} == {"committed"}
    assert len({(call["sessionId"], call["requestId"]) for call in calls}) == CALLS


def test_an_inconsistent_ledger_exits_1_and_lists_the_findings(ledger_shell: CommandLine) -> None:
    inconsistent = ledger_shell.folder / "inconsistent"
    shutil.copy(ledger_shell.folder / "ledger", inconsistent)
    env = {"QUINTAIN_LEDGER_URL": f"sqlite://{inconsistent}"}
    connection = apsw.Connection(str(inconsistent))
    connection.execute("UPDATE session SET used = used - 1 WHERE parent_id IS NULL")
    connection.close()
    broken = ledger_shell.run("ledger", "verify", code=1, env=env)
    assert "a session's counter" in broken.stdout
    assert ledger_shell.run("ledger", "verify", "--json", code=1, env=env).json["findings"]


def test_a_ledger_that_is_not_there_is_a_sentence(ledger_shell: CommandLine) -> None:
    nowhere = {"QUINTAIN_LEDGER_URL": f"sqlite://{ledger_shell.folder / 'nowhere'}"}
    assert "There is no ledger at" in ledger_shell.run("ledger", "verify", env=nowhere, code=2).stderr


def test_old_sessions_are_counted_before_they_are_deleted(ledger_shell: CommandLine) -> None:
    old = ledger_shell.folder / "old"
    shutil.copy(ledger_shell.folder / "ledger", old)
    shell = ledger_shell.with_environment({"QUINTAIN_LEDGER_URL": f"sqlite://{old}"})
    connection = apsw.Connection(str(old))
    connection.execute("UPDATE session SET created_at = created_at - 864000000; UPDATE call SET updated_at = 0")
    connection.execute("DELETE FROM reply")
    connection.close()
    before = (datetime.now(UTC) - timedelta(days=5)).strftime("%Y-%m-%d")
    counted = shell.run("ledger", "prune", "--before", before, "--json").json
    assert (counted["deleted"], counted["calls"]) == (False, CALLS)
    assert shell.run("ledger", "verify", "--json").json["calls"] == CALLS
    assert shell.run("ledger", "prune", "--before", before, "--delete", "--json").json["calls"] == CALLS
    assert shell.run("ledger", "verify", "--json").json == {"sessions": 0, "calls": 0, "findings": []}
    recent = datetime.now(UTC).strftime("%Y-%m-%d")
    assert "last 2 days" in shell.run("ledger", "prune", "--before", recent, "--delete", code=2).stderr
