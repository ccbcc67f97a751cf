"""A comparison of two runs as tables and lines: for a terminal, and for a page of Markdown. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from quintain_runner import figures
from quintain_runner.analysis import Difference
from quintain_runner.comparison import Compared, Comparison, Flip, TargetComparison
from quintain_runner.paired import SIGNIFICANT
from quintain_runner.sheets import Sheet
from quintain_runner.terminal import plain

#: So many flipped cases are shown of a target; `--json` has more.
MOST_SHOWN = 20

_COLUMNS = ("", "before", "after", "change", "95 %", "p")


def comparison_sheets(comparison: Comparison) -> Iterator[Sheet]:
    """A table for the targets, and one for the graders where there are several."""
    targets = comparison.targets
    rows = [row for target in targets for row in _rows(_name(target), target.row)]
    several = f", Holm over {len(targets)} targets" if len(targets) > 1 else ""
    notes = [f"p: McNemar's exact test; for scores random signs{several}; * below {SIGNIFICANT}"]
    yield Sheet(f"{comparison.before} → {comparison.after}", ("target", *_COLUMNS), rows, names=2, notes=notes)
    by_grader = [
        (name, _name(target), *_row(one.score, figures.score, figures.score_difference))
        for name in targets[0].graders
        for target in targets
        if (one := target.graders[name]).score is not None
    ]
    if len(targets[0].graders) > 1:
        yield Sheet("mean score by grader", ("grader", "target", *_COLUMNS[1:]), by_grader, names=2)


def comparison_lines(comparison: Comparison) -> Iterator[str]:
    """What was left out, and the cases that flipped."""
    for target in comparison.targets:
        if target.left_out:
            yield f"{_name(target)}: {target.left_out} rows have no score in both runs, and are left out"
        for flip in target.flips[:MOST_SHOWN]:
            yield plain(f"flipped  {_name(target)}  {_flip(flip)}", longest=200)
        if target.flipped > MOST_SHOWN:
            yield f"flipped  {_name(target)}  and {target.flipped - MOST_SHOWN} more: --json"


def verdict_of(comparison: Comparison) -> str:
    """What came out, in a sentence."""
    if comparison.regressed:
        return f"significantly worse: {', '.join(map(_name, comparison.regressed))}"
    changes = [one for target in comparison.targets for one in (target.row.passed, target.row.score)]
    if any(one is not None and one.significant for one in changes):
        return "significantly better, and nothing significantly worse"
    if all(one is None for one in changes):
        return "no case has a score in both runs"
    return "no significant change"


def _name(target: TargetComparison) -> str:
    return target.after if target.before == target.after else f"{target.before} → {target.after}"


def _rows(name: str, compared: Compared) -> Iterator[tuple[str, ...]]:
    if compared.passed is not None:
        yield (name, "passed", *_row(compared.passed, lambda share: f"{100 * share:.0f} %", figures.share_difference))
    if compared.score is not None:
        yield ("", "mean score", *_row(compared.score, figures.score, figures.score_difference))


def _row(
    difference: Difference,
    shown: Callable[[float], str],
    told: Callable[[Difference], tuple[str, str, str, str]],
) -> tuple[str, ...]:
    change, interval, _, p = told(difference)
    return shown(difference.base), shown(difference.base + difference.estimate.value), change, interval, p


def _flip(flip: Flip) -> str:
    case = flip.case_id if flip.repeat == 1 else f"{flip.case_id} #{flip.repeat}"
    words = {True: "passed", False: "failed"}
    scores = f"{figures.score(flip.before.score)} → {figures.score(flip.after.score)}"
    return f"{case}: {words[flip.before.passed]} → {words[flip.after.passed]} ({scores})"
