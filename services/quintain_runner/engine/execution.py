"""Executes a run: reads its files, connects its services, opens its session and runs its trials."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from quintain.client.client import Client
from quintain.errors import ConfigError
from quintain.settings import environment, read_settings
from quintain_runner.engine.backend import connect_backend
from quintain_runner.engine.run import RunListener, run_evaluation
from quintain_runner.engine.run_settings import RunOptions, RunSettings, inspect_evaluation
from quintain_runner.engine.session import RunSessions, write_calls
from quintain_runner.files import exclusive_lock
from quintain_runner.report.run_report import RunReport, read_report

#: How often the registered targets are read while a run waits for them, in seconds.
READ_SECONDS = 0.5


async def execute_run(options: RunOptions, listener: RunListener | None = None) -> RunReport:
    """Run an evaluation and return its report. Raises as `run_evaluation`, and `ConfigError` with every mistake of the
    files, a line each, before anything is connected.
    """
    settings, listener = read_settings(environment()), listener or RunListener()
    listener.before_files()
    if not options.path.is_file():
        raise ConfigError(f"{options.path}: there is no such file; `quintain init` writes one to start from")
    # The earlier results are renamed first, because the dataset's command stores its output in the folder.
    with _set_aside(options.folder, listener) if options.is_fresh else contextlib.nullcontext():
        run = (await inspect_evaluation(options, settings, results_folder=options.folder)).checked()
    _check_case_ids(run)
    ledger_url = settings.ledger_url or f"sqlite://{(options.folder / 'ledger.sqlite3').absolute()}"
    with exclusive_lock(options.folder, options.folder / ".lock"):
        async with (
            connect_backend(run, ledger_url=ledger_url, exclusive_path=str(options.folder.absolute())) as backend,
            RunSessions(run, backend, listener.on_new_session) as sessions,
        ):
            listener.on_checked(run, backend.location)
            if run.is_on_fleet and options.waits:
                await _wait_for_first_worker(sessions.client, run, listener)
            summary = await run_evaluation(run, backend, sessions, listener)
            if not run.is_on_fleet:
                await write_calls(options.folder, ledger_url)
            if summary.is_budget_spent:
                summary = replace(summary, spent_parent=await sessions.spent_parent())
            await sessions.finish(has_open_trials=summary.has_open_trials)
        report = await asyncio.to_thread(read_report, options.folder, summary)
        await asyncio.to_thread(listener.on_end, report)
        return report


async def _wait_for_first_worker(client: Client, run: RunSettings, listener: RunListener) -> None:
    """Wait for the registration of a target, while none is registered at all."""
    loop = asyncio.get_running_loop()
    give_up_at, is_told = loop.time() + run.settings.timings.unknown_target_seconds, False
    while not (info := await client.get_info()).available_targets and loop.time() < give_up_at:
        if not is_told:
            listener.on_waiting(info, run.targets)
            is_told = True
        await asyncio.sleep(READ_SECONDS)


def _check_case_ids(run: RunSettings) -> None:
    """Raise `ConfigError` if the dataset does not have a case that ``--case`` names."""
    if run.options.case_ids:
        with run.open_cases() as cases:
            unknown = run.options.selection.unknown_case_ids(cases)
        if unknown:
            raise ConfigError(
                f"{run.dataset.source.path}: --case {', '.join(map(repr, unknown))}: none of the selected cases of "
                "the dataset has this id; check its spelling"
            )


@contextlib.contextmanager
def _set_aside(folder: Path, listener: RunListener) -> Iterator[None]:
    """Rename the earlier results to NAME.previous-N, so that the run starts without any.

    If the block raises, the new folder is removed and the earlier results get their name back: a refused run changes
    nothing.
    """
    if not folder.exists():
        yield
        return
    with exclusive_lock(folder, folder / ".lock"), exclusive_lock(folder, folder):
        number = 1
        while (previous := folder.with_name(f"{folder.name}.previous-{number}")).exists():
            number += 1
        folder.rename(previous)
    try:
        yield
    except BaseException:
        if folder.exists():
            shutil.rmtree(folder)
        previous.rename(folder)
        raise
    listener.on_set_aside(previous)
