"""Reads a results folder into a report: counts, statistics and cost of a run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import Field

from quintain.contracts.message import Message
from quintain.errors import BadRequest, ConfigError
from quintain_runner.cost.run_cost import Cost
from quintain_runner.progress.state import ProgressState
from quintain_runner.report.run_record import FILE_NAME, EvaluationIdentity, SessionUsage
from quintain_runner.report.summary import ExitCode, ParkedTarget, RunSummary, summarize
from quintain_runner.results.row import Row, column_names
from quintain_runner.results.store import FILE_NAME as RESULTS_NAME
from quintain_runner.results.store import current_rows, read_resume_state
from quintain_runner.spec.reducers import Reducers
from quintain_runner.statistics.analysis import Analysis, analyse
from quintain_runner.statistics.frame import build_tagged_frames


class _Configuration(Message):
    """The ``configuration`` section of ``run.json``."""

    evaluation: str
    identity: EvaluationIdentity
    targets: list[str]
    prompts: list[str] = Field(default_factory=list)
    repeats: int
    reduce: Reducers = Reducers()
    threshold: float | None = None

    @property
    def columns(self) -> list[str]:
        """The columns of every table: each target, under each prompt."""
        return column_names(self.targets, self.prompts)


class _Totals(Message):
    """The ``totals`` section of ``run.json``."""

    cases: int
    calls: int
    max_calls: int
    calls_left: int = 0
    calls_of_earlier_plans: int = 0
    calls_made_twice: int = 0


class _Fingerprints(Message):
    """The ``fingerprints`` section of ``run.json``: those of the graders by target and name."""

    graders: dict[str, dict[str, str | None]] = Field(default_factory=dict)


class RunFile(Message):
    """The content of ``run.json``, as far as reports use it."""

    schema_version: int
    configuration: _Configuration
    totals: _Totals
    exit_code: int | None = None
    started_at: str
    ended_at: str | None = None
    statistics: Analysis | None = None
    cost: Cost | None = None
    parked_targets: dict[str, ParkedTarget] = Field(default_factory=dict)
    unavailable_graders: dict[str, str] = Field(default_factory=dict)
    sessions: list[SessionUsage] = Field(default_factory=list)
    fingerprints: _Fingerprints = _Fingerprints()

    @property
    def name(self) -> str:
        """The run's name: the name of its evaluation file without the suffix."""
        return Path(self.configuration.evaluation).stem


@dataclass(frozen=True, kw_only=True)
class RunReport:
    """The results of a run, which may not have ended."""

    folder: Path
    run: RunFile
    summary: RunSummary
    analysis: Analysis
    cost: Cost | None

    @property
    def stale_rows(self) -> int:
        """The number of rows that count although what made them changed."""
        return self.summary.total.stale

    def rows(self) -> Iterator[Row]:
        """Iterate over the current rows of the targets, prompts and repeats that the run was configured for."""
        columns = set(self.run.configuration.columns)
        for row in current_rows(self.folder):
            if row.column in columns and row.repeat <= self.run.configuration.repeats:
                yield row


def read_run(folder: Path) -> RunFile:
    """Read ``run.json`` of a results folder. Raises `ConfigError` if it does not exist or is invalid."""
    path = folder / FILE_NAME
    try:
        run = RunFile.from_wire(path.read_bytes())
    except FileNotFoundError:
        raise ConfigError(
            f"{folder}: there is no {FILE_NAME} in it; name a folder that `quintain run` wrote, such as runs/eval"
        ) from None
    except (OSError, BadRequest) as error:
        raise ConfigError(f"{path}: cannot be read ({error}); was it written by `quintain run`?") from None
    if run.schema_version != 1:
        raise ConfigError(f"{path}: its schemaVersion is {run.schema_version}, and this release reads 1")
    return run


def read_report(folder: Path, summary: RunSummary | None = None) -> RunReport:
    """Read the report of a results folder, also of a run that has not ended.

    ``summary`` is the summary of a run that just ended; if None, the rows are counted. Raises `ConfigError` if the
    folder is not usable.

    Example::

        report = read_report(Path("runs/eval"))
        print(report.summary.total.mean_score)
    """
    run = read_run(folder)
    configuration = run.configuration
    if summary is None:
        resume_state = read_resume_state(folder)
        progress_state = ProgressState(
            configuration.columns,
            cases=run.totals.cases,
            repeats=configuration.repeats,
            resume_state=resume_state,
        )
        totals, budget = run.totals, progress_state.budget
        budget.update(totals.calls - totals.calls_of_earlier_plans, totals.max_calls)
        budget.calls_of_earlier_plans = totals.calls_of_earlier_plans
        summary = summarize(
            progress_state,
            threshold=configuration.threshold,
            is_budget_spent=run.exit_code == ExitCode.BUDGET_SPENT,
            calls_made_twice=totals.calls_made_twice,
            parked_targets=run.parked_targets,
            results=folder / RESULTS_NAME,
        )
        summary = replace(summary, unavailable_graders=run.unavailable_graders, estimated_calls_left=totals.calls_left)
    report = RunReport(
        folder=folder,
        run=run,
        summary=summary,
        analysis=run.statistics or Analysis(),
        cost=run.cost,
    )
    if run.statistics is not None:
        return report
    tagged = build_tagged_frames(report.rows(), configuration.columns, repeats=configuration.repeats)
    return replace(report, analysis=analyse(tagged.columns, configuration.reduce, tagged.by_tag))
