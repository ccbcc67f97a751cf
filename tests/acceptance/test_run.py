"""``quintain run``, the main job: the example graded, resumed, narrowed, cut short; in memory and on a fleet."""

from __future__ import annotations

import re
import shlex
import shutil
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.command_line import CommandLine, CommandResult, RunningCommand, command_line
from support.evaluations import CAPITALS, copy_capitals, rows_by_trial, rows_of, totals_of, write_files
from support.pages import shell_blocks
from support.process_fleet import ADMIN_TOKEN, process_fleet

#: Answers late, and writes down what it was asked.
SLOW_BOT = """
import asyncio
from pathlib import Path

async def answer(request):
    with (Path(__file__).parent / "asked.txt").open("a") as asked:
        asked.write(request.eval_case_id + "\\n")
    await asyncio.sleep(0.3)
    return request.question
"""


@pytest.fixture
def capitals(shell: CommandLine) -> CommandLine:
    """A shell in a folder with the example."""
    copy_capitals(shell.folder)
    return shell


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[CommandResult, Path]]:
    """The example run once, in memory, by the lines of its README: how the run ended, and its results."""
    with command_line(tmp_path_factory.mktemp("undisturbed")) as shell:
        copy_capitals(shell.folder)
        (lines,) = shell_blocks(CAPITALS / "README.md")
        ended = {line: shell.run(*shlex.split(line)[1:]) for line in lines}
        yield ended["quintain run eval.yaml"], shell.folder / "runs" / "eval"


def test_the_pages_show_this_very_output(undisturbed: tuple[CommandResult, Path]) -> None:
    def shown(page: str) -> list[str]:
        text = (Path(__file__).parents[2] / page).read_text()
        (block,) = re.findall(r"^```text\n(12 cases\n.*?)^```$", text, re.DOTALL | re.MULTILINE)
        return block.splitlines()

    printed = [line.rstrip() for line in undisturbed[0].stdout.splitlines()]
    assert shown("docs/run.md") == printed
    # The README has the first table and the last line.
    *table, last = shown("README.md")
    assert (table, last) == (printed[: printed.index("by grader")], printed[-1])


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
    output = capitals.folder / "the results"
    ended = capitals.run(
        "run", "eval.yaml", "--output", "the results", "--max-calls", "30", "--concurrency", "4", code=4
    )
    assert "(30 of 30 calls)" in ended.stdout
    graded = {trial: row for trial, row in rows_by_trial(output).items() if row["status"] == "graded"}
    assert 0 < len(graded) < 24
    for _ in range(4):
        program, *words = shlex.split(ended.stdout.splitlines()[-1].partition("To finish: ")[2])
        assert program == "quintain"
        ended = capitals.run(*words, code=None)
        if ended.code != 4:
            break
    assert ended.code == 0, ended
    assert rows_by_trial(output) == rows_by_trial(undisturbed[1])
    assert rows_by_trial(output).items() >= graded.items()
    assert totals_of(output)["calls"] == totals_of(undisturbed[1])["calls"]


def test_a_run_that_its_user_interrupts_says_how_to_go_on_and_then_asks_nothing_twice(shell: CommandLine) -> None:
    output = shell.folder / "runs" / "eval"
    running = start_slow_run(shell)
    ended = running.stop(signal.SIGINT, seconds=10)
    assert ended.code == 130
    assert len(rows_of(output)) < 12
    interrupted, resumes = ended.stderr.splitlines()[-2:]
    assert interrupted == "interrupted"
    program, *words = shlex.split(resumes.partition("resumes: ")[2])
    assert (program, tuple(words)) == ("quintain", running.args)
    shell.run(*words)
    asked = Counter((shell.folder / "asked.txt").read_text().split())
    assert set(asked.values()) == {1}
    assert [row["score"] for row in rows_of(output)] == [1.0] * 12


def start_slow_run(shell: CommandLine) -> RunningCommand:
    """A run of twelve cases, two at a time, of which four are done and written."""
    write_files(
        shell.folder,
        cases=12,
        bot_py=SLOW_BOT,
        quintain_yaml='targets: {bot: {provider: python, callable: "bot:answer"}}\n',
        eval_yaml="dataset: cases.jsonl\ngraders: [{name: same, builtin: exact}]\n",
    )
    running = shell.start("run", "eval.yaml", "--concurrency", "2")
    running.wait_for(lambda _: len(rows_of(shell.folder / "runs" / "eval")) >= 4)
    return running


def test_a_fleets_results_are_those_of_a_laptop(broker_url: str, undisturbed: tuple[CommandResult, Path]) -> None:
    with process_fleet(broker_url, "", targets=["scholar", "guesser", "judge"]) as fleet:
        copy_capitals(fleet.folder)
        fleet.start_service("metadata")
        fleet.start_service("worker")
        env = {"QUINTAIN_BROKER_URL": broker_url, "QUINTAIN_ADMIN_TOKEN": ADMIN_TOKEN}
        with command_line(fleet.folder, env) as shell:
            ended = shell.run("run", "eval.yaml", "--json")
            assert rows_by_trial(shell.folder / "runs" / "eval") == rows_by_trial(undisturbed[1])
            assert ended.json["totals"] == totals_of(undisturbed[1])
