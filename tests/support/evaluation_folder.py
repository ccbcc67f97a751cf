"""A folder with an evaluation in it, and a run of it over a fake session."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quintain.settings import read_settings
from quintain_runner.engine.backend import Backend
from quintain_runner.engine.rerun_plan import RerunPlan
from quintain_runner.engine.run import RunListener, run_evaluation
from quintain_runner.engine.run_settings import RunOptions, RunSettings
from quintain_runner.engine.scheduler import ErrorPolicy
from quintain_runner.engine.session import PlanSession, RunSessions
from quintain_runner.plan.dataset import open_dataset
from quintain_runner.report.progress_display import NoProgressDisplay, ProgressDisplay
from quintain_runner.report.summary import RunSummary
from quintain_runner.results.row import Row
from quintain_runner.spec.evaluation import load_evaluation
from support.fake_client import FakeClient

EXACT = {"name": "same", "builtin": "exact"}

Json = dict[str, object]


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


class FakeSessions(RunSessions):
    """One session for every plan."""

    def __init__(self, run: RunSettings, backend: Backend, client: FakeClient) -> None:
        super().__init__(run, backend)
        self.client = client

    async def open(self, *, is_changed: bool, most_calls: int) -> PlanSession:
        return PlanSession(client=self.client, session_id=(await self.client.get_info()).session_id)


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
    #: What became of the rows of before, in the last run.
    plan: RerunPlan | None = None

    def on_plan(self, plan: RerunPlan) -> None:
        """Keep the plan."""
        self.plan = plan

    @property
    def output(self) -> Path:
        """Where the results go."""
        return self.path / "out"

    def settings(self, **options: Any) -> RunSettings:
        """The settings of a run of the evaluation, as its files are now, with these options."""
        evaluation = load_evaluation(self.path / "eval.yaml")
        run = RunOptions(
            path=self.path / "eval.yaml",
            output=self.output,
            **{"concurrency": self.concurrency, "error_policy": self.error_policy, **options},
        )
        return RunSettings(
            options=run,
            settings=read_settings({}),
            env=self.env,
            evaluation=evaluation,
            config=None,
            targets=tuple(name for name in self.targets if run.selection.has_target(name)),
            dataset=open_dataset(evaluation, self.output, self.env),
        )

    async def run(self, run: RunSettings | None = None, **options: Any) -> RunSummary:
        """Run the evaluation with these settings; by default with those that its files and the options say."""
        run = run or self.settings(**options)
        backend = Backend(
            location="here",
            gateway_url="http://127.0.0.1:1/door",
            admin=None,
            parent_token=None,
            connect_session=self.client.connected,
            client_of=self.client.child,
        )
        return await run_evaluation(run, backend, FakeSessions(run, backend, self.client), self)

    def rows(self) -> list[Row]:
        """The rows as they are on the disk."""
        lines = (self.output / "results.jsonl").read_bytes().splitlines()
        return [Row.model_validate_json(line) for line in lines]

    def rows_by_case(self) -> dict[str, Row]:
        """The latest row of each case."""
        return {row.case_id: row for row in self.rows()}
