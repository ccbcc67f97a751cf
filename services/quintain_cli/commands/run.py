"""``quintain run``, ``rescore`` and ``demo``: runs an evaluation, grades its answers again, or runs the example."""

from __future__ import annotations

import asyncio
import shlex
import shutil
import sys
from enum import StrEnum
from importlib import resources
from pathlib import Path
from typing import Annotated

import typer

from quintain.errors import ConfigError
from quintain.settings import environment
from quintain_cli.console import (
    AsJson,
    PriorityOption,
    RunCostOption,
    WeightOption,
    exit_with_error,
    parse_duration_seconds,
    print_stderr,
    run_command,
)
from quintain_cli.run_output import (
    ConcurrencyOption,
    ConfigOption,
    CsvOption,
    GraderOption,
    GradersOption,
    JunitOption,
    MarkdownOption,
    ModelOption,
    NotifyOption,
    OutputFiles,
    PromptOption,
    SetOption,
    run_and_report,
)
from quintain_cli.several_runs import run_evaluations
from quintain_runner.engine.run_settings import (
    DEFAULT_CONCURRENCY,
    DEFAULT_GRADER_CONCURRENCY,
    DEFAULT_MAX_ERRORS,
    ErrorPolicy,
    RunOptions,
)
from quintain_runner.plan.changes import RerunPolicy
from quintain_runner.plan.trial_selection import SelectionOptions
from quintain_runner.report.run_file import read_run
from quintain_runner.results.cache_file import CacheSetting


class InDoubtPolicy(StrEnum):
    """What to do with rows of calls that have no answer and may have been charged."""

    KEEP = "keep"
    RETRY = "retry"


InDoubtOption = Annotated[
    InDoubtPolicy,
    typer.Option(help="Rows of calls charged without an answer: keep them, or retry and be charged again."),
]
CaseOption = Annotated[
    list[str] | None,
    typer.Option("--case", help="Execute only the case of this id; repeatable. Other rows stay as they are."),
]
WhereOption = Annotated[list[str] | None, typer.Option(metavar="FIELD=VALUE", help="Only such cases; repeatable.")]
FailingOption = Annotated[bool, typer.Option("--failing", help="Only cases that failed, are errors or in doubt.")]
OfOption = Annotated[Path | None, typer.Option(metavar="RUN", help="The run of --failing; by default this folder's.")]
SampleOption = Annotated[int | None, typer.Option(min=1, help="Only so many of these cases, drawn by --seed.")]
SeedOption = Annotated[int | None, typer.Option(help="The seed of --sample, by default 0.")]
LimitOption = Annotated[
    int | None, typer.Option(min=1, help="Execute only this many first cases. Other rows stay as they are.")
]
NoContentOption = Annotated[
    bool,
    typer.Option("--no-content", help="Write rows without questions, answers and reasons; they cannot be regraded."),
]
TargetOption = Annotated[
    list[str] | None,
    typer.Option(help="Execute only trials of this target, one of the file's; repeatable. Other rows stay."),
]
MaxErrorsOption = Annotated[
    int,
    typer.Option(
        min=0,
        help="Begin no more trials of a target after this many credential, connection or server errors in a row, "
        "or at 20 % errors in 50 or more trials; 0: no limit.",
    ),
]
FailFastOption = Annotated[
    bool, typer.Option("--fail-fast", help="Begin no more trials of any target after the first such error.")
]
GiveUpOption = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="Wait so long for a provider that does not answer, such as 2h; then begin no more trials of its targets. "
        "By default 30m; for a first answer 1m with a wrong name or certificate, 10m without a connection or with 503.",
    ),
]
PlanOption = Annotated[
    bool, typer.Option("--plan", help="Say what would be asked, and which rows fall out; ask and change nothing.")
]
FreshOption = Annotated[
    bool, typer.Option("--fresh", help="Rename the results of before to NAME.previous-N, and begin again.")
]


BaselineOption = Annotated[
    Path | None, typer.Option(metavar="RUN", help="Exit 3 if a target is significantly worse than in this run.")
]


def _checked_cache(text: str | None) -> str | None:
    try:
        CacheSetting.of(text, None, environment())
    except ConfigError as error:
        raise typer.BadParameter(error.message) from None
    return text


