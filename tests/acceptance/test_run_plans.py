"""A budget is that of the run: when a session is continued, replaced and closed, and what a kill costs."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from support.command_line import CommandLine, RunningCommand, command_line
from support.evaluations import Json, rows_of, totals_of, write_files
from support.function_model import ModelRequest, function_model
from support.quick import lease_variable

OUTPUT = Path("runs") / "eval"

CONFIG = """
targets:
  bot: {{provider: openai, model: bot, base_url: "{url}"}}
  judge: {{provider: openai, model: judge, base_url: "{url}"}}
"""


@dataclass
class Models:
    """Write down what they are asked; the bot hangs on what `hangs` names, and a judge that fails gives no verdict."""

    asked: list[str] = field(default_factory=list)
    hangs: Sequence[str] = ()
    fails: bool = False
    ended: threading.Event = field(default_factory=threading.Event)

    def answer(self, asked: ModelRequest) -> str:
        if asked.model == "judge":
            self.asked.append("judge")
            return "who knows" if self.fails else '{"pass": true}'
        self.asked.append(asked.question)
        if asked.question in self.hangs:
            self.ended.wait(60)
        return asked.question

    def new_requests(self) -> Counter[str]:
        """What was asked since this was last looked at."""
        asked, self.asked = Counter(self.asked), []
        return asked


JUDGED = """
dataset: cases.jsonl
targets: [bot]
graders: [{name: judged, builtin: llm-judge, prompt: prompt.md, judge_target: judge}]
"""


@pytest.fixture
def models() -> Models:
    """The models of the evaluation."""
    return Models()


@pytest.fixture
def judged_shell(tmp_path: Path, models: Models) -> Iterator[CommandLine]:
    """A shell in a folder with an evaluation of six cases that a judge grades."""
    with function_model(models.answer) as url, command_line(tmp_path, lease_variable()) as shell:
        config, prompt = CONFIG.format(url=url), "Is it right? A first text."
        write_files(tmp_path, cases=6, quintain_yaml=config, eval_yaml=JUDGED, prompt_md=prompt)
        yield shell
        models.ended.set()


def record_of(folder: Path) -> Json:
    record: Json = json.loads((folder / OUTPUT / "run.json").read_text())
    return record


def test_the_budget_is_of_the_run_whatever_changes_and_a_raised_limit_amends_it(
    judged_shell: CommandLine, models: Models
) -> None:
    folder = judged_shell.folder
    judged_shell.run("run", "eval.yaml", "--max-calls", "14")
    assert models.new_requests().total() == 12

    # Its session is closed, as no trial was open: the next one has what is left.
    write_files(folder, cases=6, prompt_md="Is it right? Another text.")
    stopped = judged_shell.run("run", "eval.yaml", "--max-calls", "14", code=4)
    assert "what is left: 2 calls" in stopped.stderr
    assert models.new_requests() == {"judge": 2}
    assert (totals_of(folder / OUTPUT)["calls"], totals_of(folder / OUTPUT)["maxCalls"]) == (14, 14)

    # An open session stays that of the run, also where the plan changed once more.
    open_session = record_of(folder)["sessionId"]
    write_files(folder, cases=6, prompt_md="Is it right? A third text.")
    judged_shell.run("run", "eval.yaml", "--max-calls", "14", code=4)
    assert models.new_requests().total() == 0
    ended = judged_shell.run("run", "eval.yaml", "--max-calls", "20")
    assert "new session" not in ended.stderr
    assert models.new_requests() == {"judge": 6}
    totals, record = totals_of(folder / OUTPUT), record_of(folder)
    assert (totals["calls"], totals["maxCalls"]) == (20, 20)
    assert record["sessionId"] == open_session
    assert judged_shell.run("report", "runs/eval", "--json").json["totals"] == totals
    calls = [json.loads(line) for line in (folder / OUTPUT / "calls.jsonl").read_text().splitlines()]
    assert Counter(call["sessionId"] == open_session for call in calls) == {False: 12, True: 8}

    # Verdicts that are given again are of the same budget.
    judged_shell.run("rescore", "runs/eval", "--max-calls", "23", code=4)
    assert models.new_requests() == {"judge": 3}
    # The others have no row now, and their answers are in the store.
    again = judged_shell.run("rescore", "runs/eval", "--max-calls", "40")
    assert "next     3 trials without a row" in again.stderr
    assert models.new_requests() == {"judge": 3}
    judged_shell.run("run", "eval.yaml", "--max-calls", "40")
    assert models.new_requests() == {"judge": 3}


def test_the_results_of_another_evaluation_are_refused_and_keep_their_bill(
    judged_shell: CommandLine, models: Models
) -> None:
    folder = judged_shell.folder
    judged_shell.run("run", "eval.yaml")
    bill = record_of(folder)["bill"]
    models.new_requests()
    (folder / "other.yaml").write_text(
        "dataset: cases.jsonl\ntargets: [bot]\ngraders: [{name: same, builtin: exact}]\n"
    )
    refused = judged_shell.run("run", "other.yaml", "--output", "runs/eval", code=2)
    assert "eval.yaml" in refused.stderr
    assert (models.new_requests().total(), record_of(folder)["bill"]) == (0, bill)
    judged_shell.run("run", "other.yaml", "--output", "runs/eval", "--fresh")


def has_rows(folder: Path, count: int) -> Callable[[RunningCommand], bool]:
    return lambda _: len(rows_of(folder / OUTPUT)) >= count


def bill_of(folder: Path) -> Json:
    """The sum of the run's bill."""
    bill: Json = record_of(folder)["bill"]
    return bill["total"]


