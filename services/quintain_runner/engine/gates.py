"""The gates of a run: what its results must hold so that its exit code is 0, by thresholds or by an earlier run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from quintain.errors import ConfigError
from quintain_runner.engine.run_settings import RunSettings
from quintain_runner.report.comparison import TargetComparison, comparable_targets, compare_runs
from quintain_runner.report.comparison_tables import comparison_lines
from quintain_runner.report.run_file import RunFile
from quintain_runner.report.run_report import RunReport, read_recorded_report, read_report
from quintain_runner.report.summary import Gate, RunSummary
from quintain_runner.spec.evaluation import Evaluation
from quintain_runner.statistics.analysis import (
    Analysis,
    PassAndScore,
    format_score_difference,
    format_share_difference,
)


def open_baseline(run: RunSettings, record: RunFile) -> RunReport | None:
    """The run of ``--baseline``; None without one. Raises `ConfigError` if this run cannot be compared with it."""
    if (folder := run.options.baseline) is None:
        return None
    if folder.resolve() == run.options.folder.resolve():
        raise ConfigError(f"--baseline: {folder} is the folder of this run; name that of another one")
    try:
        baseline = read_report(folder)
        comparable_targets(baseline, read_recorded_report(run.options.folder, record))
    except ConfigError as error:
        raise ConfigError(f"--baseline: {error.message}") from None
    return baseline


def measured_gates(
    evaluation: Evaluation, record: RunFile, summary: RunSummary, baseline: RunReport | None
) -> list[Gate]:
    """What became of each gate but the mean score; rows are read where there is a baseline."""
    analysis = record.statistics or Analysis()
    gates = list(_threshold_gates(evaluation, summary, analysis))
    if baseline is not None:
        folder = summary.results.parent
        after = RunReport(folder=folder, run=record, summary=summary, analysis=analysis)
        gates += _baseline_gates(baseline, after)
    return gates


def _threshold_gates(evaluation: Evaluation, summary: RunSummary, analysis: Analysis) -> Iterator[Gate]:
    thresholds, total = evaluation.spec.threshold, summary.total
    if (least := thresholds.pass_rate) is not None:
        yield Gate.of("pass rate", total.passed / total.graded if total.graded else None, least)
    for name, least in thresholds.graders.items():
        mean = _mean(one.graders.get(name) for one in analysis.targets.values())
        # A grader that the command leaves out, and that gave no verdict before, is not measured.
        if mean is not None or not evaluation.only_graders:
            yield Gate.of(f"mean score of grader {name}", mean, least)
    for field, tags in thresholds.by.items():
        for tag, least in tags.items():
            mean = _mean(analysis.by.get(field, {}).get(tag, {}).values())
            yield Gate.of(f"mean score of {field} {tag}", mean, least)


def _mean(measured: Iterable[PassAndScore | None]) -> float | None:
    """The mean score over the rows of all columns; None if there are none."""
    scores = [one.score for one in measured if one is not None]
    rows = sum(score.rows for score in scores)
    return sum(score.value * score.rows for score in scores) / rows if rows else None


def _baseline_gates(before: RunReport, after: RunReport) -> Iterator[Gate]:
    """A gate for each target that both runs have."""
    try:
        comparison = compare_runs(before, after, max_flips=0)
    except ConfigError as error:
        yield Gate(name=f"baseline {before.folder}", passed=False, text=error.message)
        return
    notes = "; ".join(comparison_lines(comparison.with_fields(targets=[]))) if comparison.changed_cases else ""
    for target in comparison.targets:
        worse = target.row.is_significantly_worse
        text = f"{target.after} is {'' if worse else 'not '}significantly worse than in {before.folder}"
        parts = [f"{text}: {_changes(target)}", *([notes] if notes else [])]
        yield Gate(name=f"{target.after} against {before.folder}", passed=not worse, text="; ".join(parts))


def _changes(target: TargetComparison) -> str:
    """By how much the pass rate and the mean score changed, with the interval and the p-value."""
    changed: Mapping[str, tuple[str, str, str, str]] = {
        **({} if (passed := target.row.passed) is None else {"pass rate": format_share_difference(passed)}),
        **({} if (score := target.row.score) is None else {"mean score": format_score_difference(score)}),
    }
    texts = [f"{name} {change} (95 % {interval}, p {p})" for name, (change, interval, _, p) in changed.items()]
    return ", ".join(texts) or "no case has a score in both runs"
