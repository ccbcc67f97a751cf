"""Executes a run: reads its files, connects a backend, opens the session, runs the trials and reports."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from quintain.config import card_of
from quintain.config.prices import known_prices
from quintain.errors import ConfigError
from quintain.runtime.process_memory import reduce_gc_frequency
from quintain.settings import environment, read_settings
from quintain_cli.console import (
    EXIT_INTERRUPTED,
    escape_for_terminal,
    format_count,
    print_json,
    print_stderr,
    run_command,
    stderr_console,
)
from quintain_cli.run.backend import (
    Backend,
    connect_backend,
    embedded_fleet_plan,
)
from quintain_cli.run.inspection import CheckedEvaluation, inspect_evaluation
from quintain_cli.run.output import OutputFiles, format_size, print_report, report_to_json
from quintain_cli.run.session import RunBudget, RunSessions, write_calls
from quintain_cli.running_fleet import wait_for_first_worker
from quintain_runner.engine.rerun_plan import RerunPlan
from quintain_runner.engine.run import run_evaluation
from quintain_runner.engine.run_setup import RunOptions, RunSetup
from quintain_runner.files import exclusive_lock
from quintain_runner.graders.base import GraderEnvironment, unconfined_programs
from quintain_runner.plan.dataset import DatasetStats, read_cases
from quintain_runner.plan.trials import estimate_calls
from quintain_runner.report.progress_display import NoProgressDisplay, progress_display
from quintain_runner.report.run_record import Origin, planned_targets
from quintain_runner.report.run_report import RunReport, read_report

ConfigOption = Annotated[
    Path | None, typer.Option(help="Configuration file; default: quintain.yaml beside the evaluation file or above.")
]
ConcurrencyOption = Annotated[int, typer.Option(min=1, help="The number of concurrent trials per target.")]
GradersOption = Annotated[int, typer.Option(min=1, help="The number of concurrent grader processes.")]


def run_and_report(options: RunOptions, files: OutputFiles, *, as_json: bool) -> int:
    """Run an evaluation, print its results, write the files and return the exit code."""
    reduce_gc_frequency()
    resume_command = options.resume_command or options.command
    try:
        report = run_command(execute_run(options, files, quiet=as_json), as_json=as_json, service="run")
    except typer.Exit as exit_request:
        if exit_request.exit_code == EXIT_INTERRUPTED:
            print_stderr(f"next   the rows written are kept; this command resumes: {resume_command}")
        raise
    if as_json:
        print_json(report_to_json(report))
    else:
        print_report(report, resume_command)
    return int(report.summary.exit_code)


async def execute_run(options: RunOptions, files: OutputFiles | None = None, *, quiet: bool = True) -> RunReport:
    """Run an evaluation and return its report. Raises as `run_evaluation`, and `ConfigError` with every mistake of the
    files, a line each, before anything is connected.

    ``quiet`` prints neither the plan nor the progress.
    """
    settings, files = read_settings(environment()), files or OutputFiles()
    files.check_writable()
    if not options.path.is_file():
        raise ConfigError(f"{options.path}: there is no such file; `quintain init` writes one to start from")
    # The earlier results are renamed first, because the dataset's command stores its output in the folder.
    with _set_aside(options.folder) if options.is_fresh else contextlib.nullcontext():
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
        async with connect_backend(settings, fleet_plan) as backend, RunSessions(backend, budget) as sessions:
            if not quiet:
                _print_plan(options, found, budget, backend.location, case_count=case_count, trial_count=trial_count)
            if fleet_plan is None and options.waits:
                await wait_for_first_worker(sessions.client, found.targets, settings.timings.unknown_target_seconds)
            summary = await run_evaluation(_run_setup(options, found, backend, sessions, quiet=quiet))
            if fleet_plan is not None:
                await write_calls(options.folder, fleet_plan.ledger_url)
            if summary.is_budget_spent:
                summary = replace(summary, spent_parent=await sessions.spent_parent())
            await sessions.finish(has_open_trials=summary.has_open_trials)
        report = await asyncio.to_thread(read_report, options.folder, summary)
        await asyncio.to_thread(files.write, [report], options.resume_command or options.command, environment())
        return report


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
def _set_aside(folder: Path) -> Iterator[None]:
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
    print_stderr(f"fresh    the earlier results are in {previous}")


def _run_setup(
    options: RunOptions, found: CheckedEvaluation, backend: Backend, sessions: RunSessions, *, quiet: bool
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
        progress=NoProgressDisplay() if quiet else progress_display(stderr_console(), environment()),
        origin=Origin(cards=cards),
        prices=known_prices(targets),
        target_models=models,
        on_plan=(lambda _: None) if quiet else _print_rerun_plan,
    )


def _print_rerun_plan(plan: RerunPlan) -> None:
    for line in plan.lines():
        print_stderr(escape_for_terminal(f"plan     {line}"))
    for warning in plan.warnings():
        print_stderr(escape_for_terminal(f"warning  {warning}"))
    answers, most = plan.calls_left.answers, plan.calls_left.most
    print_stderr(f"calls    {answers:,}" + (f" to {most:,}" if most > answers else ""))


def _print_plan(
    options: RunOptions,
    found: CheckedEvaluation,
    budget: RunBudget,
    location: str,
    *,
    case_count: int,
    trial_count: int,
) -> None:
    evaluation = found.evaluation
    names = ", ".join(grader.name for grader in evaluation.spec.graders)
    size_text = format_size(case_count, evaluation.prompt_names, found.targets, evaluation.spec.repeats)
    trials_text = format_count(trial_count, "trial")
    print_stderr(escape_for_terminal(f"run      {evaluation.name}: {size_text} = {trials_text}, graders {names}"))
    budget_text = format_count(budget.max_calls, "call") if budget.is_explicit else "what the trials can need"
    print_stderr(f"budget   {budget_text}, graders included")
    print_stderr(
        f"where    {location}; {options.concurrency} trials at once per target, {options.grader_concurrency} graders"
    )
    print_stderr(f"results  {options.folder}")
    for warning in found.warnings:
        print_stderr(escape_for_terminal(f"warning  {warning}"))
    if programs := unconfined_programs(evaluation):
        print_stderr(
            escape_for_terminal(f"rights   {', '.join(programs)} run with your rights; run_as or sandbox limits them")
        )
