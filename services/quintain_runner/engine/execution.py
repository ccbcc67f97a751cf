"""Executes a run: reads its files, connects its services, opens its session and runs its trials."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from quintain.client.client import Client
from quintain.config import card_of
from quintain.config.prices import known_prices
from quintain.contracts.session import Info
from quintain.errors import ConfigError
from quintain.settings import environment, read_settings
from quintain_runner.engine.backend import Backend, connect_backend, embedded_fleet_plan
from quintain_runner.engine.inspection import CheckedEvaluation, inspect_evaluation
from quintain_runner.engine.rerun_plan import RerunPlan
from quintain_runner.engine.run import run_evaluation
from quintain_runner.engine.run_setup import RunOptions, RunSetup
from quintain_runner.engine.session import NewSession, RunBudget, RunSessions, write_calls
from quintain_runner.files import exclusive_lock
from quintain_runner.graders.base import GraderEnvironment
from quintain_runner.plan.dataset import DatasetStats, read_cases
from quintain_runner.plan.trials import estimate_calls
from quintain_runner.report.progress_display import NoProgressDisplay, ProgressDisplay
from quintain_runner.report.run_record import Origin, planned_targets
from quintain_runner.report.run_report import RunReport, read_report

#: How often the registered targets are read while a run waits for them, in seconds.
READ_SECONDS = 0.5


class RunListener:
    """Is told how a run goes on; here it shows nothing."""

    #: What shows the progress of the trials.
    progress: ProgressDisplay = NoProgressDisplay()

    def before_files(self) -> None:
        """The run begins. What is raised ends it, before anything is read."""

    def on_set_aside(self, previous: Path) -> None:
        """The earlier results are in this folder."""

    def on_checked(self, found: CheckedEvaluation, budget: RunBudget, location: str, *, cases: int) -> None:
        """Nothing is wrong with the files, and the services at ``location`` are connected; so many cases are asked."""

    def on_new_session(self, session: NewSession) -> None:
        """A session takes the place of the one before."""

    def on_waiting(self, info: Info, targets: tuple[str, ...]) -> None:
        """The run waits, because no worker has registered a target."""

    def on_plan(self, plan: RerunPlan) -> None:
        """This is what the command executes."""

    def on_end(self, report: RunReport) -> None:
        """The run has ended, and its folder is still locked. Called in a thread."""


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
        found = (await inspect_evaluation(options, settings, results_folder=options.folder)).checked()
    _check_case_ids(options, found.dataset_stats)
    case_count = min(
        size for size in (found.dataset_stats.cases, len(options.case_ids) or None, options.limit) if size is not None
    )
    trial_count = found.evaluation.trials_of(case_count, targets=len(found.targets))
    fleet_plan = None
    if found.config is not None and not found.on_fleet:
        ledger_url = settings.ledger_url or f"sqlite://{(options.folder / 'ledger.sqlite3').absolute()}"
        fleet_plan = embedded_fleet_plan(settings, found.config, ledger_url, results_folder=options.folder)
    budget = RunBudget.of(options, found, estimate_calls(found.evaluation, trials=trial_count))
    with exclusive_lock(options.folder, options.folder / ".lock"):
        async with (
            connect_backend(settings, fleet_plan) as backend,
            RunSessions(backend, budget, listener.on_new_session) as sessions,
        ):
            listener.on_checked(found, budget, backend.location, cases=case_count)
            if fleet_plan is None and options.waits:
                timeout_seconds = settings.timings.unknown_target_seconds
                await _wait_for_first_worker(sessions.client, found.targets, timeout_seconds, listener)
            summary = await run_evaluation(_run_setup(options, found, backend, sessions, listener))
            if fleet_plan is not None:
                await write_calls(options.folder, fleet_plan.ledger_url)
            if summary.is_budget_spent:
                summary = replace(summary, spent_parent=await sessions.spent_parent())
            await sessions.finish(has_open_trials=summary.has_open_trials)
        report = await asyncio.to_thread(read_report, options.folder, summary)
        await asyncio.to_thread(listener.on_end, report)
        return report


async def _wait_for_first_worker(
    client: Client, targets: tuple[str, ...], timeout_seconds: float, listener: RunListener
) -> None:
    """Wait up to ``timeout_seconds`` for the registration of a target, while none is registered at all."""
    loop = asyncio.get_running_loop()
    give_up_at, is_told = loop.time() + timeout_seconds, False
    while not (info := await client.get_info()).available_targets and loop.time() < give_up_at:
        if not is_told:
            listener.on_waiting(info, targets)
            is_told = True
        await asyncio.sleep(READ_SECONDS)


def _check_case_ids(options: RunOptions, dataset_stats: DatasetStats) -> None:
    """Raise `ConfigError` if the dataset does not have a case that ``--case`` names."""
    if options.case_ids:
        with contextlib.closing(read_cases(dataset_stats.source)) as cases:
            unknown = options.selection.unknown_case_ids(cases)
        if unknown:
            raise ConfigError(
                f"{dataset_stats.source.path}: --case {', '.join(map(repr, unknown))}: none of the selected cases of "
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


def _run_setup(
    options: RunOptions, found: CheckedEvaluation, backend: Backend, sessions: RunSessions, listener: RunListener
) -> RunSetup:
    targets = {} if found.config is None else found.config.targets
    cards = tuple(card_of(name, target) for name, target in targets.items())
    models: dict[str, str] = {}
    if found.config is not None and not found.on_fleet:
        resolved = found.config.resolve(environment()).targets
        models = {name: model for name, target in resolved.items() if (model := card_of(name, target).model)}
    return RunSetup(
        options=options,
        evaluation=found.evaluation,
        targets=planned_targets(options.folder, found.evaluation, found.targets) if options.targets else found.targets,
        client=sessions.client,
        open_session=sessions.open,
        dataset_stats=found.dataset_stats,
        read_session_info=backend.read_session_info,
        close_session=backend.close_session,
        grader_environment=GraderEnvironment(gateway_url=backend.gateway_url),
        judge_targets={name: target.judge_target for name, target in targets.items()},
        env=environment(),
        progress=listener.progress,
        origin=Origin(cards=cards),
        prices=known_prices(targets),
        target_models=models,
        on_plan=listener.on_plan,
    )
