"""``quintain run``, the main job: the example graded, resumed, cut short; what it leaves; in memory and on a fleet."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.command_line import CommandLine, CommandResult, command_line
from support.evaluations import CAPITALS, copy_capitals, rows_by_trial, rows_of, totals_of, write_files
from support.function_model import ModelRequest, function_model
from support.pages import shell_blocks
from support.process_fleet import fleet_shell

#: A target of known cost, after those of the example.
PRICED = """
  sage:
    provider: mock
    response: "42"
    token_usage: {input: 1000, output: 500}
    price: {input_per_million: 1.0, output_per_million: 4.0}
"""


@pytest.fixture
def capitals(shell: CommandLine) -> CommandLine:
    """A shell in a folder with the example."""
    copy_capitals(shell.folder)
    return shell


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[CommandResult, Path]]:
    """The example run once, in memory, by the lines of its README, with every file asked for: how the run ended, and
    its results.
    """
    files = ("--junit", "out/junit.xml", "--markdown", "summary.md", "--csv", "rows.csv")
    with command_line(tmp_path_factory.mktemp("undisturbed")) as shell:
        copy_capitals(shell.folder)
        (shell.folder / "summary.md").write_text("another step\n")
        (lines,) = shell_blocks(CAPITALS / "README.md")
        ended = {line: shell.run(*shlex.split(line)[1:], *(files if " run " in line else ())) for line in lines}
        yield ended["quintain run eval.yaml"], shell.folder / "runs" / "eval"


def test_the_pages_show_this_very_output(undisturbed: tuple[CommandResult, Path]) -> None:
    def shown(page: str) -> list[str]:
        text = (Path(__file__).parents[2] / page).read_text()
        (block,) = re.findall(r"^```text\n(scholar passes .*?)^```$", text, re.DOTALL | re.MULTILINE)
        return block.splitlines()

    printed = [line.rstrip() for line in undisturbed[0].stdout.splitlines()]
    assert shown("docs/evaluation.md") == printed
    # The README has the first table and the last line.
    *table, last = shown("README.md")
    assert (table, last) == (printed[: printed.index("By grader")], printed[-1])


def test_the_same_command_again_asks_nothing_and_with_json_prints_the_totals_alone(
    shell: CommandLine, undisturbed: tuple[CommandResult, Path]
) -> None:
    shutil.copytree(undisturbed[1].parents[1], shell.folder, dirs_exist_ok=True)
    before = (shell.folder / "runs" / "eval" / "results.jsonl").read_bytes()
    again = shell.run("run", "eval.yaml", "--json")
    assert again.json["totals"] == totals_of(shell.folder / "runs" / "eval")
    assert again.stderr == ""
    assert totals_of(shell.folder / "runs" / "eval")["calls"] == 48
    assert (shell.folder / "runs" / "eval" / "results.jsonl").read_bytes() == before


def test_a_run_out_of_budget_keeps_everything_and_the_commands_it_prints_finish_it(
    capitals: CommandLine, undisturbed: tuple[CommandResult, Path]
) -> None:
    output, limits = capitals.folder / "the results", ("--max-calls", "14", "--concurrency", "4")
    ended = capitals.run("run", "eval.yaml", "--output", "the results", "--target", "scholar", *limits, code=4)
    assert "(14 of 14 calls)" in ended.stdout
    graded = {trial: row for trial, row in rows_by_trial(output).items() if row["status"] == "graded"}
    assert 0 < len(graded) < 12
    for _ in range(4):
        program, *words = shlex.split(ended.stdout.splitlines()[-1].partition("To finish: ")[2])
        assert program == "quintain"
        ended = capitals.run(*words, code=None)
        if ended.code != 4:
            break
    assert ended.code == 0, ended
    wanted = {trial: row for trial, row in rows_by_trial(undisturbed[1]).items() if trial[1] == "scholar"}
    assert rows_by_trial(output) == wanted
    assert rows_by_trial(output).items() >= graded.items()
    assert totals_of(output)["calls"] == 24


def test_a_run_that_its_user_interrupts_says_how_to_go_on_and_then_asks_nothing_twice(shell: CommandLine) -> None:
    output, asked = shell.folder / "runs" / "eval", list[str]()

    def answer_late(question: ModelRequest) -> str:
        asked.append(question.question)
        time.sleep(0.3)
        return question.question

    with function_model(answer_late) as url:
        write_files(
            shell.folder,
            cases=12,
            quintain_yaml=f"targets: {{bot: {{provider: openai, model: bot, base_url: '{url}'}}}}\n",
            eval_yaml="dataset: cases.jsonl\ngraders: [{name: same, builtin: exact}]\n",
        )
        running = shell.start("run", "eval.yaml", "--concurrency", "2")
        running.wait_for(lambda _: len(rows_of(output)) >= 4)
        ended = running.stop(signal.SIGINT, seconds=10)
        assert ended.code == 130
        assert len(rows_of(output)) < 12
        interrupted, resumes = ended.stderr.splitlines()[-2:]
        assert interrupted == "interrupted"
        program, *words = shlex.split(resumes.partition("resumes: ")[2])
        assert (program, tuple(words)) == ("quintain", running.args)
        shell.run(*words)
    assert set(Counter(asked).values()) == {1}
    assert [row["score"] for row in rows_of(output)] == [1.0] * 12


@pytest.fixture(scope="module")
def fleet(broker_url: str) -> Iterator[CommandLine]:
    """A shell before a fleet that serves the example's targets, and one with a price."""
    config = (CAPITALS / "quintain.yaml").read_text() + PRICED
    with fleet_shell(broker_url, config, targets=["scholar", "guesser", "judge", "sage"]) as shell:
        copy_capitals(shell.folder)
        (shell.folder / "quintain.yaml").write_text(config)
        shell.serve("metadata", "worker")
        yield shell


