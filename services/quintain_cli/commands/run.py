"""``quintain run``: runs a dataset on targets and graders under one budget. The same command again resumes the run."""

from __future__ import annotations

import shlex
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from quintain_cli.console import AsJson, parse_duration_seconds
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
from quintain_runner.engine.scheduler import DEFAULT_MAX_ERRORS, ErrorPolicy
from quintain_runner.plan.changes import RerunPolicy


class InDoubtPolicy(StrEnum):
    """What to do with rows of calls that were charged, or perhaps charged, and have no answer."""

    KEEP = "keep"
    RETRY = "retry"


CaseOption = Annotated[
    list[str] | None,
    typer.Option("--case", help="Execute only the case of this id; repeatable. Other rows stay as they are."),
]
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
    str,
    typer.Option(
        metavar="TIME",
        help="Wait so long for a provider that does not answer, such as 2h; then begin no more trials of its targets.",
    ),
]
KeepStaleOption = Annotated[
    bool, typer.Option("--keep-stale", help="Keep rows although what made them changed, marked as stale.")
]
FreshOption = Annotated[
    bool, typer.Option("--fresh", help="Rename the results of before to NAME.previous-N, and begin again.")
]


def run(
    path: Annotated[Path, typer.Argument(metavar="EVAL.YAML", help="The evaluation file.")],
    target: TargetOption = None,
    case: CaseOption = None,
    limit: LimitOption = None,
    max_calls: Annotated[int | None, typer.Option(min=0, help="The call budget of the run, graders included.")] = None,
    output: Annotated[Path | None, typer.Option(help="The results folder; by default runs/<name of the file>.")] = None,
    config: ConfigOption = None,
    retry_errors: Annotated[
        bool,
        typer.Option("--retry-errors/--keep-errors", help="On resume, call again for rows that failed, or keep them."),
    ] = True,
    in_doubt: Annotated[
        InDoubtPolicy,
        typer.Option(help="Rows of calls charged without an answer: keep them, or retry and be charged again."),
    ] = InDoubtPolicy.KEEP,
    max_errors: MaxErrorsOption = DEFAULT_MAX_ERRORS,
    fail_fast: FailFastOption = False,
    give_up_after: GiveUpOption = "30m",
    concurrency: ConcurrencyOption = DEFAULT_CONCURRENCY,
    graders: GradersOption = DEFAULT_GRADER_CONCURRENCY,
    keep_stale: KeepStaleOption = False,
    fresh: FreshOption = False,
    no_content: NoContentOption = False,
    no_wait: Annotated[
        bool, typer.Option("--no-wait", help="On a fleet, refuse to run if no worker has registered a target.")
    ] = False,
    junit: JunitOption = None,
    markdown: MarkdownOption = None,
    csv: CsvOption = None,
    as_json: AsJson = False,
) -> None:
    """Run an evaluation. The same command resumes a run that was stopped.

    Without QUINTAIN_BROKER_URL and QUINTAIN_GATEWAY_URL all services run in this process; with one of them, the run
    uses the services there. `quintain check` is the dry run: the same errors and calls, and no call is made.
    """
    options = RunOptions(
        path=path,
        targets=tuple(target or ()),
        case_ids=tuple(case or ()),
        limit=limit,
        keeps_content=not no_content,
        max_calls=max_calls,
        output=output,
        config=config,
        concurrency=concurrency,
        grader_concurrency=graders,
        rerun_policy=RerunPolicy(
            rerun_errors=retry_errors, rerun_in_doubt=in_doubt is InDoubtPolicy.RETRY, keep_stale=keep_stale
        ),
        error_policy=ErrorPolicy(max_errors=max_errors, fail_fast=fail_fast),
        give_up_seconds=parse_duration_seconds(give_up_after),
        command=shlex.join(["quintain", *sys.argv[1:]]),
        is_fresh=fresh,
        waits=not no_wait,
    )
    files = OutputFiles(junit=junit, markdown=markdown, csv=csv)
    raise typer.Exit(run_and_report(options, files, as_json=as_json))
