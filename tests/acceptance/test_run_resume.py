"""The same ``quintain run`` again: what is kept, what is asked once more, on which budget, and over HTTP alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.command_line import CommandLine
from support.evaluations import copy_capitals, rows_of, totals_of, write_files
from support.running_gateway import RunningGateway, run_gateway

#: Writes down what it is asked; hangs on what the file ``hangs`` names, raises on what ``fails`` names.
SWITCHABLE_BOT = """
import asyncio
from pathlib import Path

HERE = Path(__file__).parent

def named(mood, case):
    path = HERE / mood
    return path.exists() and case in path.read_text().split()

async def answer(request):
    with (HERE / "asked.txt").open("a") as asked:
        asked.write(request.eval_case_id + "\\n")
    if named("hangs", request.eval_case_id):
        await asyncio.sleep(60)
    if named("fails", request.eval_case_id):
        raise RuntimeError("not today")
    return request.question
"""

CONFIG = 'targets: {bot: {provider: python, callable: "bot:answer", timeout_seconds: 1}}\n'
OUTPUT = Path("runs") / "eval"


@pytest.fixture
def evaluation_shell(shell: CommandLine) -> CommandLine:
    """A shell in a folder with an evaluation of six cases, and a target that does as it is told."""
    write_files(
        shell.folder,
        cases=6,
        bot_py=SWITCHABLE_BOT,
        quintain_yaml=CONFIG,
        eval_yaml="dataset: cases.jsonl\ngraders: [{name: same, builtin: exact}]\n",
    )
    return shell


def new_requests(shell: CommandLine) -> list[str]:
    """The cases that were asked since this was last looked at."""
    path = shell.folder / "asked.txt"
    said = path.read_text().split() if path.exists() else []
    path.unlink(missing_ok=True)
    return sorted(said)


def test_a_case_in_doubt_is_shown_and_kept_until_it_is_to_be_asked_once_more(evaluation_shell: CommandLine) -> None:
    (evaluation_shell.folder / "hangs").write_text("case-2")
    ended = evaluation_shell.run("run", "eval.yaml", code=1)
    assert "1 of 6 trials are in doubt" in ended.stdout.splitlines()[-1]
    assert len(new_requests(evaluation_shell)) == 6
    (evaluation_shell.folder / "hangs").unlink()

    kept = evaluation_shell.run("run", "eval.yaml", code=1)
    assert "6 rows kept (1 without a score)" in kept.stderr
    assert new_requests(evaluation_shell) == []

    again = evaluation_shell.run(*next_command(kept.stdout))
    assert "5 rows kept · 1 asked again" in again.stderr
    assert new_requests(evaluation_shell) == ["case-2"]
    row = next(row for row in rows_of(evaluation_shell.folder / OUTPUT) if row["caseId"] == "case-2")
    # Charged twice: for the call in doubt, and for the one after it.
    assert (row["status"], row["tries"], row["calls"]) == ("graded", 2, 2)
    assert totals_of(evaluation_shell.folder / OUTPUT)["calls"] == 7


def next_command(stdout: str) -> list[str]:
    """The command that the last line names."""
    return stdout.splitlines()[-1].partition("quintain ")[2].split()


def test_where_the_session_is_gone_the_run_goes_on_with_what_is_left_of_its_budget(
    evaluation_shell: CommandLine,
) -> None:
    evaluation_shell.run("run", "eval.yaml", "--max-calls", "4", "--concurrency", "1", code=4)
    for path in (evaluation_shell.folder / OUTPUT).glob("ledger.sqlite3*"):
        path.unlink()
    parked = evaluation_shell.run("run", "eval.yaml", "--max-calls", "5", code=4)
    assert "continues in a new one, with what is left" in parked.stderr
    assert "(5 of 5 calls)" in parked.stdout
    assert len(new_requests(evaluation_shell)) == 5
    evaluation_shell.run("run", "eval.yaml", "--max-calls", "6")
    assert len(new_requests(evaluation_shell)) == 1
    totals = totals_of(evaluation_shell.folder / OUTPUT)
    assert (totals["calls"], totals["maxCalls"], totals["graded"]) == (6, 6, 6)


def test_a_run_over_http_alone_ends_as_one_over_a_bus(tmp_path: Path) -> None:
    copy_capitals(tmp_path)
    with run_gateway(tmp_path, (tmp_path / "quintain.yaml").read_text()) as gateway:
        ended = gateway.shell.run("run", "eval.yaml", "--json")
        assert ended.json["totals"] == totals_of(tmp_path / OUTPUT)
        totals = totals_of(tmp_path / OUTPUT)
        assert (totals["graded"], totals["errors"], totals["meanScore"], totals["calls"]) == (24, 0, 0.8125, 48)
        session = run_session(gateway, tmp_path)
        # Nothing is left to do, so its session is closed.
        assert (session["callCount"], session["state"]) == (48, "closed")


def run_session(gateway: RunningGateway, folder: Path) -> dict[str, object]:
    """What the fleet's ledger says of the run's session."""
    session_id = json.loads((folder / OUTPUT / "run.json").read_text())["sessionId"]
    return gateway.shell.run("session", "show", session_id, "--json").json