def test_requests_of_calls_that_a_kill_lost_are_counted_and_said(judged_shell: CommandLine, models: Models) -> None:
    folder = judged_shell.folder
    models.hangs = ("q2", "q5")
    running = judged_shell.start("run", "eval.yaml")
    running.wait_for(has_rows(folder, 4))
    running.kill()
    assert models.new_requests().total() == 10
    models.hangs = ()
    ended = judged_shell.run("run", "eval.yaml")
    assert "new " not in ended.stderr
    assert models.new_requests() == {"q2": 1, "q5": 1, "judge": 2}
    assert "provider requests 14 for 12 calls; 2 " in ended.stdout
    bill = bill_of(folder)
    assert (bill["calls"], bill["tries"], bill["unprovenTries"]) == (12, 14, 2)
    assert "provider requests 14 for 12 calls; 2 " in judged_shell.run("report", "runs/eval").stdout


def test_a_run_with_errors_keeps_its_session_and_a_finished_one_closes_it(
    judged_shell: CommandLine, models: Models
) -> None:
    folder = judged_shell.folder
    models.fails = True
    judged_shell.run("run", "eval.yaml", code=1)
    session = record_of(folder)["sessionId"]
    assert session_states(folder) == {session: "open"}
    models.fails = False
    judged_shell.run("run", "eval.yaml")
    assert session_states(folder) == {session: "closed"}


def session_states(folder: Path) -> dict[str, str]:
    """The states of the run's sessions, by the ledger."""
    with contextlib.closing(sqlite3.connect(folder / OUTPUT / "ledger.sqlite3")) as ledger:
        return dict(ledger.execute("SELECT id, state FROM session WHERE parent_id IS NULL"))


def test_a_plan_tells_what_would_be_asked_and_what_falls_out_and_changes_nothing(
    judged_shell: CommandLine, models: Models
) -> None:
    folder = judged_shell.folder
    first = judged_shell.run("run", "eval.yaml", "--plan", "--json").json
    assert (first["new"], first["answers"], first["mostCalls"], first["trials"]) == (6, 6, 12, {"bot": 6})
    assert not (folder / OUTPUT).exists()
    judged_shell.run("run", "eval.yaml")
    models.new_requests()

    # One case is gone, one has another text, and one is new.
    lines = (folder / "cases.jsonl").read_text().splitlines()
    changed = [lines[0].replace('"q1"', '"other"'), *lines[1:5], '{"id": "case-7", "question": "q7"}']
    (folder / "cases.jsonl").write_text("\n".join(changed))
    before = {file.name: file.read_bytes() for file in (folder / OUTPUT).iterdir() if file.is_file()}
    told = judged_shell.run("run", "eval.yaml", "--plan")
    assert "case-6 · bot falls out" in told.stdout
    plan = judged_shell.run("run", "eval.yaml", "--plan", "--json").json
    assert {file.name: file.read_bytes() for file in (folder / OUTPUT).iterdir() if file.is_file()} == before
    assert models.new_requests().total() == 0
    judged_shell.run("run", "eval.yaml")
    assert models.new_requests().total() == plan["mostCalls"] == 4
    executed = record_of(folder)["history"][-1]["plan"]  # type: ignore[index, call-overload]
    assert plan == {**executed, "trials": {"bot": 2}, "firstLeftOut": [["case-6", "bot"]]}
