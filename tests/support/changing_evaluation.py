"""An evaluation whose every part a test changes, with counts of who was asked, and the one table of what follows.

Two targets: ``good``, a model behind a server that speaks the provider's protocol, and ``prog``, a program. Three
graders: ``same``, ``judged`` by a second model, and ``script``, a program. Everybody who is asked says what it was when
it was asked, so that each row shows which configuration made it.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from support.evaluations import Json, rows_of
from support.model_server import ModelServer, ReceivedRequest, ScriptedResponse
from support.model_wires import chat_answer

#: A target under test, the judge's model, and the programs write down that they were asked.
PROGRAM = 'read question; echo . >> asked.txt; echo "{version} $(cat facts.txt) $question"\n'
SCRIPT = (
    """cat > /dev/null; echo . >> graded.txt; echo '{{"score": 1, "reason": "{version} '"$(cat rules.txt)"'"}}'\n"""
)


class Calls(NamedTuple):
    """How often each was asked: the model, the program, the judge's model and the grader's program."""

    good: int = 0
    prog: int = 0
    judge: int = 0
    script: int = 0


@dataclass
class ChangingEvaluation:
    """The folder of the evaluation, and the values that its files are written with."""

    folder: Path
    server: ModelServer
    model: str = "model-a"
    temperature: float = 0.5
    target_name: str = "good"
    judge_model: str = "judge-a"
    key: str = "first key"
    ignore_case: bool = False
    limit: int = 3
    program: str = "one"
    script: str = "one"
    facts: str = "facts"
    rules: str = "rules"
    prompt: str = "Is it right?"
    asked_as: str = "{{ question }}"
    rows: list[Json] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.server.response_for = self._answer
        self.rows = [{"id": f"case-{n}", "question": f"q{n}", "expected": f"e{n}"} for n in range(4)]
        self.write()

    @property
    def output(self) -> Path:
        return self.folder / "runs" / "eval"

    @property
    def env(self) -> dict[str, str]:
        """What the configuration's references are resolved with."""
        return {"KEY": self.key, "PATH": os.environ["PATH"]}

    def write(self) -> None:
        """Write those files whose text has changed."""
        url = f"{self.server.url}/v1"
        good: Json = {"provider": "openai", "model": self.model, "temperature": self.temperature, "base_url": url}
        judge: Json = {"provider": "openai", "model": self.judge_model, "base_url": url}
        prog: Json = {"provider": "command", "command": ["sh", "bot.sh"], "depends_on": ["facts.txt"]}
        targets = {self.target_name: good, "prog": prog, "judge": judge}
        for model in (good, judge):
            model["api_key"] = "${{ KEY }}"
        for asked in (good, prog):
            asked["judge_target"] = "judge"
        evaluation = {
            "dataset": {"file": "cases.jsonl", "limit": self.limit},
            "targets": [self.target_name, "prog"],
            "prompts": [{"name": "asked", "user": "file://question.txt"}],
            "graders": [
                {"name": "same", "builtin": "exact", "ignore_case": self.ignore_case},
                {"name": "judged", "builtin": "llm-judge", "prompt": "prompt.md"},
                {
                    "name": "script",
                    "command": ["sh", "grade.sh"],
                    "depends_on": ["rules.txt"],
                    "target": {"max_calls": 0},
                },
            ],
        }
        for name, text in {
            "quintain.yaml": json.dumps({"targets": targets}),
            "eval.yaml": json.dumps(evaluation),
            "cases.jsonl": "".join(f"{json.dumps(row)}\n" for row in self.rows),
            "bot.sh": PROGRAM.format(version=self.program),
            "grade.sh": SCRIPT.format(version=self.script),
            "facts.txt": self.facts,
            "rules.txt": self.rules,
            "prompt.md": self.prompt,
            "question.txt": self.asked_as,
        }.items():
            path = self.folder / name
            if not path.exists() or path.read_text() != text:
                path.write_text(text)

    def take_calls(self) -> Calls:
        """Who was asked how often since this was last read, by their own count."""
        by_model = Counter(str(request.body["model"]) for request in self.server.requests)
        self.server.requests.clear()
        programs = []
        for name in ("asked.txt", "graded.txt"):
            path = self.folder / name
            programs.append(len(path.read_text().split()) if path.exists() else 0)
            path.unlink(missing_ok=True)
        judged = sum(count for model, count in by_model.items() if model.startswith("judge"))
        return Calls(by_model.total() - judged, programs[0], judged, programs[1])

    def assert_rows_are_true(self) -> None:
        """Every row that counts is what the files, as they are now, make of its case."""
        cases = {str(row["id"]): row for row in self.rows[: self.limit]}
        rows = [row for row in rows_of(self.output) if row["target"] in {self.target_name, "prog"}]
        counted = {(str(row["caseId"]), str(row["target"])): row for row in rows if not row.get("stale")}
        assert counted.keys() == {(case, target) for case in cases for target in (self.target_name, "prog")}
        for (case_id, target), row in counted.items():
            question = self.asked_as.replace("{{ question }}", str(cases[case_id]["question"]))
            expected = cases[case_id]["expected"]
            answer = f"{self.program} {self.facts} {question}"
            if target != "prog":
                answer = f"{self.model} {self.temperature} {question}"
            graders = row["graders"]
            assert isinstance(graders, dict)
            said = {name: grader["reason"] for name, grader in graders.items() if name != "same"}
            assert (row["status"], str(row["output"]).strip(), said) == (
                "graded",
                answer,
                {
                    "judged": f"{self.judge_model} {self.prompt} {expected}",
                    "script": f"{self.script} {self.rules}",
                },
            )

    def _answer(self, request: ReceivedRequest) -> ScriptedResponse:
        body = request.body
        messages = body["messages"]
        assert isinstance(messages, list)
        texts = {message["role"]: str(message["content"]) for message in messages}
        if body["model"] != self.judge_model:
            text = f"{body['model']} {body.get('temperature')} {texts['user']}"
        else:
            # The sections of the judge's request are the question, what is expected, and the answer.
            expected = texts["user"].split("expected>\n", 1)[1].split("\n", 1)[0]
            prompt = texts["system"].split("\n", 1)[0]
            text = json.dumps({"pass": True, "reason": f"{body['model']} {prompt} {expected}"})
        return ScriptedResponse(body=chat_answer(text))