def test_a_fleets_results_are_those_of_a_laptop(fleet: CommandLine, undisturbed: tuple[CommandResult, Path]) -> None:
    ended = fleet.run("run", "eval.yaml", "--json")
    assert rows_by_trial(fleet.folder / "runs" / "eval") == rows_by_trial(undisturbed[1])
    assert ended.json["totals"] == totals_of(undisturbed[1])


def test_on_a_fleet_the_cost_is_told_and_the_calls_are_its_operators(fleet: CommandLine) -> None:
    case = '{"id": "%d", "question": "?", "expected": "42"}\n'
    (fleet.folder / "sage.jsonl").write_text("".join(case % number for number in range(3)))
    evaluation = "dataset: sage.jsonl\ntargets: [sage]\ngraders: [{name: same, builtin: exact}]\n"
    (fleet.folder / "sage.yaml").write_text(evaluation)
    ended = fleet.run("run", "sage.yaml")
    assert "cost $0.0090: sage $0.0090\n" in ended.stdout
    folder = fleet.folder / "runs" / "sage"
    assert not (folder / "calls.jsonl").exists()
    record = json.loads((folder / "run.json").read_text())
    fleet.run("session", "open", "--default-target", "sage")
    words = str(record["calls"]).partition("quintain ")[2].split()
    calls = [json.loads(line) for line in fleet.run(*words, "--json").stdout.splitlines()]
    assert [call["sessionId"] for call in calls] == [record["sessionId"]] * 3


def test_every_call_is_in_the_accounts(undisturbed: tuple[CommandResult, Path]) -> None:
    folder = undisturbed[1]
    calls = [json.loads(line) for line in (folder / "calls.jsonl").read_text().splitlines()]
    assert {each.stat().st_mode & 0o077 for each in folder.rglob("*") if each.is_file()} == {0}
    assert Counter(call["target"] for call in calls) == {"judge": 24, "scholar": 12, "guesser": 12}
    assert {call["state"] for call in calls} == {"committed"}
    record = json.loads((folder / "run.json").read_text())
    assert record["calls"] == "calls.jsonl"
    assert sum(call["sessionId"] == record["sessionId"] for call in calls) == 24
    token = (folder / "session-token").read_text().split()[0]
    assert token not in json.dumps([record, calls])


def test_the_report_of_a_folder_is_what_the_run_showed(
    shell: CommandLine, undisturbed: tuple[CommandResult, Path]
) -> None:
    shell = shell.in_folder(undisturbed[1].parents[1])
    again = shell.run("report", "runs/eval", "--junit", "again.xml", "--markdown", "again.md", "--csv", "again.csv")
    assert again.stdout == undisturbed[0].stdout
    for new, old in (("again.xml", "out/junit.xml"), ("again.csv", "rows.csv")):
        assert (shell.folder / new).read_text() == (shell.folder / old).read_text()
    assert (shell.folder / "summary.md").read_text().endswith((shell.folder / "again.md").read_text())
    said = shell.run("report", "runs/eval", "--json").json
    record = json.loads((shell.folder / "runs" / "eval" / "run.json").read_text())
    assert (said["totals"], said["statistics"]) == (record["totals"], record["statistics"])


def test_what_cannot_be_written_is_refused_before_a_call_is_made(shell: CommandLine) -> None:
    evaluation = "dataset: cases.jsonl\ngraders: [{name: same, builtin: exact}]\n"
    write_files(shell.folder, quintain_yaml="targets: {bot: {provider: mock}}\n", eval_yaml=evaluation)
    (shell.folder / "there").mkdir()
    for words in (("--junit", "there"), ("--csv", "cases.jsonl/rows.csv"), ("--markdown", "/proc/page.md")):
        refused = shell.run("run", "eval.yaml", *words, code=2)
        assert words[1] in refused.stderr
    assert not (shell.folder / "runs").exists()


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