CacheOption = Annotated[
    str | None,
    typer.Option(
        metavar="AGE|off|FILE",
        callback=_checked_cache,
        help="Take answers that are at most so old, such as 30d, from this user's cache, or any from that of a file.",
    ),
]
ReplayOption = Annotated[
    Path | None,
    typer.Option(help="Ask nobody: take every answer from a recording, which is the folder of a run or a file of it."),
]
NoWaitOption = Annotated[
    bool, typer.Option("--no-wait", help="On a fleet, refuse to run if no worker has registered a target.")
]
RetryErrorsOption = Annotated[
    bool,
    typer.Option("--retry-errors/--keep-errors", help="On resume, call again for rows that failed, or keep them."),
]


EvaluationFiles = Annotated[list[Path], typer.Argument(metavar="EVAL.YAML...", help="The evaluation files.")]
CallsOption = Annotated[
    int | None, typer.Option(min=0, help="The call budget of the run, graders included; of several, of this command.")
]
OutputOption = Annotated[
    Path | None,
    typer.Option(
        help="The results folder, by default runs/<name of the file>; of several files, the folder of theirs."
    ),
]


def run(
    paths: EvaluationFiles,
    target: TargetOption = None,
    prompt: PromptOption = None,
    grader: GraderOption = None,
    model: ModelOption = None,
    overrides: SetOption = None,
    case: CaseOption = None,
    where: WhereOption = None,
    failing: FailingOption = False,
    of: OfOption = None,
    sample: SampleOption = None,
    seed: SeedOption = None,
    limit: LimitOption = None,
    max_calls: CallsOption = None,
    max_cost_usd: RunCostOption = None,
    output: OutputOption = None,
    config: ConfigOption = None,
    retry_errors: RetryErrorsOption = True,
    in_doubt: InDoubtOption = InDoubtPolicy.KEEP,
    max_errors: MaxErrorsOption = DEFAULT_MAX_ERRORS,
    fail_fast: FailFastOption = False,
    give_up_after: GiveUpOption = None,
    weight: WeightOption = None,
    priority: PriorityOption = None,
    concurrency: ConcurrencyOption = DEFAULT_CONCURRENCY,
    graders: GradersOption = DEFAULT_GRADER_CONCURRENCY,
    cache: CacheOption = None,
    replay: ReplayOption = None,
    fresh: FreshOption = False,
    plan: PlanOption = False,
    baseline: BaselineOption = None,
    no_content: NoContentOption = False,
    no_wait: NoWaitOption = False,
    junit: JunitOption = None,
    markdown: MarkdownOption = None,
    csv: CsvOption = None,
    notify: NotifyOption = None,
    as_json: AsJson = False,
) -> None:
    """Run an evaluation. The same command resumes a run that was stopped.

    Without QUINTAIN_BROKER_URL and QUINTAIN_GATEWAY_URL all services run in this process; with one of them, the run
    uses the services there. With --plan it tells what it would ask, and makes no call.
    """
    selection = SelectionOptions(
        ids=tuple(case or ()), where=tuple(where or ()), failing=failing, of=of, sample=sample, seed=seed,
        limit=limit, prompts=tuple(prompt or ()), graders=tuple(grader or ()),
    )  # fmt: skip
    options = RunOptions(
        path=paths[0], output=output, config=config, targets=tuple(target or ()), selection=selection,
        overrides=tuple(overrides or ()), model=model, max_calls=max_calls, max_cost_usd=max_cost_usd,
        weight=weight, priority=priority, concurrency=concurrency, grader_concurrency=graders, cache=cache,
        rerun_policy=RerunPolicy(rerun_errors=retry_errors, rerun_in_doubt=in_doubt is InDoubtPolicy.RETRY),
        replay=replay, error_policy=ErrorPolicy(max_errors=max_errors, fail_fast=fail_fast),
        give_up_seconds=None if give_up_after is None else parse_duration_seconds(give_up_after),
        is_fresh=fresh, baseline=baseline, keeps_content=not no_content, waits=not no_wait, command=_command_line(),
    )  # fmt: skip
    files = OutputFiles(junit=junit, markdown=markdown, csv=csv, notify=notify)
    raise typer.Exit(run_evaluations(paths, options, files, is_dry=plan, as_json=as_json))


