"""Executes a run: reads its files, connects a backend, opens the session, runs the trials and reports."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import typer

from quintain.config import Config, card_of
from quintain.config.prices import known_prices
from quintain.errors import ConfigError
from quintain.runtime.gc import reduce_gc_frequency
from quintain.settings import Settings, environment, read_settings
from quintain_cli.console import (
    EXIT_INTERRUPTED,
    escape_for_terminal,
    format_count,
    print_json,
    print_stderr,
    run_command,
    stderr_console,
)
from quintain_cli.fleet.embedded import FleetPlan
from quintain_cli.run.backend import (
    Backend,
    connect_backend,
    embedded_fleet_plan,
    is_on_fleet,
)
from quintain_cli.run.inspection import InspectionOptions, inspect_evaluation
from quintain_cli.run.options import RunOptions
from quintain_cli.run.output import format_size, print_report, report_to_json
from quintain_cli.run.session import RunBudget, RunSessions
from quintain_cli.run.usage import CALLS_FILE_NAME, fleet_calls_note, write_calls
from quintain_runner import (
    CallsEstimate,
    DatasetStats,
    Evaluation,
    GraderEnvironment,
    NoProgressDisplay,
    Origin,
    RerunPlan,
    RunReport,
    RunSetup,
    TrialSelection,
    charged_calls,
    estimate_calls,
    exclusive_lock,
    planned_targets,
    progress_display,
    read_cases,
    read_report,
    run_evaluation,
    unconfined_programs,
)


def run_and_report(options: RunOptions, command: str) -> int:
    """Run an evaluation, print its results and return the exit code. ``command`` is the given command line."""
    reduce_gc_frequency()
    resume_command = options.resume_command or command
    try:
        report = run_command(execute_run(options, command), as_json=options.as_json, service="run")
    except typer.Exit as exit_request:
        if exit_request.exit_code == EXIT_INTERRUPTED:
            print_stderr(f"next   the rows written are kept; this command resumes: {resume_command}")
        raise
    if options.as_json:
        print_json(report_to_json(report))
    else:
        print_report(report, resume_command)
    return int(report.summary.exit_code)


@dataclass(frozen=True, slots=True, kw_only=True)
class _PreparedRun:
    """A run whose files and options were read and checked, before anything is connected."""

    options: RunOptions
    evaluation: Evaluation
    config: Config | None
    #: The targets that this command calls, and those of the whole run.
    targets: tuple[str, ...]
    planned_targets: tuple[str, ...]
    selection: TrialSelection
    dataset_stats: DatasetStats
    #: The number of cases and of trials that this command may execute.
    case_count: int
    trial_count: int
    budget: RunBudget
    fleet_plan: FleetPlan | None


async def _prepare_run(settings: Settings, options: RunOptions) -> _PreparedRun:
    """Read and check everything. Raises `ConfigError` with every mistake, a line each."""
    options.files.check_writable()
    if not options.path.is_file():
        raise ConfigError(f"{options.path}: there is no such file; `quintain init` writes one to start from")
    on_fleet = is_on_fleet(settings) and not options.is_embedded
    inspection = InspectionOptions(
        path=options.path,
        targets=options.targets,
        config=options.config,
        on_fleet=on_fleet,
        results_folder=options.folder,
        keeps_stale=options.rerun_policy.keep_stale,
    )
    # The earlier results are renamed first, because the dataset's command stores its output in the folder.
    with _set_aside(options.folder) if options.is_fresh else contextlib.nullcontext():
        found = await inspect_evaluation(inspection, settings)
        if found.problems or found.evaluation is None or found.dataset_stats is None:
            raise ConfigError("\n".join(found.problems))
    evaluation, config, targets, dataset_stats = found.evaluation, found.config, found.targets, found.dataset_stats
    selection = _selection(options, dataset_stats)
    case_count = min(
        size for size in (dataset_stats.cases, len(options.case_ids) or None, options.limit) if size is not None
    )
    trial_count = evaluation.trials_of(case_count, targets=len(targets))
    calls = estimate_calls(evaluation, trials=trial_count)
    if options.regrades:
        calls = calls.without_answers()
    budget = RunBudget(
        default_target=targets[0],
        max_calls=_max_calls(options, evaluation, calls),
        is_explicit=options.max_calls is not None or evaluation.spec.max_calls is not None,
        max_body_bytes=evaluation.spec.max_body_bytes,
        label=f"run {evaluation.name}",
        token_path=options.folder / "session-token",
        count_spent_calls=lambda: charged_calls(options.folder),
        calls_location=fleet_calls_note if config is None or on_fleet else lambda _: CALLS_FILE_NAME,
    )
    return _PreparedRun(
        options=options,
        evaluation=evaluation,
        config=config,
        targets=targets,
        planned_targets=planned_targets(options.folder, evaluation, targets) if options.targets else targets,
        selection=selection,
        dataset_stats=dataset_stats,
        case_count=case_count,
        trial_count=trial_count,
        budget=budget,
        fleet_plan=None if config is None or on_fleet else _embedded_fleet_plan(settings, options, config, trial_count),
    )


def _selection(options: RunOptions, dataset_stats: DatasetStats) -> TrialSelection:
    """What the command is narrowed to. Raises `ConfigError` if the dataset does not have a case that it names."""
    selection = TrialSelection(
        case_ids=frozenset(options.case_ids) or None,
        limit=options.limit,
        targets=frozenset(options.targets) or None,
    )
    if options.case_ids:
        with contextlib.closing(read_cases(dataset_stats.source)) as cases:
            unknown = selection.unknown_case_ids(cases)
        if unknown:
            raise ConfigError(
                f"{dataset_stats.source.path}: --case {', '.join(map(repr, unknown))}: none of the selected cases of "
                "the dataset has this id; check its spelling"
            )
    return selection


async def execute_run(options: RunOptions, command: str) -> RunReport:
    """Run an evaluation and return its report. ``command`` resumes it. Raises as `run_evaluation`, and prints none."""
    settings = read_settings(environment())
    prepared = await _prepare_run(settings, options)
    with exclusive_lock(options.folder, options.folder / ".lock"):
        async with (
            connect_backend(settings, prepared.fleet_plan) as backend,
            RunSessions(backend, prepared.budget) as sessions,
        ):
            _print_plan(prepared, backend.location)
            summary = await run_evaluation(_run_setup(prepared, backend, sessions, command))
            if prepared.fleet_plan is not None:
                await write_calls(options.folder, prepared.fleet_plan.ledger_url)
            await sessions.finish(has_open_trials=summary.has_open_trials)
        report = await asyncio.to_thread(read_report, options.folder, summary)
        await asyncio.to_thread(options.files.write, [report], options.resume_command or command, environment())
        return report


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


def _run_setup(prepared: _PreparedRun, backend: Backend, sessions: RunSessions, command: str) -> RunSetup:
    options, config = prepared.options, prepared.config
    return RunSetup(
        evaluation=prepared.evaluation,
        targets=prepared.planned_targets,
        selection=prepared.selection,
        regrades=options.regrades,
        keeps_content=options.keeps_content,
        output=options.folder,
        client=sessions.client,
        open_session=sessions.open,
        dataset_stats=prepared.dataset_stats,
        rerun_policy=options.rerun_policy,
        error_policy=options.error_policy,
        read_session_info=backend.read_session_info,
        close_session=backend.close_session,
        grader_environment=GraderEnvironment(gateway_url=backend.gateway_url),
        judge_targets={}
        if config is None
        else {name: target_config.judge_target for name, target_config in config.targets.items()},
        env=environment(),
        progress=NoProgressDisplay() if options.as_json else progress_display(stderr_console(), environment()),
        concurrency=options.concurrency,
        grader_concurrency=options.grader_concurrency,
        origin=Origin(
            cards=() if config is None else tuple(card_of(name, target) for name, target in config.targets.items())
        ),
        prices={} if config is None else known_prices(config.targets),
        target_models={}
        if config is None or prepared.fleet_plan is None
        else {
            name: card.model
            for name, target in config.resolve(environment()).targets.items()
            if (card := card_of(name, target)).model is not None
        },
        command=command,
        on_plan=(lambda _: None) if options.as_json else _print_rerun_plan,
    )


def _print_rerun_plan(plan: RerunPlan) -> None:
    for line in plan.lines():
        print_stderr(escape_for_terminal(f"plan     {line}"))
    for warning in plan.warnings():
        print_stderr(escape_for_terminal(f"warning  {warning}"))
    answers, most = plan.calls_left.answers, plan.calls_left.most
    print_stderr(f"calls    {answers:,}" + (f" to {most:,}" if most > answers else ""))


def _max_calls(options: RunOptions, evaluation: Evaluation, calls: CallsEstimate) -> int:
    """Return the budget of the run: the one that was set, else the maximum that all answers and graders can need."""
    if options.max_calls is not None:
        return options.max_calls
    return calls.most if evaluation.spec.max_calls is None else evaluation.spec.max_calls


def _embedded_fleet_plan(settings: Settings, options: RunOptions, config: Config, trial_count: int) -> FleetPlan:
    default_ledger_url = f"sqlite://{(options.folder / 'ledger.sqlite3').absolute()}"
    return embedded_fleet_plan(
        settings,
        config,
        settings.ledger_url or default_ledger_url,
        trial_count=trial_count,
        results_folder=options.folder,
    )


def _print_plan(prepared: _PreparedRun, location: str) -> None:
    options, evaluation, budget = prepared.options, prepared.evaluation, prepared.budget
    if options.as_json:
        return
    names = ", ".join(grader.name for grader in evaluation.spec.graders)
    size_text = format_size(prepared.case_count, evaluation.prompt_names, prepared.targets, evaluation.spec.repeats)
    trials = prepared.trial_count
    print_stderr(
        escape_for_terminal(
            f"run      {evaluation.name}: {size_text} = {format_count(trials, 'trial')}, graders {names}"
        )
    )
    budget_text = format_count(budget.max_calls, "call") if budget.is_explicit else "what the trials can need"
    print_stderr(f"budget   {budget_text}, graders included")
    print_stderr(
        f"where    {location}; {options.concurrency} trials at once per target, {options.grader_concurrency} graders"
    )
    print_stderr(f"results  {options.folder}")
    if programs := unconfined_programs(evaluation):
        print_stderr(
            escape_for_terminal(f"rights   {', '.join(programs)} run with your rights; run_as or sandbox limits them")
        )
