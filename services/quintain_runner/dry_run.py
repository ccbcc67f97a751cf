"""Tells what a command would ask: it plans in a copy of the run's folder, and asks nobody."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Final

from quintain.contracts.session import OpenSession
from quintain.errors import ConfigError
from quintain_metadata.store.base import IN_MEMORY_URL
from quintain_runner.engine.backend import connect_backend
from quintain_runner.engine.planned_run import open_planned_run
from quintain_runner.engine.rerun_plan import RerunPlan
from quintain_runner.engine.run_settings import RunOptions
from quintain_runner.evaluation import checked_run
from quintain_runner.files import exclusive_lock
from quintain_runner.report.run_file import require_same_evaluation

#: The files of a folder by which a command is planned.
_PLANNED_BY: Final = ("run.json", "results.jsonl", "answers.sqlite3*", "dataset-*")

#: How long the session lives by which the targets are known, in seconds; no call is made in it.
_SESSION_SECONDS: Final = 600.0


async def plan_run(options: RunOptions) -> RerunPlan:
    """Return the plan that `execute_run` would have with these options. The folder of the run stays as it is.

    Raises what that raises before its first call.
    """
    if options.replay is not None:
        raise ConfigError("--plan and --replay: a replay asks nobody; leave one of them out")
    with tempfile.TemporaryDirectory() as temporary:
        copied = Path(temporary) / options.folder.name
        await asyncio.to_thread(_copy, options, copied)
        run = await checked_run(replace(options, output=copied))
        require_same_evaluation(copied, run.evaluation)
        async with connect_backend(run, ledger_url=IN_MEMORY_URL) as backend:
            request = OpenSession(default_target=run.targets[0], max_calls=0, expires_in_seconds=_SESSION_SECONDS)
            opened = await backend.open_session(request)
            async with backend.connect_session(opened.token) as client:
                info = await client.get_info()
                async with open_planned_run(run, info, backend.gateway_url) as planned:
                    return planned.plan


def _copy(options: RunOptions, to: Path) -> None:
    """Copy what a command finds in its folder; a fresh one finds nothing."""
    to.mkdir()
    folder = options.folder
    if options.is_fresh or not folder.is_dir():
        return
    with exclusive_lock(folder, folder / ".lock"):
        for pattern in _PLANNED_BY:
            for file in folder.glob(pattern):
                shutil.copy2(file, to)
