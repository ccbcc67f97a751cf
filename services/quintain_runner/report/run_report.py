"""Reads a results folder into a report: counts, statistics and cost of a run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import Field, JsonValue

from quintain.contracts.invoke import NO_TOKENS, TokenUsage
from quintain.contracts.message import Message
from quintain.errors import BadRequest, ConfigError
from quintain_runner.report.progress import ProgressState
from quintain_runner.report.run_record import FILE_NAME, EvaluationIdentity, SessionUsage
from quintain_runner.report.summary import ExitCode, ParkedTarget, RunSummary, TrialCounts, summarize
from quintain_runner.results.counts import Cost
from quintain_runner.results.row import Row, column_names
from quintain_runner.results.store import RESULTS_FILE_NAME, current_rows, read_resume_state
from quintain_runner.spec.graders import Reducers
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
    content: str = ""

    @property
    def columns(self) -> list[str]:
        """The columns of every table: each target, under each prompt."""
        return column_names(self.targets, self.prompts)


class _RecordedCounts(Message):
    """The counts of one column in ``run.json``."""

    trials: int = 0
    graded: int = 0
    passed: int = 0
    errors: int = 0
    in_doubt: int = 0
    stale: int = 0
    mean_score: float | None = None
    calls: int = 0
    token_usage: TokenUsage = NO_TOKENS

    @property
    def counts(self) -> TrialCounts:
        """The counts as summaries hold them."""
        return TrialCounts(
            **self.model_dump(exclude={"token_usage"}, include=set(_RecordedCounts.model_fields)),
            input_tokens=self.token_usage.input,
            output_tokens=self.token_usage.output,
        )


class _Totals(_RecordedCounts):
    """The ``totals`` section of ``run.json``."""

    cases: int
    max_calls: int
    calls_left: int = 0
    calls_of_earlier_plans: int = 0
    calls_made_twice: int = 0


class _Fingerprints(Message):
    """The ``fingerprints`` section of ``run.json``: of the graders by target and name, and of the targets."""

    graders: dict[str, dict[str, str | None]] = Field(default_factory=dict)
    targets: dict[str, str | None] = Field(default_factory=dict)


class RunFile(Message):
    """The content of ``run.json``, as far as reports use it."""

    schema_version: int
    configuration: _Configuration
    totals: _Totals
    targets: dict[str, _RecordedCounts] = Field(default_factory=dict)
    exit_code: int | None = None
    started_at: str
    ended_at: str | None = None
    statistics: Analysis | None = None
    cost: Cost | None = None
    parked_targets: dict[str, ParkedTarget] = Field(default_factory=dict)
    unavailable_graders: dict[str, str] = Field(default_factory=dict)
    sessions: list[SessionUsage] = Field(default_factory=list)
    fingerprints: _Fingerprints = _Fingerprints()
    versions: dict[str, str] = Field(default_factory=dict)
    revision: dict[str, JsonValue] | None = None

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
            results=folder / RESULTS_FILE_NAME,
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


def read_recorded_report(folder: Path, run: RunFile) -> RunReport:
    """The report of a results folder by the counts that its run wrote last, without a look at the rows.

    While the run goes on, these are the counts of its beginning. ``run`` is what `read_run` returns.
    """
    totals = run.totals
    summary = RunSummary(
        cases=totals.cases,
        per_target={name: run.targets.get(name, _RecordedCounts()).counts for name in run.configuration.columns},
        total=totals.counts,
        calls=totals.calls,
        max_calls=totals.max_calls,
        calls_of_earlier_plans=totals.calls_of_earlier_plans,
        calls_made_twice=totals.calls_made_twice,
        estimated_calls_left=totals.calls_left,
        threshold=run.configuration.threshold,
        is_budget_spent=run.exit_code == ExitCode.BUDGET_SPENT,
        parked_targets=run.parked_targets,
        results=folder / RESULTS_FILE_NAME,
    )
    return RunReport(folder=folder, run=run, summary=summary, analysis=run.statistics or Analysis(), cost=run.cost)
