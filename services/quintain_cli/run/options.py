"""The options of `quintain run` and `quintain rescore`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from quintain_cli.run.output import OutputFiles
from quintain_runner import DEFAULT_CONCURRENCY, DEFAULT_GRADER_CONCURRENCY, ErrorPolicy, RerunPolicy

ConfigOption = Annotated[
    Path | None, typer.Option(help="Configuration file; default: quintain.yaml beside the evaluation file or above.")
]
ConcurrencyOption = Annotated[int, typer.Option(min=1, help="The number of concurrent trials per target.")]
GradersOption = Annotated[int, typer.Option(min=1, help="The number of concurrent grader processes.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print only the totals, as JSON.")]


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
    #: The ids of the cases to execute; none for all.
    case_ids: tuple[str, ...] = ()
    #: The number of first cases to execute; None for all.
    limit: int | None = None
    #: Every kept answer is graded again.
    regrades: bool = False
    #: Rows hold questions, answers and reasons.
    keeps_content: bool = True
    error_policy: ErrorPolicy = field(default_factory=ErrorPolicy)
    files: OutputFiles = field(default_factory=OutputFiles)
    as_json: bool = False
    #: Rename the results of earlier commands, and start without any.
    is_fresh: bool = False
    #: Run the services in this process even if the environment names a fleet.
    is_embedded: bool = False
    #: The command that goes on with the run, if it is not the given one.
    resume_command: str | None = None

    @property
    def folder(self) -> Path:
        """The results folder: ``--output``, or ``runs/<name of the file>`` in the working folder."""
        return self.output or Path("runs") / self.path.stem
