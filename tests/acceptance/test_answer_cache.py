"""Answers that are kept: a second run takes them from the cache of this user, and a recording needs no provider."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import replace

import pytest

from support.command_line import CommandLine
from support.evaluations import rows_of, totals_of, write_files
from support.model_server import ModelServer, ReceivedRequest, ScriptedResponse, model_server
from support.model_wires import chat_answer
from support.thread_host import LoopThread

CONFIG = """
targets:
  bot:
    {{provider: openai, model: m, base_url: "{url}/v1", api_key: "${{{{ KEY }}}}", price: {{per_call: 0.5}},
      judge_target: judge}}
  judge:
    {{provider: openai, model: judge-model, base_url: "{url}/v1", api_key: "${{{{ KEY }}}}", price: {{per_call: 0.25}}}}
"""

EVALUATION = """
dataset: cases.jsonl
targets: [bot]
repeats: 5
cache: 30d
graders:
  - {name: judged, builtin: llm-judge, prompt: prompt.md}
  - {name: long, builtin: regex, pattern: ".{10}"}
"""


@pytest.fixture
def server() -> Iterator[ModelServer]:
    """A provider whose model answers otherwise each time; its judge passes every second answer."""
    numbers = itertools.count()

    def answer(request: ReceivedRequest) -> ScriptedResponse:
        number = next(numbers)
        verdict = json.dumps({"pass": bool(number % 2)})
        is_judge = request.body["model"] == "judge-model"
        return ScriptedResponse(body=chat_answer(verdict if is_judge else f"answer {number}"))

    thread, context = LoopThread("models"), model_server()
    serving: ModelServer = thread.run(context.__aenter__())
    serving.response_for = answer
    yield serving
    thread.run(context.__aexit__(None, None, None))
    thread.close()


def scores(shell: CommandLine, name: str) -> dict[tuple[object, object], tuple[object, object]]:
    """The answer and the score of each trial of a run."""
    rows = rows_of(shell.folder / name)
    return {(row["caseId"], row["repeat"]): (row["output"], row["score"]) for row in rows}


def test_a_second_run_takes_all_answers_from_the_cache_and_asks_nobody(shell: CommandLine, server: ModelServer) -> None:
    write_files(
        shell.folder,
        cases=3,
        quintain_yaml=CONFIG.format(url=server.url),
        eval_yaml=EVALUATION,
        prompt_md="Is it so?",
    )
    env = {"KEY": "k", "XDG_CACHE_HOME": str(shell.folder / "cache")}
    first = shell.run("run", "eval.yaml", "--output", "one", env=env)
    assert len(server.requests) == 3 * 5 * 2
    assert "from the cache" not in first.stdout
    asked = scores(shell, "one")
    assert len({output for output, _ in asked.values()}) == 3 * 5, "equal requests have answers of their own"
    # In a fresh folder, with a budget that is enough for none.
    second = shell.run("run", "eval.yaml", "--output", "two", "--max-calls", "0", env=env)
    assert len(server.requests) == 3 * 5 * 2
    assert scores(shell, "two") == asked
    totals = totals_of(shell.folder / "two")
    assert (totals["calls"], totals["cached"], totals["savedUsd"]) == (0, 30, 15 * 0.75)
    assert "30 answers from the cache, $11.25 saved" in second.stdout
    assert {(row["calls"], row["cached"]) for row in rows_of(shell.folder / "two")} == {(0, 2)}
    # A rerun asks exactly what changed.
    (shell.folder / "prompt.md").write_text("Is it otherwise?")
    shell.run("run", "eval.yaml", "--output", "three", env=env)
    assert len(server.requests) == 3 * 5 * 3
    listed = json.loads(shell.run("cache", "list", "--json", env=env).stdout)
    assert {one["target"]: one["answers"] for one in listed["targets"]} == {"bot": 15, "judge": 30}
    assert "0 answers deleted" in shell.run("cache", "prune", "--older-than", "1d", env=env).stdout
    assert "45 answers deleted" in shell.run("cache", "clear", env=env).stdout
    # Without a cache, or where its file is none, the run asks and says so once.
    bad = shell.folder / "bad"
    bad.write_text("no store" * 100)
    said = shell.run("run", "eval.yaml", "--output", "four", "--cache", str(bad), "--limit", "1", env=env).stderr
    assert said.count("goes on without the cache") == 1
    shell.run("run", "eval.yaml", "--output", "five", "--cache", "off", "--limit", "1", env=env)
    assert len(server.requests) == 3 * 5 * 3 + 2 * 5 * 2


GRADERS = """
import quintain

