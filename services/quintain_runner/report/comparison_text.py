"""Formats a comparison of two runs as tables and lines, for a terminal and for Markdown. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from quintain_runner.progress.terminal_text import plain_line
from quintain_runner.report.comparison import Comparison, Flip, MeasureComparison, TargetComparison
from quintain_runner.report.tables import TextTable
from quintain_runner.statistics import formatting
from quintain_runner.statistics.analysis import Difference
from quintain_runner.statistics.significance import SIGNIFICANCE_LEVEL

#: The most flipped cases shown for each target; `--json` has more.
MAX_SHOWN_FLIPS = 20

_COLUMNS = ("", "before", "after", "change", "95 %", "p")


def comparison_tables(comparison: Comparison) -> Iterator[TextTable]:
    """A table of the targets, and one of the graders if there are several."""
    targets = comparison.targets
    rows = [row for target in targets for row in _comparison_rows(_target_label(target), target.row)]
    holm_note = f", Holm over {len(targets)} targets" if len(targets) > 1 else ""
    notes = [f"p: McNemar's exact test; for scores random signs{holm_note}; * below {SIGNIFICANCE_LEVEL}"]
    yield TextTable(
        f"{comparison.before} → {comparison.after}", ("target", *_COLUMNS), rows, name_columns=2, notes=notes
    )
    by_grader = [
        (
            name,
            _target_label(target),
            *_difference_row(score, formatting.format_score, formatting.format_score_difference),
        )
        for name in targets[0].graders
        for target in targets
        if (score := target.graders[name].score) is not None
    ]
    if len(targets[0].graders) > 1:
        yield TextTable("mean score by grader", ("grader", "target", *_COLUMNS[1:]), by_grader, name_columns=2)


def comparison_lines(comparison: Comparison) -> Iterator[str]:
    """Lines about what is not the same in both runs, the rows that were left out, and the cases whose pass changed."""
    for folder, count in ((comparison.before, comparison.stale_before), (comparison.after, comparison.stale_after)):
        if count:
            yield f"{folder}: {count} rows are stale: what made them changed since"
    if comparison.changed_graders:
        yield f"not the same in both runs: grader {', '.join(comparison.changed_graders)}"
    if comparison.changed_cases:
        yield f"{comparison.changed_cases} rows are left out: the other run has no case that asks and expects the same"
    for target in comparison.targets:
        if target.left_out:
            yield f"{_target_label(target)}: {target.left_out} rows have no score in both runs, and are left out"
        for flip in target.flips[:MAX_SHOWN_FLIPS]:
            yield plain_line(f"flipped  {_target_label(target)}  {_flip_text(flip)}", max_length=200)
        if target.flipped > MAX_SHOWN_FLIPS:
            yield f"flipped  {_target_label(target)}  and {target.flipped - MAX_SHOWN_FLIPS} more: --json"


def conclusion(comparison: Comparison) -> str:
    """One sentence with the result of the comparison."""
    if comparison.regressed_targets:
        return f"significantly worse: {', '.join(map(_target_label, comparison.regressed_targets))}"
    changes = [change for target in comparison.targets for change in (target.row.passed, target.row.score)]
    if any(change is not None and change.significant for change in changes):
        return "significantly better, and nothing significantly worse"
    if all(change is None for change in changes):
        return "no case has a score in both runs"
    return "no significant change"


def _target_label(target: TargetComparison) -> str:
    """The target's name, or both names if they differ."""
    return target.after if target.before == target.after else f"{target.before} → {target.after}"


def _comparison_rows(name: str, compared: MeasureComparison) -> Iterator[tuple[str, ...]]:
    """The table rows of one target: pass rate and mean score."""
    if compared.passed is not None:
        yield (
            name,
            "passed",
            *_difference_row(compared.passed, lambda share: f"{100 * share:.0f} %", formatting.format_share_difference),
        )
    if compared.score is not None:
        yield (
            "",
            "mean score",
            *_difference_row(compared.score, formatting.format_score, formatting.format_score_difference),
        )


def _difference_row(
    difference: Difference,
    format_value: Callable[[float], str],
    format_difference: Callable[[Difference], tuple[str, str, str, str]],
) -> tuple[str, ...]:
    """The table cells of a difference: before, after, change, interval and p-value."""
    change, interval, _, p = format_difference(difference)
    return format_value(difference.base), format_value(difference.base + difference.estimate.value), change, interval, p


def _flip_text(flip: Flip) -> str:
    """A flipped case as a line."""
    case = flip.case_id if flip.repeat == 1 else f"{flip.case_id} #{flip.repeat}"
    labels = {True: "passed", False: "failed"}
    scores = f"{formatting.format_score(flip.before.score)} → {formatting.format_score(flip.after.score)}"
    return f"{case}: {labels[flip.before.passed]} → {labels[flip.after.passed]} ({scores})"
