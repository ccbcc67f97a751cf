"""``quintain run``: a dataset × targets × graders, under one budget; the same command again resumes."""

from __future__ import annotations

import asyncio
import shlex
import sys
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from quintain import logs
from quintain.config import Config, card_of
from quintain.errors import ConfigError
from quintain.operations.collecting import collect_seldom
from quintain.settings import Settings, environment, read_settings
from quintain.telemetry import conventions
from quintain.telemetry.spans import span
from quintain_cli.run_accounts import FILE_NAME, elsewhere, spending_of, spending_so_far, write_calls
from quintain_cli.run_ground import config_beside, embedded_plan, is_on_fleet, targets_under_test
from quintain_cli.run_output import Csv, Junit, Markdown, OutputFiles, show, told
from quintain_cli.run_session import RunBudget, RunSession, run_session
from quintain_cli.screen import err, plain, print_json, run_command, tell
from quintain_cli.standing import Standing, standing
from quintain_cli.up import FleetPlan
from quintain_runner import (
    DEFAULT_CONCURRENCY,
    DEFAULT_GRADERS_AT_ONCE,
    Again,
    DatasetFacts,
    Doors,
    Evaluation,
    Origin,
    RunReport,
    RunSetup,
    Silent,
    calls_in,
    holding,
    load_evaluation,
    most_per_trial,
    open_dataset,
    prices_of,
    progress_on,
    read_report,
    run_evaluation,
)


