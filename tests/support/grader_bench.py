"""A bench over a fake session, and graders ready to stand at it."""

from __future__ import annotations

import asyncio
from pathlib import Path

from quintain_runner.doors import Doors
from quintain_runner.grader_specs import CommandGrader, GraderCalls
from quintain_runner.grading import Bench, Grader
from quintain_runner.programs import Executing, by_process
from support.evaluation_folder import write_script
from support.fake_client import FakeClient


def bench(client: FakeClient, *graders: Grader) -> Bench:
    """A bench with room for one process at a time."""
    return Bench(
        run="eval",
        session=client,
        count_calls=client.count_calls,
        doors=Doors("http://door"),
        graders=graders,
        judge_targets={"bot": "configured-judge"},
        max_calls=client.max_calls,
        places=asyncio.Semaphore(1),
        heard=lambda target, code: None,
    )


def script(
    folder: Path, source: str, *, name: str = "judge", max_calls: int = 50, judge_target: str | None = None
) -> Executing:
    """A grader that is this Python script."""
    spec = CommandGrader(
        name=name,
        command=write_script(folder, f"{name}.py", source),
        judge_target=judge_target,
        target=GraderCalls(max_calls=max_calls),
        timeout_seconds=30,
    )
    return Executing(spec=spec, execute=by_process(spec, folder, {}))