def _command_line() -> str:
    """This command, without the URL of ``--notify``, which may be a secret: reports show it."""
    words = sys.argv[1:]
    kept = [
        word
        for before, word in zip(["", *words], words, strict=False)
        if "--notify" not in (before, word) and not word.startswith("--notify=")
    ]
    return shlex.join(["quintain", *kept])


def rescore(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="A results folder, such as runs/eval.")],
    path: Annotated[
        Path | None,
        typer.Argument(metavar="[EVAL.YAML]", help="Another evaluation file; by default the one of the run."),
    ] = None,
    max_calls: Annotated[int | None, typer.Option(min=0, help="The call budget of the whole run.")] = None,
    max_cost_usd: RunCostOption = None,
    config: ConfigOption = None,
    concurrency: ConcurrencyOption = DEFAULT_CONCURRENCY,
    graders: GradersOption = DEFAULT_GRADER_CONCURRENCY,
    junit: JunitOption = None,
    markdown: MarkdownOption = None,
    csv: CsvOption = None,
    as_json: AsJson = False,
) -> None:
    """Grade the kept answers of a run again.

    Judges are called anew, targets are not. The budget is that of the run. Rows without an answer wait for quintain
    run, which also asks again where a target changed since. Exit codes as of quintain run; 2 if rows do not hold their
    answers.
    """
    evaluation = path or run_command(_evaluation_of(folder), as_json=as_json)
    resume = ["quintain", "run", str(evaluation), "--output", str(folder)]
    resume += [] if config is None else ["--config", str(config)]
    options = RunOptions(
        path=evaluation,
        output=folder,
        max_calls=max_calls,
        max_cost_usd=max_cost_usd,
        config=config,
        concurrency=concurrency,
        grader_concurrency=graders,
        rerun_policy=RerunPolicy(answers_only=True),
        regrades=True,
        command=_command_line(),
        resume_command=shlex.join(resume),
    )
    files = OutputFiles(junit=junit, markdown=markdown, csv=csv)
    raise typer.Exit(run_and_report(options, files, as_json=as_json))


async def _evaluation_of(folder: Path) -> Path:
    return await asyncio.to_thread(_find_evaluation, folder)


def _find_evaluation(folder: Path) -> Path:
    """The evaluation file of a results folder. Raises `ConfigError` if it is not where the run found it."""
    evaluation = Path(read_run(folder).configuration.evaluation)
    if not evaluation.is_file():
        raise ConfigError(
            f"{folder}: its evaluation file {evaluation} is not there, seen from this folder; name the file: "
            f"quintain rescore {shlex.quote(str(folder))} EVAL.YAML"
        )
    return evaluation


#: The example that ships with the package; ``examples/capitals`` of the repository is the same folder.
EXAMPLE_NAME = "capitals"


def demo(
    folder: Annotated[Path, typer.Option(help="The folder for the example; existing files are kept.")] = Path(
        "quintain-demo"
    ),
    as_json: AsJson = False,
) -> None:
    """Run an example evaluation, without an API key or a broker.

    A dozen cases are answered by three targets and graded by two graders, all in this process.
    """
    try:
        copy_example(folder)
    except OSError as error:
        refused = ConfigError(f"{folder}: cannot be written ({error.strerror}): give another --folder")
        exit_with_error(refused, as_json=as_json)
    # The demo deletes the results of an earlier demo; only the demo writes to this folder.
    results = folder / "demo-results"
    shutil.rmtree(results, ignore_errors=True)
    if not as_json:
        print_stderr(f"demo     its files are in {folder}: change them, and run it again")
    options = RunOptions(
        path=folder / "eval.yaml",
        config=folder / "quintain.yaml",
        output=results,
        command=f"quintain run {folder / 'eval.yaml'} --output {results}",
    )
    raise typer.Exit(run_and_report(options, OutputFiles(), as_json=as_json))


def copy_example(folder: Path) -> None:
    """Copy the example's files but its README into a folder; existing files are not overwritten."""
    folder.mkdir(parents=True, exist_ok=True)
    with resources.as_file(resources.files("quintain_cli") / "examples" / EXAMPLE_NAME) as example:
        for source in sorted(example.iterdir()):
            if source.is_file() and source.suffix != ".md" and not (folder / source.name).exists():
                shutil.copyfile(source, folder / source.name)
