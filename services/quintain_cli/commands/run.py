"""``quintain run``: runs a dataset on targets and graders under one budget. The same command again resumes the run."""

from __future__ import annotations

import shlex
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from quintain_cli.run.execution import RunOptions, run_and_report
from quintain_cli.run.output import CsvOption, JunitOption, MarkdownOption, OutputFiles
from quintain_runner import (
    DEFAULT_CONCURRENCY,
    DEFAULT_GRADER_CONCURRENCY,
    RerunPolicy,
)


class InDoubtPolicy(StrEnum):
    """What is done with the rows of calls that were charged, and of which nobody knows what came."""

    KEEP = "keep"
    RETRY = "retry"


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
        InDoubtPolicy,
        typer.Option(help="Charged calls with an unknown outcome: kept, or asked once more and charged again."),
    ] = InDoubtPolicy.KEEP,
    concurrency: Annotated[
        int, typer.Option(min=1, help="How many trials are under way at once, per target.")
    ] = DEFAULT_CONCURRENCY,
    graders: Annotated[
        int, typer.Option(min=1, help="How many grader processes run at once.")
    ] = DEFAULT_GRADER_CONCURRENCY,
    junit: JunitOption = None,
    markdown: MarkdownOption = None,
    csv: CsvOption = None,
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
        grader_concurrency=graders,
        rerun_policy=RerunPolicy(rerun_errors=retry_errors, rerun_in_doubt=in_doubt is InDoubtPolicy.RETRY),
        files=OutputFiles(junit=junit, markdown=markdown, csv=csv),
        as_json=as_json,
    )
    raise typer.Exit(run_and_report(options, shlex.join(["quintain", *sys.argv[1:]])))
