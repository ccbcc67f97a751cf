"""A folder with an evaluation in it, and a run of it over a fake session."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quintain_runner.engine.run_setup import PlanSession, RunOptions, RunSetup, SessionRequest
from quintain_runner.engine.scheduler import ErrorPolicy
from quintain_runner.graders.base import GraderEnvironment
from quintain_runner.plan.dataset import open_dataset
from quintain_runner.report.progress_display import NoProgressDisplay, ProgressDisplay
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


@dataclass
class EvaluationFolder:
    """Where an evaluation stands, its results, and how it is run."""

    path: Path
    client: FakeClient
    targets: tuple[str, ...] = ("bot",)
    env: dict[str, str] = field(default_factory=dict)
    judge_targets: dict[str, str | None] = field(default_factory=dict)
    progress: ProgressDisplay = field(default_factory=NoProgressDisplay)
    concurrency: int = 8
    error_policy: ErrorPolicy = field(default_factory=ErrorPolicy)

    @property
    def output(self) -> Path:
        """Where the results go."""
        return self.path / "out"

    def setup(self, **options: Any) -> RunSetup:
        """A run of the evaluation, as its files are now, with these options."""
        evaluation = load_evaluation(self.path / "eval.yaml")
        return RunSetup(
            options=RunOptions(
                path=self.path / "eval.yaml",
                output=self.output,
                **{"concurrency": self.concurrency, "error_policy": self.error_policy, **options},
            ),
            evaluation=evaluation,
            dataset_stats=open_dataset(evaluation, self.output, self.env),
            targets=self.targets,
            client=self.client,
            open_session=self._open_session,
            read_session_info=self.client.read_session_info,
            close_session=self.client.close_child,
            grader_environment=GraderEnvironment("http://127.0.0.1:1/door"),
            judge_targets=self.judge_targets,
            env=self.env,
            progress=self.progress,
        )

    async def _open_session(self, _: SessionRequest) -> PlanSession:
        return PlanSession(client=self.client, session_id=(await self.client.get_info()).session_id)

    def rows(self) -> list[Row]:
        """The rows as they are on the disk."""
        lines = (self.output / "results.jsonl").read_bytes().splitlines()
        return [Row.model_validate_json(line) for line in lines]

    def rows_by_case(self) -> dict[str, Row]:
        """The latest row of each case."""
        return {row.case_id: row for row in self.rows()}
