"""Executes a run: reads its files, connects a backend, opens the session, runs the trials and reports."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import typer

from quintain import logs
from quintain.config import Config, card_of
from quintain.errors import ConfigError
from quintain.runtime.gc import reduce_gc_frequency
from quintain.settings import Settings, environment, read_settings
from quintain.telemetry import semconv
from quintain.telemetry.spans import span
from quintain_cli.console import (
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
from quintain_cli.run.output import OutputFiles, format_size, print_report, report_to_json
from quintain_cli.run.session import RunBudget, RunSession, open_run_session
from quintain_cli.run.usage import CALLS_FILE_NAME, fleet_calls_note, read_current_usage, read_final_usage, write_calls
from quintain_runner import (
    DEFAULT_CONCURRENCY,
    DEFAULT_GRADER_CONCURRENCY,
    DatasetStats,
    ErrorPolicy,
    Evaluation,
    GraderEnvironment,
    NoProgressDisplay,
    Origin,
    RerunPlan,
    RerunPolicy,
    RunReport,
    RunSetup,
    charged_calls,
    estimate_calls,
    exclusive_lock,
    known_prices,
    progress_display,
    read_report,
    run_evaluation,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """The options of a run from the command line."""

    path: Path
    targets: tuple[str, ...] = ()
    max_calls: int | None = None
    output: Path | None = None
    config: Path | None = None
    concurrency: int = DEFAULT_CONCURRENCY
    grader_concurrency: int = DEFAULT_GRADER_CONCURRENCY
    rerun_policy: RerunPolicy = field(default_factory=RerunPolicy)
    error_policy: ErrorPolicy = field(default_factory=ErrorPolicy)
    files: OutputFiles = field(default_factory=OutputFiles)
    as_json: bool = False
    #: Rename the results of earlier commands, and start without any.
    is_fresh: bool = False
    #: Run the services in this process even if the environment names a fleet.
    is_embedded: bool = False

    @property
    def folder(self) -> Path:
        """The results folder: ``--output``, or ``runs/<name of the file>`` in the working folder."""
        return self.output or Path("runs") / self.path.stem


def run_and_report(options: RunOptions, command: str) -> int:
    """Run an evaluation, print its results and return the exit code. ``command`` is the one that resumes the run."""
    reduce_gc_frequency()
    try:
        report = run_command(_run_prepared(options, command), as_json=options.as_json, service="run")
    except typer.Exit as exit_request:
        if exit_request.exit_code == INTERRUPTED_EXIT_CODE:
            print_stderr(f"next   the rows written are kept; the same command resumes: {command}")
        raise
    if options.as_json:
        print_json(report_to_json(report))
    else:
        print_report(report, command)
    return int(report.summary.exit_code)


INTERRUPTED_EXIT_CODE = 130


@dataclass(frozen=True, slots=True, kw_only=True)
class _PreparedRun:
    """A run whose files and options were read and checked, before anything is connected."""

    options: RunOptions
    evaluation: Evaluation
    config: Config | None
    targets: tuple[str, ...]
    dataset_stats: DatasetStats
    trial_count: int
    budget: RunBudget
    fleet_plan: FleetPlan | None


async def _prepare_run(settings: Settings, options: RunOptions) -> _PreparedRun:
    """Read and check everything. Raises `ConfigError` with every mistake, a line each."""
    options.files.check_writable()
    if not options.path.is_file():
        raise ConfigError(f"{options.path}: there is no such file; `quintain demo` writes an example to start from")
    on_fleet = is_on_fleet(settings) and not options.is_embedded
    inspection = InspectionOptions(
        path=options.path,
        targets=options.targets,
        config=options.config,
        on_fleet=on_fleet,
        results_folder=options.folder,
    )
    # The earlier results are renamed first, because the dataset's command stores its output in the folder.
    with _set_aside(options.folder) if options.is_fresh else contextlib.nullcontext():
        found = await inspect_evaluation(inspection, settings)
        if found.problems or found.evaluation is None or found.dataset_stats is None:
            raise ConfigError("\n".join(found.problems))
    evaluation, config, targets, dataset_stats = found.evaluation, found.config, found.targets, found.dataset_stats
    trial_count = evaluation.trials_of(dataset_stats.cases, targets=len(targets))
    budget = RunBudget(
        default_target=targets[0],
        max_calls=_max_calls(options, evaluation, trial_count),
        is_explicit=options.max_calls is not None or evaluation.spec.max_calls is not None,
        label=f"run {evaluation.name}",
        token_path=options.folder / "session-token",
        count_spent_calls=lambda: charged_calls(options.folder),
    )
    return _PreparedRun(
        options=options,
        evaluation=evaluation,
        config=config,
        targets=targets,
        dataset_stats=dataset_stats,
        trial_count=trial_count,
        budget=budget,
        fleet_plan=None if config is None or on_fleet else _embedded_fleet_plan(settings, options, config, trial_count),
    )


async def _run_prepared(options: RunOptions, command: str) -> RunReport:
    settings = read_settings(environment())
    prepared = await _prepare_run(settings, options)
    with exclusive_lock(options.folder, options.folder / ".lock"):
        async with (
            connect_backend(settings, prepared.fleet_plan) as backend,
            open_run_session(backend, prepared.budget) as session,
        ):
            _print_plan(prepared, backend.location)
            session_id = (await session.client.get_info()).session_id
            with span(semconv.run_span(prepared.evaluation.name, session_id)), logs.log_context(run_id=session_id):
                summary = await run_evaluation(_run_setup(prepared, backend, session, session_id, command))
        if prepared.fleet_plan is not None:
            await write_calls(options.folder, prepared.fleet_plan.ledger_url, session_id)
        report = await asyncio.to_thread(read_report, options.folder, summary)
        await asyncio.to_thread(options.files.write, report, command, environment())
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


def _run_setup(
    prepared: _PreparedRun, backend: Backend, session: RunSession, session_id: str, command: str
) -> RunSetup:
    options, config = prepared.options, prepared.config
    return RunSetup(
        evaluation=prepared.evaluation,
        targets=prepared.targets,
        output=options.folder,
        client=session.client,
        calls_of_earlier_sessions=session.calls_of_earlier_sessions,
        dataset_stats=prepared.dataset_stats,
        rerun_policy=options.rerun_policy,
        error_policy=options.error_policy,
        read_session_info=backend.read_session_info,
        close_session=backend.close_session,
        grader_environment=GraderEnvironment(gateway_url=backend.gateway_url),
        judge_targets={}
        if config is None
        else {name: target_config.judge_target for name, target_config in config.targets.items()},
        hidden_variables=frozenset(() if config is None else config.variable_names),
        env=environment(),
        progress=NoProgressDisplay() if options.as_json else progress_display(stderr_console(), environment()),
        concurrency=options.concurrency,
        grader_concurrency=options.grader_concurrency,
        origin=_run_origin(config, session_id, is_embedded=prepared.fleet_plan is not None),
        prices={} if config is None else known_prices(config.targets),
        read_final_spending=partial(read_final_usage, session.client),
        read_current_spending=partial(read_current_usage, session.client),
        raise_budget=None if prepared.budget.is_explicit else session.raise_budget,
        target_models={}
        if config is None or prepared.fleet_plan is None
        else {
            name: card.model
            for name, target in config.resolve(environment()).targets.items()
            if (card := card_of(name, target)).model is not None
        },
        command=command,
        on_plan=_ignore_plan if options.as_json else _print_rerun_plan,
    )


def _ignore_plan(_: RerunPlan) -> None:
    """What only JSON is wanted of."""


def _print_rerun_plan(plan: RerunPlan) -> None:
    for line in plan.lines():
        print_stderr(escape_for_terminal(f"plan     {line}"))


def _run_origin(config: Config | None, session_id: str, *, is_embedded: bool) -> Origin:
    return Origin(
        session_id=session_id,
        calls_location=CALLS_FILE_NAME if is_embedded else fleet_calls_note(session_id),
        cards=() if config is None else tuple(card_of(name, target) for name, target in config.targets.items()),
    )


def _max_calls(options: RunOptions, evaluation: Evaluation, trial_count: int) -> int:
    """Return the budget of the run: the one that was set, else the maximum that all answers and graders can need."""
    if options.max_calls is not None:
        return options.max_calls
    spec = evaluation.spec
    if spec.max_calls is not None:
        return spec.max_calls
    return estimate_calls(evaluation, trials=trial_count).most


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
    size_text = format_size(
        prepared.dataset_stats.cases, evaluation.prompt_names, prepared.targets, evaluation.spec.repeats
    )
    trials = prepared.trial_count
    most_calls = estimate_calls(evaluation, trials=trials).most
    print_stderr(
        escape_for_terminal(
            f"run      {evaluation.name}: {size_text} = {format_count(trials, 'trial')}, graders {names}"
        )
    )
    budget_text = format_count(budget.max_calls, "call") if budget.is_explicit else "not set, so all of these"
    print_stderr(f"calls    {trials:,} to {most_calls:,}" if most_calls > trials else f"calls    {trials:,}")
    print_stderr(f"budget   {budget_text}, graders included")
    print_stderr(
        f"where    {location}; {options.concurrency} trials at once per target, {options.grader_concurrency} graders"
    )
    print_stderr(f"results  {options.folder}")