class Change(NamedTuple):
    """A change of the evaluation, the calls that the same command then makes, and the plan that it records.

    ``plan`` are rows kept, graded again, asked again, new, and left out. ``is_served``: the workers' configuration or
    files changed.
    """

    apply: Callable[[ChangingEvaluation], None]
    calls: Calls
    plan: tuple[int, int, int, int, int]
    is_served: bool = False

    @property
    def name(self) -> str:
        return self.apply.__name__


def nothing(_: ChangingEvaluation) -> None:
    pass


def secret(world: ChangingEvaluation) -> None:
    world.key = "another key"


def model(world: ChangingEvaluation) -> None:
    world.model = "model-b"


def temperature(world: ChangingEvaluation) -> None:
    world.temperature = 0.75


def program(world: ChangingEvaluation) -> None:
    world.program = "two"


def dependency_of_the_target(world: ChangingEvaluation) -> None:
    world.facts = "other facts"


def prompt_file(world: ChangingEvaluation) -> None:
    world.asked_as = "Please: {{ question }}"


def prompt_file_of_the_judge(world: ChangingEvaluation) -> None:
    world.prompt = "Is it polite?"


def specification(world: ChangingEvaluation) -> None:
    world.ignore_case = True


def source(world: ChangingEvaluation) -> None:
    world.script = "two"


def dependency_of_the_grader(world: ChangingEvaluation) -> None:
    world.rules = "other rules"


def judge_model(world: ChangingEvaluation) -> None:
    world.judge_model = "judge-b"


def expected(world: ChangingEvaluation) -> None:
    world.rows[0]["expected"] = "something else"


def question(world: ChangingEvaluation) -> None:
    world.rows[1]["question"] = "another question"


def order(world: ChangingEvaluation) -> None:
    world.rows[:3] = world.rows[2::-1]


def raised_limit(world: ChangingEvaluation) -> None:
    world.limit += 1


def lowered_limit(world: ChangingEvaluation) -> None:
    world.limit -= 1


def name_of_the_target(world: ChangingEvaluation) -> None:
    world.target_name = "better"


#: The table of docs/run.md, for three cases and two targets. Each change is made to what the changes before it left.
CHANGES = (
    Change(nothing, Calls(), (6, 0, 0, 0, 0)),
    Change(secret, Calls(), (6, 0, 0, 0, 0), is_served=True),
    Change(order, Calls(), (6, 0, 0, 0, 0)),
    Change(model, Calls(good=3, judge=3, script=3), (3, 0, 3, 0, 0), is_served=True),
    Change(temperature, Calls(good=3, judge=3, script=3), (3, 0, 3, 0, 0), is_served=True),
    Change(program, Calls(prog=3, judge=3, script=3), (3, 0, 3, 0, 0), is_served=True),
    Change(dependency_of_the_target, Calls(prog=3, judge=3, script=3), (3, 0, 3, 0, 0), is_served=True),
    Change(question, Calls(good=1, prog=1, judge=2, script=2), (4, 0, 2, 0, 0)),
    Change(expected, Calls(judge=2, script=2), (4, 2, 0, 0, 0)),
    Change(prompt_file, Calls(good=3, prog=3, judge=6, script=6), (0, 0, 6, 0, 0)),
    Change(prompt_file_of_the_judge, Calls(judge=6), (0, 6, 0, 0, 0)),
    Change(judge_model, Calls(judge=6), (0, 6, 0, 0, 0), is_served=True),
    Change(specification, Calls(), (0, 6, 0, 0, 0)),
    Change(source, Calls(script=6), (0, 6, 0, 0, 0)),
    Change(dependency_of_the_grader, Calls(script=6), (0, 6, 0, 0, 0)),
    Change(raised_limit, Calls(good=1, prog=1, judge=2, script=2), (6, 0, 0, 2, 0)),
    Change(lowered_limit, Calls(), (6, 0, 0, 0, 2)),
    Change(name_of_the_target, Calls(good=3, judge=3, script=3), (3, 0, 0, 3, 2), is_served=True),
    Change(nothing, Calls(), (6, 0, 0, 0, 2)),
)
