"""The comparison of two runs as tables and lines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from quintain.fleet.tables import format_count
from quintain_runner.report.comparison import CaseChange, Comparison, Flip, MeasureComparison, TargetComparison
from quintain_runner.report.text_table import TextTable
from quintain_runner.statistics.analysis import format_score, format_score_difference, format_share_difference, p_note
from quintain_runner.statistics.significance import Difference
from quintain_runner.untrusted import plain_line

#: The most flipped cases shown for each target; `--json` has more.
MAX_SHOWN_FLIPS = 20

_COLUMNS = ("", "before", "after", "change", "95 %", "p")


#: Names, and the differences that they name.
_Labeled = tuple[tuple[str, ...], MeasureComparison]


def comparison_tables(comparison: Comparison) -> Iterator[TextTable]:
    """A table of the targets, and one of the graders if there are several."""
    targets = comparison.targets
    rows: list[_Labeled] = [((_target_label(target),), target.row) for target in targets]
    yield _comparison_table(f"{comparison.before} → {comparison.after}", ("target",), rows, len(targets))
    graders = targets[0].graders
    if len(graders) > 1:
        by_grader: list[_Labeled] = [
            ((name, _target_label(target)), target.graders[name]) for name in graders for target in targets
        ]
        yield _comparison_table("By grader", ("grader", "target"), by_grader, len(targets))


def _comparison_table(title: str, names: tuple[str, ...], compared: Sequence[_Labeled], targets: int) -> TextTable:
    """A table of differences; p-values are adjusted over so many targets."""
    passed, scores = [one.passed for _, one in compared], [one.score for _, one in compared]
    notes = [p_note(passed, scores, f", Holm over {targets} targets" if targets > 1 else "")]
    rows = [row for labels, one in compared for row in _comparison_rows(labels, one)]
    return TextTable(title, (*names, *_COLUMNS), rows, name_columns=len(names) + 1, notes=notes)


def comparison_lines(comparison: Comparison) -> Iterator[str]:
    """What became of cases, the rows that were left out and why, and what is not the same in both runs."""
    if comparison.changed_graders:
        yield f"not the same in both runs: grader {', '.join(comparison.changed_graders)}"
    if comparison.changed_cases:
        left_out = format_count(comparison.changed_cases, "row")
        yield f"{left_out} left out: the other run has no case that asks and expects the same"
    for target in comparison.targets:
        if target.left_out:
            left_out = format_count(target.left_out, "row")
            yield f"{_target_label(target)}: {left_out} without a score in both runs left out"
        if target.changes:
            yield f"{_target_label(target)}: {changes_text(target.changes, target.worse_by_chance)}"


def changes_text(changes: Mapping[CaseChange, int], by_chance: float) -> str:
    """How many cases changed in each way, as one line."""
    every, some, better, same = (changes[change] for change in CaseChange)
    return (
        f"{format_count(every, 'case')} worse in every repeat (by chance alone about {by_chance:.1f}), "
        f"{some:,} worse in some, {better:,} better, {same:,} with as many passes"
    )


def flip_lines(comparison: Comparison) -> Iterator[str]:
    """Lines about the trials whose pass changed."""
    for target in comparison.targets:
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


def _comparison_rows(names: tuple[str, ...], compared: MeasureComparison) -> Iterator[tuple[str, ...]]:
    """The table rows of one target, or of one of its graders: pass rate and mean score."""
    if compared.passed is not None:
        yield (
            *names,
            "passed",
            *_difference_row(compared.passed, lambda share: f"{100 * share:.0f} %", format_share_difference),
        )
    if compared.score is not None:
        blank = ("",) * len(names)
        yield (*blank, "mean score", *_difference_row(compared.score, format_score, format_score_difference))


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
    scores = f"{format_score(flip.before.score)} → {format_score(flip.after.score)}"
    return f"{case}: {labels[flip.before.passed]} → {labels[flip.after.passed]} ({scores})"
