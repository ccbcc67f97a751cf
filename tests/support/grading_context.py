"""The context that graders run in over a fake session, graders in it, and the files that they are given."""

from __future__ import annotations

import asyncio
from pathlib import Path

from quintain.graders import Case
from quintain_runner.graders.base import GraderRunner, GradingContext
from quintain_runner.graders.program import ProgramGraderRunner, process_executor
from quintain_runner.graders.subprocesses import GraderCommand
from quintain_runner.plan.changes import RunFingerprints
from quintain_runner.plan.trials import Trial
from quintain_runner.results.row import Row
from quintain_runner.spec.graders import CommandGrader, GraderCalls
from support.evaluations import write_script
from support.fake_client import FakeClient


def grading_context(client: FakeClient, *graders: GraderRunner) -> GradingContext:
    """A bench with room for one process at a time."""
    return GradingContext(
        run_name="eval",
        session=client,
        client_of=client.child,
        gateway_url="http://door",
        graders=graders,
        judge_targets={"bot": "configured-judge"},
        max_calls=client.max_calls,
        process_slots=asyncio.Semaphore(1),
        on_retry=lambda target, code: None,
    )


def script_grader(
    folder: Path,
    source: str,
    *,
    name: str = "judge",
    max_calls: int = 50,
    max_cost_usd: float | None = None,
    judge_target: str | None = None,
) -> ProgramGraderRunner:
    """A grader that is this Python script."""
    spec = CommandGrader(
        name=name,
        command=write_script(folder, f"{name}.py", source),
        judge_target=judge_target,
        target=GraderCalls(max_calls=max_calls, max_cost_usd=max_cost_usd),
        timeout_seconds=30,
    )
    command = GraderCommand(argv=tuple(spec.command), folder=folder, env={}, timeout_seconds=spec.timeout_seconds)
    return ProgramGraderRunner(spec=spec, execute=process_executor(command))


def trial_of(
    case: Case,
    target: str = "bot",
    *,
    repeat: int = 1,
    fingerprint: str | None = None,
    previous: Row | None = None,
    kept: Row | None = None,
) -> Trial:
    """A trial of a case, of a target with this fingerprint."""
    made_of = RunFingerprints(targets={target: fingerprint}).row_fingerprints(case, target)
    return Trial(case=case, target=target, repeat=repeat, fingerprints=made_of, previous=previous, kept=kept)


class SavedFiles(dict[str, bytes]):
    """Every file by its path."""

    def save_file(self, name: str, data: bytes) -> str:
        """Keep a file, as `quintain_runner.graders.input.SaveFile`."""
        path = f"/kept/{name}"
        self[path] = data
        return path
