"""What a run leaves: its files, its cost, its accounts; the same again from the folder; and two runs compared."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator

import pytest

from support.command_line import CommandLine, CommandResult, command_line
from support.evaluations import copy_capitals, write_files
from support.process_fleet import ADMIN_TOKEN, process_fleet

#: A priced target, one without a price, and one that answers with what no file may take for its own.
CONFIG = r"""
targets:
  sage:
    provider: mock
    response: "42"
    token_usage: {input: 1000, output: 500}
    price: {input_per_million: 1.0, output_per_million: 4.0}
  free: {provider: mock, response: "42", token_usage: {input: 7, output: 2}}
  rogue: {provider: mock, response: "=1+1 \e[31m<script>|[x](http://evil.example)\x9b"}
"""


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[CommandLine, CommandResult]]:
    """A shell in which the example was run with every file asked for, and how that ended."""
    with command_line(tmp_path_factory.mktemp("files"), {"GITHUB_STEP_SUMMARY": "summary.md"}) as shell:
        copy_capitals(shell.folder)
        (shell.folder / "summary.md").write_text("another step\n")
        words = ("--junit", "out/junit.xml", "--markdown", "summary.md", "--csv", "rows.csv")
        yield shell, shell.run("run", "eval.yaml", *words)


@pytest.fixture
def mock_shell(shell: CommandLine) -> CommandLine:
    """A shell in a folder with mock targets and three cases, of which they know one."""
    write_files(
        shell.folder,
        quintain_yaml=CONFIG,
        eval_yaml="dataset: cases.jsonl\ntargets: [sage, free]\ngraders: [{name: same, builtin: exact}]\n",
    )
    cases = [{"id": str(n), "question": "?", "expected": "42" if n == 1 else "43"} for n in (1, 2, 3)]
    (shell.folder / "cases.jsonl").write_text("".join(f"{json.dumps(case)}\n" for case in cases))
    return shell


def test_every_call_is_in_the_accounts(finished_run: tuple[CommandLine, CommandResult]) -> None:
    folder = finished_run[0].folder / "runs" / "eval"
    calls = [json.loads(line) for line in (folder / "calls.jsonl").read_text().splitlines()]
    assert {each.stat().st_mode & 0o077 for each in folder.rglob("*") if each.is_file()} == {0}
    assert Counter(call["target"] for call in calls) == {"judge": 24, "scholar": 12, "guesser": 12}
    assert {call["state"] for call in calls} == {"committed"}
    record = json.loads((folder / "run.json").read_text())
    assert record["calls"] == "calls.jsonl"
    assert sum(call["sessionId"] == record["sessionId"] for call in calls) == 24
    token = (folder / "session-token").read_text().split()[0]
    assert token not in json.dumps([record, calls])


def test_the_report_of_a_folder_is_what_the_run_showed(finished_run: tuple[CommandLine, CommandResult]) -> None:
    shell, ended = finished_run
    again = shell.run("report", "runs/eval", "--junit", "again.xml", "--markdown", "again.md", "--csv", "again.csv")
    assert again.stdout == ended.stdout
    for new, old in (("again.xml", "out/junit.xml"), ("again.csv", "rows.csv")):
        assert (shell.folder / new).read_text() == (shell.folder / old).read_text()
    assert (shell.folder / "summary.md").read_text().endswith((shell.folder / "again.md").read_text())
    said = shell.run("report", "runs/eval", "--json").json
    record = json.loads((shell.folder / "runs" / "eval" / "run.json").read_text())
    assert (said["totals"], said["statistics"]) == (record["totals"], record["statistics"])


def test_what_cannot_be_written_is_refused_before_a_call_is_made(mock_shell: CommandLine) -> None:
    (mock_shell.folder / "there").mkdir()
    for words in (("--junit", "there"), ("--csv", "cases.jsonl/rows.csv"), ("--markdown", "/proc/page.md")):
        refused = mock_shell.run("run", "eval.yaml", *words, code=2)
        assert words[1] in refused.stderr
    assert not (mock_shell.folder / "runs").exists()


def test_a_run_that_got_worse_fails_where_it_is_asked_to(shell: CommandLine) -> None:
    def run(output: str, response: str) -> None:
        write_files(
            shell.folder,
            cases=0,
            quintain_yaml=f'targets: {{bot: {{provider: mock, response: "{response}"}}}}\n',
            eval_yaml="dataset: cases.jsonl\ngraders: [{name: same, builtin: exact}]\n",
        )
        cases = ({"id": f"case-{n}", "question": "?", "expected": "42"} for n in range(10))
        (shell.folder / "cases.jsonl").write_text("".join(f"{json.dumps(case)}\n" for case in cases))
        shell.run("run", "eval.yaml", "--output", output, "--json")

    run("before", "42")
    run("after", "43")
    told = shell.run("compare", "before", "after")
    assert told.stdout.splitlines()[-1].startswith("exit 0: significantly worse: bot.")
    assert "flipped bot case-0: passed → failed (1.000 → 0.000)" in told.stdout
    failed = shell.run("compare", "before", "after", "--fail-on-regression", code=3)
    assert failed.stdout.splitlines()[-1].startswith("exit 3: significantly worse: bot.")
    compared = shell.run("compare", "after", "before", "--fail-on-regression", "--json").json
    assert (compared["verdict"], compared["exitCode"]) == ("significantly better, and nothing significantly worse", 0)


def test_on_a_fleet_the_cost_is_told_and_the_calls_are_its_operators(broker_url: str) -> None:
    with process_fleet(broker_url, CONFIG, targets=["sage", "free", "rogue"]) as fleet:
        write_files(
            fleet.folder,
            eval_yaml="dataset: cases.jsonl\ntargets: [sage]\ngraders: [{name: same, builtin: exact}]\n",
        )
        fleet.start_service("metadata")
        fleet.start_service("worker")
        env = {"QUINTAIN_BROKER_URL": broker_url, "QUINTAIN_ADMIN_TOKEN": ADMIN_TOKEN}
        with command_line(fleet.folder, env) as shell:
            ended = shell.run("run", "eval.yaml")
            assert "cost $0.0090: sage $0.0090\n" in ended.stdout
            folder = shell.folder / "runs" / "eval"
            assert not (folder / "calls.jsonl").exists()
            record = json.loads((folder / "run.json").read_text())
            shell.run("session", "open", "--default-target", "sage")
            words = str(record["calls"]).partition("quintain ")[2].split()
            told = shell.run(*words, "--json")
            calls = [json.loads(line) for line in told.stdout.splitlines()]
            assert [call["sessionId"] for call in calls] == [record["sessionId"]] * 3