@quintain.grader
def polite(output):
    return len(output) / 20
"""


def tables(stdout: str) -> list[str]:
    """What a run printed, without the last line, which names its folder."""
    return stdout.splitlines()[:-1]


def test_a_recording_gives_the_same_scores_and_tables_and_asks_nobody(shell: CommandLine, server: ModelServer) -> None:
    write_files(
        shell.folder,
        cases=3,
        quintain_yaml=CONFIG.format(url=server.url),
        eval_yaml=f'{EVALUATION}  - {{name: polite, function: "graders:polite"}}\n',
        prompt_md="Is it so?",
        graders_py=GRADERS,
    )
    first = shell.run("run", "eval.yaml", "--output", "one", "--cache", "off", env={"KEY": "k"})
    asked = len(server.requests)
    # Neither the key of the provider nor the function is there any more.
    (shell.folder / "graders.py").unlink()
    shell.run("run", "eval.yaml", "--output", "one", "--replay", "one", code=2)
    again = shell.run("run", "eval.yaml", "--output", "two", "--replay", "one")
    assert len(server.requests) == asked
    assert tables(again.stdout) == tables(first.stdout)
    assert scores(shell, "two") == scores(shell, "one")
    assert totals_of(shell.folder / "two") == totals_of(shell.folder / "one")
    # What is not in it is an error of its row, with what differs.
    cases = shell.folder / "cases.jsonl"
    cases.write_text(cases.read_text().replace('"question": "q2"', '"question": "q4"'))
    shell.run("run", "eval.yaml", "--output", "three", "--replay", "one", code=1)
    errors = [row["error"] for row in rows_of(shell.folder / "three") if row["status"] == "error"]
    assert len(errors) == 5
    assert {error["code"] for error in errors} == {"not_recorded"}
    assert all('question: "q2" is asked as "q4"' in error["error"] for error in errors)
    # As text it says the same, on another machine.
    shell.run("record", "export", "one", "--output", "recording.jsonl")
    shell.run("record", "import", "recording.jsonl", "--output", "copy.sqlite3")
    cases.write_text(cases.read_text().replace('"question": "q4"', '"question": "q2"'))
    copied = shell.run("run", "eval.yaml", "--output", "four", "--replay", "copy.sqlite3")
    assert tables(copied.stdout) == tables(first.stdout)
    assert len(server.requests) == asked


def test_trials_that_the_budget_left_out_are_left_out_again(shell: CommandLine, server: ModelServer) -> None:
    write_files(
        shell.folder,
        cases=5,
        quintain_yaml=CONFIG.format(url=server.url),
        eval_yaml=EVALUATION,
        prompt_md="Is it so?",
    )
    first = shell.run("run", "eval.yaml", "--output", "one", "--max-calls", "5", code=4, env={"KEY": "k"})
    asked = len(server.requests)
    again = shell.run("run", "eval.yaml", "--output", "two", "--replay", "one", code=4)
    assert len(server.requests) == asked
    assert tables(again.stdout)[:-1] == tables(first.stdout)[:-1], "but the line that names the folder"
    assert scores(shell, "two") == scores(shell, "one")
    assert {row["status"] for row in rows_of(shell.folder / "two")} == {"graded"}


def test_a_run_that_was_killed_is_recorded_whole_once_it_has_ended(shell: CommandLine, server: ModelServer) -> None:
    write_files(
        shell.folder,
        cases=12,
        quintain_yaml=CONFIG.format(url=server.url),
        eval_yaml=EVALUATION,
        prompt_md="Is it so?",
    )
    at_once = server.response_for
    server.response_for = lambda request: replace(at_once(request), delay_seconds=0.02)
    command, env = ("run", "eval.yaml", "--output", "one", "--cache", "off", "--concurrency", "2"), {"KEY": "k"}
    for rows in (5, 20, 35):
        running = shell.start(*command, env=env)
        running.wait_for(lambda _, wanted=rows: len(rows_of(shell.folder / "one")) >= wanted)
        running.kill()
        running.wait()
    shell.run(*command, env=env)
    asked = len(server.requests)
    shell.run("run", "eval.yaml", "--output", "two", "--replay", "one")
    assert scores(shell, "two") == scores(shell, "one")
    assert len(scores(shell, "two")) == 60
    assert len(server.requests) == asked
