"""``quintain rescore``: grades the kept answers of a run again, without a call to its targets."""

from __future__ import annotations

import asyncio
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from quintain.errors import ConfigError
from quintain_cli.console import AsJson, run_command
from quintain_cli.run_output import (
    ConcurrencyOption,
    ConfigOption,
    CsvOption,
    GradersOption,
    JunitOption,
    MarkdownOption,
    OutputFiles,
    run_and_report,
)
from quintain_runner.engine.run_settings import DEFAULT_CONCURRENCY, DEFAULT_GRADER_CONCURRENCY, RunOptions
from quintain_runner.plan.changes import RerunPolicy
from quintain_runner.report.run_file import read_run


def rescore(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="A results folder, such as runs/eval.")],
    path: Annotated[
        Path | None,
        typer.Argument(metavar="[EVAL.YAML]", help="Another evaluation file; by default the one of the run."),
    ] = None,
    max_calls: Annotated[int | None, typer.Option(min=0, help="The call budget of the graders.")] = None,
    config: ConfigOption = None,
    concurrency: ConcurrencyOption = DEFAULT_CONCURRENCY,
    graders: GradersOption = DEFAULT_GRADER_CONCURRENCY,
    junit: JunitOption = None,
    markdown: MarkdownOption = None,
    csv: CsvOption = None,
    as_json: AsJson = False,
) -> None:
    """Grade the kept answers of a run again.

    Judges are called anew, targets are not. The budget is that of a new session. Rows without an answer wait for
    quintain run; a row whose target changed since stays marked as stale. Exit codes as of quintain run; 2 if rows do
    not hold their answers.
    """
    evaluation = path or run_command(_evaluation_of(folder), as_json=as_json)
    resume = ["quintain", "run", str(evaluation), "--output", str(folder)]
    resume += [] if config is None else ["--config", str(config)]
    options = RunOptions(
        path=evaluation,
        output=folder,
        max_calls=max_calls,
        config=config,
        concurrency=concurrency,
        grader_concurrency=graders,
        rerun_policy=RerunPolicy(answers_only=True),
        regrades=True,
        command=shlex.join(["quintain", *sys.argv[1:]]),
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
