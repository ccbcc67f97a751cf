"""Evaluations: the repository's own example, small ones that a test writes, and runs of them over a fake session."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quintain.contracts.invoke import InvokeRequest
from quintain.settings import read_settings
from quintain_runner.engine.backend import Backend
from quintain_runner.engine.rerun_plan import RerunPlan
from quintain_runner.engine.run import RunListener, run_evaluation
from quintain_runner.engine.run_settings import ErrorPolicy, RunOptions, RunSettings
from quintain_runner.engine.session import RunSession, RunSessions
from quintain_runner.plan.dataset import open_dataset
from quintain_runner.plan.trial_selection import select_trials
from quintain_runner.report.progress_display import NoProgressDisplay, ProgressDisplay
from quintain_runner.report.summary import RunSummary
from quintain_runner.results.row import Row
from quintain_runner.spec.evaluation import load_evaluation
from support.fake_client import FakeClient

CAPITALS = Path(__file__).parents[2] / "examples" / "capitals"


Json = dict[str, object]


def copy_capitals(folder: Path) -> None:
    """The example, in this folder."""
    for name in ("bot.py", "cases.jsonl", "eval.yaml", "judge.py", "quintain.yaml"):
        shutil.copyfile(CAPITALS / name, folder / name)


def write_files(folder: Path, *, cases: int = 3, **files: str) -> None:
    """A dataset of so many cases that an echo answers rightly, and ``name_ending="text"`` as ``name.ending``."""
    rows = ({"id": f"case-{n}", "question": f"q{n}", "expected": f"q{n}"} for n in range(1, cases + 1))
    (folder / "cases.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    for name, text in files.items():
        (folder / name.replace("_", ".")).write_text(text)


def rows_of(output: Path) -> list[Json]:
    """The rows of a run so far; a line that is still being written is none."""
    path = output / "results.jsonl"
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith(b"\n")]


def rows_by_trial(output: Path) -> dict[tuple[str, str], Json]:
    """The rows of a run by case and target, without what differs from run to run: how long it took, and the sessions of
    its graders.
    """
    rows = {(str(row["caseId"]), str(row["target"])): row for row in rows_of(output)}
    for row in rows.values():
        graders = row["graders"]
        for verdict in graders.values():
            verdict.pop("sessionId", None)
    assert len(rows) == len(rows_of(output)), "no row twice"
    return {trial: {key: value for key, value in row.items() if key != "durationMs"} for trial, row in rows.items()}


def totals_of(output: Path) -> Json:
    """The totals of a run's record."""
    totals = json.loads((output / "run.json").read_text())["totals"]
    assert isinstance(totals, dict)
    return totals


EXACT = {"name": "same", "builtin": "exact"}


def cases(count: int) -> list[Json]:
    """Cases that an echo answers rightly."""
    return [{"id": f"case-{number}", "question": f"q{number}", "expected": f"q{number}"} for number in range(count)]


def write_evaluation(folder: Path, rows: list[Json], graders: list[Json], **settings: object) -> Path:
    """Write the two files of an evaluation; YAML reads JSON."""
    (folder / "cases.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    path = folder / "eval.yaml"
    path.write_text(json.dumps({"dataset": "cases.jsonl", "graders": graders, **settings}))
    return path


def write_script(folder: Path, name: str, source: str) -> list[str]:
    """Write a Python script, and give the command that runs it."""
    (folder / name).write_text(source)
    return [sys.executable, name]


#: A grader that asks a model, whose prompt stands in a file.
JUDGED: Json = {"name": "judged", "builtin": "llm-judge", "prompt": "prompt.md", "judge_target": "judge"}


async def judged_echo(request: InvokeRequest) -> str:
    """The target under test repeats the question; the judge passes it, with the first word of its prompt as reason."""
    if request.target != "judge":
        return request.question or ""
    return json.dumps({"pass": True, "reason": (request.system_prompt or "").split()[0]})


def backend_of(client: FakeClient, **fields: Any) -> Backend:
    """A backend with the sessions of this client, or with what the fields say."""
    known = {"admin": None, "parent_token": None, "connect_session": client.connected, **fields}
    return Backend(location="here", gateway_url="http://127.0.0.1:1/door", client_of=client.child, **known)


class FakeSessions(RunSessions):
    """One session for every plan."""

    def __init__(self, run: RunSettings, backend: Backend, client: FakeClient) -> None:
        super().__init__(run, backend)
        self.client = client

    async def open(self, *, most_calls: int, calls_in_rows: int) -> RunSession:
        return RunSession(client=self.client, session_id=(await self.client.get_info()).session_id)


@dataclass
class EvaluationFolder(RunListener):
    """Where an evaluation stands, its results, and how it is run; it is told of its runs."""

    path: Path
    client: FakeClient
    targets: tuple[str, ...] = ("bot",)
    env: dict[str, str] = field(default_factory=dict)
    progress: ProgressDisplay = field(default_factory=NoProgressDisplay)
    concurrency: int = 8
    error_policy: ErrorPolicy = field(default_factory=ErrorPolicy)
    #: What became of the rows of before, in the last run, and how many requests there were before it.
    plan: RerunPlan | None = None
    asked_before: int = 0

    def on_plan(self, plan: RerunPlan) -> None:
        """Keep the plan."""
        self.plan = plan

    @property
    def output(self) -> Path:
        """Where the results go."""
        return self.path / "out"

    def settings(self, **options: Any) -> RunSettings:
        """The settings of a run of the evaluation, as its files are now, with these options."""
        run = RunOptions(
            path=self.path / "eval.yaml",
            output=self.output,
            **{"concurrency": self.concurrency, "error_policy": self.error_policy, **options},
        )
        chosen = run.selection
        evaluation = load_evaluation(self.path / "eval.yaml").selecting(chosen.prompts, chosen.graders)
        dataset = open_dataset(evaluation, self.output, self.env)
        selection = select_trials(chosen, dataset, run.targets, run.folder)
        return RunSettings(
            options=run,
            settings=read_settings({}),
            env=self.env,
            evaluation=evaluation,
            config=None,
            targets=tuple(name for name in self.targets if not run.targets or name in run.targets),
            dataset=dataset,
            selection=selection,
        )

    async def run(self, run: RunSettings | None = None, **options: Any) -> RunSummary:
        """Run the evaluation with these settings; by default with those that its files and the options say."""
        run = run or self.settings(**options)
        self.asked_before = len(self.client.requests)
        backend = backend_of(self.client)
        return await run_evaluation(run, backend, FakeSessions(run, backend, self.client), self)

    @property
    def asked(self) -> list[InvokeRequest]:
        """What the last command asked."""
        return self.client.requests[self.asked_before :]

    def called(self, *targets: str) -> tuple[int, ...]:
        """How often the last command asked each of these targets."""
        asked = [request.target for request in self.asked]
        return tuple(asked.count(target) for target in targets)

    @property
    def record(self) -> dict[str, Any]:
        """The record of the run."""
        return json.loads((self.output / "run.json").read_text())

    def rows(self) -> list[Row]:
        """The rows as they are on the disk."""
        lines = (self.output / "results.jsonl").read_bytes().splitlines()
        return [Row.model_validate_json(line) for line in lines]

    def rows_by_case(self) -> dict[str, Row]:
        """The latest row of each case."""
        return {row.case_id: row for row in self.rows()}
