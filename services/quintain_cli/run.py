"""``quintain run``: a dataset × targets × graders, under one budget; the same command again resumes."""

from __future__ import annotations

import secrets
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from quintain.config import Config
from quintain.errors import ConfigError
from quintain.settings import MEMORY_URL, Settings, environment, read_settings
from quintain_cli.config import configuration, configuration_path
from quintain_cli.run_session import RunBudget, run_client
from quintain_cli.screen import err, out, print_json, run_command, tell
from quintain_cli.standing import standing
from quintain_cli.up import FleetPlan
from quintain_runner.closing import closing_table, last_line
from quintain_runner.dataset import check_dataset
from quintain_runner.doors import Doors
from quintain_runner.evaluation import Evaluation, load_evaluation
from quintain_runner.plan import choose_targets
from quintain_runner.progress import Silent, progress_on
from quintain_runner.run import DEFAULT_CONCURRENCY, DEFAULT_GRADERS_AT_ONCE, RunSetup, run_evaluation
from quintain_runner.summary import RunSummary


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
    concurrency: Annotated[
        int, typer.Option(min=1, help="How many trials are under way at once.")
    ] = DEFAULT_CONCURRENCY,
    graders: Annotated[
        int, typer.Option(min=1, help="How many grader processes run at once.")
    ] = DEFAULT_GRADERS_AT_ONCE,
    as_json: Annotated[bool, typer.Option("--json", help="Print only the totals, as JSON.")] = False,
) -> None:
    """Run an evaluation. The same command again takes it up where it stopped.

    Without QUINTAIN_BROKER_URL everything runs in this process; with it, on the fleet behind that broker.
    """
    options = RunOptions(
        path=path,
        targets=tuple(target or ()),
        max_calls=max_calls,
        output=output,
        config=config,
        concurrency=concurrency,
        graders=graders,
        as_json=as_json,
    )
    raise typer.Exit(conduct(options, shlex.join(["quintain", *sys.argv[1:]])))


def conduct(options: RunOptions, command: str) -> int:
    """Run an evaluation and show how it ended; returns the exit code. ``command`` is what resumes it."""
    try:
        summary = run_command(_run(options), as_json=options.as_json)
    except typer.Exit as ended:
        if ended.exit_code == INTERRUPTED:
            tell(f"next   the rows written are kept; the same command resumes: {command}")
        raise
    if options.as_json:
        print_json(summary.to_wire())
    else:
        out().print(closing_table(summary))
        out().print(last_line(summary, command), markup=False, soft_wrap=True)
    return int(summary.exit_code)


INTERRUPTED = 130


async def _run(options: RunOptions) -> RunSummary:
    settings = read_settings(environment())
    if not options.path.is_file():
        raise ConfigError(f"{options.path}: there is no such file; `quintain demo` writes an example to start from")
    evaluation = load_evaluation(options.path)
    config = _config(settings, options, evaluation)
    targets = _targets(settings, options, evaluation, config)
    facts = check_dataset(evaluation.dataset)
    budget = RunBudget(
        default_target=targets[0],
        max_calls=_max_calls(options, evaluation, facts.cases * len(targets)),
        label=f"run {evaluation.name}",
        kept_in=options.folder / "session-token",
    )
    plan = None if config is None or _on_fleet(settings, options) else _plan(settings, options, config)
    async with standing(settings, plan) as ground, run_client(ground, budget) as client:
        _announce(options, evaluation, targets, facts.cases, budget)
        return await run_evaluation(
            RunSetup(
                evaluation=evaluation,
                targets=targets,
                output=options.folder,
                client=client,
                count_calls=ground.count_calls,
                doors=Doors(gateway_url=ground.gateway_url),
                judge_targets={} if config is None else {n: t.judge_target for n, t in config.targets.items()},
                hidden=frozenset(() if config is None else config.references),
                env=environment(),
                progress=Silent() if options.as_json else progress_on(err(), environment()),
                concurrency=options.concurrency,
                graders_at_once=options.graders,
            )
        )


def _on_fleet(settings: Settings, options: RunOptions) -> bool:
    if options.embedded:
        return False
    return settings.broker_url is not None and not settings.broker_url.startswith(MEMORY_URL)


def _config(settings: Settings, options: RunOptions, evaluation: Evaluation) -> Config | None:
    """The configuration; on a fleet the workers have it, and here it may be missing, but not be wrong: what it names
    is what graders must not see."""
    if _on_fleet(settings, options) and configuration_path(settings, options.config, start=evaluation.folder) is None:
        return None
    return configuration(settings, options.config, start=evaluation.folder)


def _targets(settings: Settings, options: RunOptions, evaluation: Evaluation, config: Config | None) -> tuple[str, ...]:
    """The systems under test. On a fleet its own list decides, before the first call, what is known."""
    configured = [] if config is None else list(config.targets)
    if _on_fleet(settings, options):
        configured += [*(evaluation.spec.targets or ()), *options.targets]
    return choose_targets(evaluation, list(dict.fromkeys(configured)), options.targets)


def _max_calls(options: RunOptions, evaluation: Evaluation, trials: int) -> int:
    """The budget named; where none is, what the plan can need at most: the answers and every grader's limit."""
    if options.max_calls is not None:
        return options.max_calls
    spec = evaluation.spec
    if spec.max_calls is not None:
        return spec.max_calls
    graders = sum(grader.target.max_calls for grader in spec.graders if grader.command is not None)
    return trials * spec.repeats * (1 + graders)


def _plan(settings: Settings, options: RunOptions, config: Config) -> FleetPlan:
    ledger = f"sqlite://{(options.folder / 'ledger.sqlite3').absolute()}"
    return FleetPlan(
        config=config,
        env=environment(),
        broker_url=MEMORY_URL,
        ledger_url=settings.ledger_url or ledger,
        admin_token=settings.admin_token or secrets.token_urlsafe(32),
    )


def _announce(
    options: RunOptions, evaluation: Evaluation, targets: tuple[str, ...], cases: int, budget: RunBudget
) -> None:
    if options.as_json:
        return
    spec = evaluation.spec
    names = ", ".join(grader.name for grader in spec.graders)
    sizes = " × ".join((many(cases, "case"), many(len(targets), "target"), many(spec.repeats, "repeat")))
    tell(f"run      {evaluation.name}: {sizes}, graders {names}")
    tell(f"budget   {budget.max_calls} calls, graders included")
    tell(f"results  {options.folder}")


def many(number: int, thing: str) -> str:
    """So many of a thing, in words."""
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"