class InDoubt(StrEnum):
    """What is done with the rows of calls that were charged, and of which nobody knows what came."""

    KEEP = "keep"
    RETRY = "retry"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What the command line says of a run."""

    path: Path
    targets: tuple[str, ...] = ()
    max_calls: int | None = None
    output: Path | None = None
    config: Path | None = None
    concurrency: int = DEFAULT_CONCURRENCY
    graders: int = DEFAULT_GRADERS_AT_ONCE
    again: Again = field(default_factory=Again)
    files: OutputFiles = field(default_factory=OutputFiles)
    as_json: bool = False
    #: In this process, whatever fleet the environment names.
    embedded: bool = False

    @property
    def folder(self) -> Path:
        """Where the results go: ``runs/<name of the file>`` of the working folder, where nobody says."""
        return self.output or Path("runs") / self.path.stem


def run(
    path: Annotated[Path, typer.Argument(metavar="EVAL.YAML", help="The evaluation file.")],
    target: Annotated[
        list[str] | None, typer.Option(help="A target under test; again for more; narrows the file's.")
    ] = None,
    max_calls: Annotated[int | None, typer.Option(min=0, help="The budget of the whole run, graders included.")] = None,
    output: Annotated[Path | None, typer.Option(help="The results' folder; runs/<name of the file> if absent.")] = None,
    config: Annotated[Path | None, typer.Option(help="The configuration, else quintain.yaml found upwards.")] = None,
    retry_errors: Annotated[
        bool,
        typer.Option(
            "--retry-errors/--keep-errors", help="What became of rows that erred before: asked again, or kept."
        ),
    ] = True,
    in_doubt: Annotated[
        InDoubt, typer.Option(help="Charged calls with an unknown outcome: kept, or asked once more and charged again.")
    ] = InDoubt.KEEP,
    concurrency: Annotated[
        int, typer.Option(min=1, help="How many trials are under way at once, per target.")
    ] = DEFAULT_CONCURRENCY,
    graders: Annotated[
        int, typer.Option(min=1, help="How many grader processes run at once.")
    ] = DEFAULT_GRADERS_AT_ONCE,
    junit: Junit = None,
    markdown: Markdown = None,
    csv: Csv = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print only the totals, as JSON.")] = False,
) -> None:
    """Run an evaluation. The same command again takes it up where it stopped.

    Without QUINTAIN_BROKER_URL (or QUINTAIN_GATEWAY_URL) everything runs in this process; with it, on the fleet there.
    """
    options = RunOptions(
        path=path,
        targets=tuple(target or ()),
        max_calls=max_calls,
        output=output,
        config=config,
        concurrency=concurrency,
        graders=graders,
        again=Again(errors=retry_errors, in_doubt=in_doubt is InDoubt.RETRY),
        files=OutputFiles(junit=junit, markdown=markdown, csv=csv),
        as_json=as_json,
    )
    raise typer.Exit(conduct(options, shlex.join(["quintain", *sys.argv[1:]])))


def conduct(options: RunOptions, command: str) -> int:
    """Run an evaluation and show how it ended; returns the exit code. ``command`` is what resumes it."""
    collect_seldom()
    try:
        report = run_command(_run(options, command), as_json=options.as_json, service="run")
    except typer.Exit as ended:
        if ended.exit_code == INTERRUPTED:
            tell(f"next   the rows written are kept; the same command resumes: {command}")
        raise
    if options.as_json:
        print_json(told(report))
    else:
        show(report, command)
    return int(report.summary.exit_code)


INTERRUPTED = 130


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prepared:
    """A run before anything is connected: everything that a person wrote was read, and can be used."""

    options: RunOptions
    evaluation: Evaluation
    config: Config | None
    targets: tuple[str, ...]
    facts: DatasetFacts
    trials: int
    budget: RunBudget
    plan: FleetPlan | None


def _prepare(settings: Settings, options: RunOptions) -> _Prepared:
    options.files.check()
    if not options.path.is_file():
        raise ConfigError(f"{options.path}: there is no such file; `quintain demo` writes an example to start from")
    evaluation = load_evaluation(options.path)
    on_fleet = is_on_fleet(settings) and not options.embedded
    config = config_beside(settings, options.config, evaluation.folder, on_fleet=on_fleet)
    targets = targets_under_test(evaluation, config, options.targets, on_fleet=on_fleet)
    facts = open_dataset(evaluation, options.folder, environment())
    trials = facts.cases * len(targets) * evaluation.spec.repeats
    budget = RunBudget(
        default_target=targets[0],
        max_calls=_max_calls(options, evaluation, trials),
        is_named=options.max_calls is not None or evaluation.spec.max_calls is not None,
        label=f"run {evaluation.name}",
        kept_in=options.folder / "session-token",
        count_spent=lambda: calls_in(options.folder),
    )
    return _Prepared(
        options=options,
        evaluation=evaluation,
        config=config,
        targets=targets,
        facts=facts,
        trials=trials,
        budget=budget,
        plan=None if config is None or on_fleet else _plan(settings, options, config, trials),
    )


async def _run(options: RunOptions, command: str) -> RunReport:
    settings = read_settings(environment())
    prepared = _prepare(settings, options)
    with holding(options.folder, options.folder / ".lock"):
        async with standing(settings, prepared.plan) as ground, run_session(ground, prepared.budget) as session:
            _announce(prepared, ground.place)
            session_id = (await session.client.get_info()).session_id
            with span(conventions.run(prepared.evaluation.name, session_id)), logs.about(run_id=session_id):
                summary = await run_evaluation(_setup(prepared, ground, session, session_id))
            if prepared.plan is not None:
                await write_calls(options.folder, prepared.plan.ledger_url, session_id)
        report = await asyncio.to_thread(read_report, options.folder, summary)
        await asyncio.to_thread(options.files.write, report, command, environment())
        return report


def _setup(prepared: _Prepared, ground: Standing, session: RunSession, session_id: str) -> RunSetup:
    options, config = prepared.options, prepared.config
    return RunSetup(
        evaluation=prepared.evaluation,
        targets=prepared.targets,
        output=options.folder,
        client=session.client,
        spent_before=session.spent_before,
        facts=prepared.facts,
        again=options.again,
        count_calls=ground.count_calls,
        doors=Doors(gateway_url=ground.gateway_url),
        judge_targets={} if config is None else {n: t.judge_target for n, t in config.targets.items()},
        hidden=frozenset(() if config is None else config.references),
        env=environment(),
        progress=Silent() if options.as_json else progress_on(err(), environment()),
        concurrency=options.concurrency,
        graders_at_once=options.graders,
        origin=_origin(config, session_id, embedded=prepared.plan is not None),
        prices={} if config is None else prices_of(config.targets),
        count_spending=partial(spending_of, session.client),
        peek_spending=partial(spending_so_far, session.client),
        raise_budget=None if prepared.budget.is_named else session.raise_budget,
    )


def _origin(config: Config | None, session_id: str, *, embedded: bool) -> Origin:
    return Origin(
        session_id=session_id,
        calls=FILE_NAME if embedded else elsewhere(session_id),
        cards=() if config is None else tuple(card_of(name, target) for name, target in config.targets.items()),
    )


def _max_calls(options: RunOptions, evaluation: Evaluation, trials: int) -> int:
    """The budget named; where none is, what the plan can need at most: the answers and every grader's limit."""
    if options.max_calls is not None:
        return options.max_calls
    spec = evaluation.spec
    if spec.max_calls is not None:
        return spec.max_calls
    return trials * most_per_trial(evaluation)


def _plan(settings: Settings, options: RunOptions, config: Config, trials: int) -> FleetPlan:
    ledger = f"sqlite://{(options.folder / 'ledger.sqlite3').absolute()}"
    return embedded_plan(settings, config, settings.ledger_url or ledger, trials=trials, place=options.folder)


def _announce(prepared: _Prepared, place: str) -> None:
    options, evaluation, budget = prepared.options, prepared.evaluation, prepared.budget
    if options.as_json:
        return
    cases, targets, repeats = prepared.facts.cases, len(prepared.targets), evaluation.spec.repeats
    names = ", ".join(grader.name for grader in evaluation.spec.graders)
    sizes = " × ".join((many(cases, "case"), many(targets, "target"), many(repeats, "repeat")))
    trials, most = prepared.trials, most_per_trial(evaluation)
    tell(plain(f"run      {evaluation.name}: {sizes} = {many(trials, 'trial')}, graders {names}"))
    limit = many(budget.max_calls, "call") if budget.is_named else "none named, so all of these"
    tell(f"calls    {trials:,} to {trials * most:,}" if most > 1 else f"calls    {trials:,}")
    tell(f"budget   {limit}, graders included")
    tell(f"where    {place}; {options.concurrency} trials at once per target, {options.graders} graders")
    tell(f"results  {options.folder}")


def many(number: int, thing: str) -> str:
    """So many of a thing, in words."""
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"
