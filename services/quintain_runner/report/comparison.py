"""Compares the runs of the same cases, and shows the differences."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from pydantic import AliasChoices, Field

from quintain.contracts.message import Message
from quintain.errors import ConfigError
from quintain_runner.report.run_report import RunReport
from quintain_runner.report.text_table import TextTable
from quintain_runner.results.row import Row
from quintain_runner.results.store import KeyHashSet, key_hash
from quintain_runner.statistics.analysis import (
    Difference,
    format_score,
    format_score_difference,
    format_share_difference,
    p_note,
    paired_differences,
)
from quintain_runner.statistics.frame import (
    ROW_PASS,
    ROW_SCORE,
    Measure,
    TargetFrame,
    build_frames,
    pair_frames,
    trial_hash,
)
from quintain_runner.untrusted import plain_line

#: The most flipped cases listed for each target.
MAX_FLIPS = 1_000

_PASS = AliasChoices("pass", "passed")


class CaseOutcome(Message):
    """The result of a case in one of the runs."""

    passed: bool = Field(validation_alias=_PASS, serialization_alias="pass")
    score: float | None


class Flip(Message):
    """A case that passed in only one of the two runs."""

    case_id: str
    repeat: int
    before: CaseOutcome
    after: CaseOutcome


class MeasureComparison(Message):
    """The differences of the pass rate and the mean score, later run minus earlier run; None without common graded
    cases.
    """

    passed: Difference | None = Field(default=None, validation_alias=_PASS, serialization_alias="pass")
    score: Difference | None = None

    @property
    def is_significantly_worse(self) -> bool:
        """Whether the pass rate or the mean score decreased significantly."""
        return any(
            difference is not None and difference.significant and difference.estimate.value < 0
            for difference in (self.passed, self.score)
        )


class TargetComparison(Message):
    """A target of the earlier run compared with one of the later run: the same one, or the only one of each.

    ``left_out`` is the number of rows of either run without a score in both. ``flipped`` is the number of cases whose
    pass changed, and ``flips`` lists at most `MAX_FLIPS` of them.
    """

    before: str
    after: str
    row: MeasureComparison
    graders: dict[str, MeasureComparison] = Field(default_factory=dict)
    left_out: int = 0
    flipped: int = 0
    flips: list[Flip] = Field(default_factory=list)


class Comparison(Message):
    """The comparison of a later run with an earlier one. Holm's adjustment is over the targets, separately for each
    measure.
    """

    before: str
    after: str
    targets: list[TargetComparison]
    #: The rows of the earlier and of the later run that count although what made them changed.
    stale_before: int = 0
    stale_after: int = 0
    #: The rows of either run whose case asks or expects something else in the other run, or is not in it.
    changed_cases: int = 0
    #: The graders that are not the same in both runs: their options, files or judges.
    changed_graders: list[str] = Field(default_factory=list)

    @property
    def regressed_targets(self) -> list[TargetComparison]:
        """The targets that are significantly worse."""
        return [target for target in self.targets if target.row.is_significantly_worse]


def compare_runs(before: RunReport, after: RunReport, *, force: bool = False) -> Comparison:
    """Compare two runs, case by case.

    Of different datasets, the cases are compared that ask and expect the same in both. Raises `ConfigError` if there
    are none, or if the graders differ, unless ``force`` is True; and if the runs have no common target and not exactly
    one target each.

    Example::

        comparison = compare_runs(read_report(Path("runs/old")), read_report(Path("runs/new")))
        print(conclusion(comparison))
    """
    target_pairs = _matched_targets(before, after)
    changed_graders = _changed_graders(before, after, target_pairs)
    if not force:
        _require_same_graders(before, after, changed_graders)
    same_cases = None if force or _has_same_dataset(before, after) else _SameCases(before, after)
    rows_of = RunReport.rows if same_cases is None else same_cases.rows
    frame_pairs = [
        (
            build_frames(rows_of(after), [after_name])[after_name],
            build_frames(rows_of(before), [before_name])[before_name],
        )
        for before_name, after_name in target_pairs
    ]
    rows = _compare_measures(frame_pairs, None)
    graders = [
        name
        for name in frame_pairs[0][0].grader_names()
        if all(name in frame.grader_names() for pair in frame_pairs for frame in pair)
    ]
    by_grader = {name: _compare_measures(frame_pairs, name) for name in graders}
    return Comparison(
        before=str(before.folder),
        after=str(after.folder),
        stale_before=before.stale_rows,
        stale_after=after.stale_rows,
        changed_cases=0 if same_cases is None else same_cases.left_out,
        changed_graders=changed_graders,
        targets=[
            _target_comparison((before, before_name), (after, after_name), frame_pairs[number]).model_copy(
                update={
                    "row": rows[number],
                    "graders": {name: comparisons[number] for name, comparisons in by_grader.items()},
                }
            )
            for number, (before_name, after_name) in enumerate(target_pairs)
        ],
    )


def _has_same_dataset(before: RunReport, after: RunReport) -> bool:
    return before.run.configuration.identity.dataset == after.run.configuration.identity.dataset


class _SameCases:
    """The rows of two runs whose cases ask and expect the same in both, by their fingerprints.

    Raises `ConfigError` if there are none.
    """

    def __init__(self, before: RunReport, after: RunReport) -> None:
        hashes = {report.folder: self._hashes(report) for report in (before, after)}
        self._common = {before.folder: hashes[after.folder], after.folder: hashes[before.folder]}
        counts = [(sum(1 for _ in report.rows()), sum(1 for _ in self.rows(report))) for report in (before, after)]
        #: The number of rows of either run that are not compared.
        self.left_out = sum(rows - same for rows, same in counts)
        if not counts[0][1]:
            raise ConfigError(
                f"{before.folder} and {after.folder} differ in their dataset, and no row of one is known to ask and "
                "expect the same as a row of the other; --force compares the cases with the same ids anyway"
            )

    def rows(self, report: RunReport) -> Iterator[Row]:
        """The rows of a run whose case is the same in the other run."""
        common = self._common[report.folder]
        return (row for row in report.rows() if self._hash(row) in common)

    def _hashes(self, report: RunReport) -> KeyHashSet:
        hashes = KeyHashSet()
        for row in report.rows():
            hashes.add(self._hash(row))
        return hashes

    @staticmethod
    def _hash(row: Row) -> int:
        return key_hash(row.case_id, row.repeat, row.fingerprints.input, row.fingerprints.grading)


def _changed_graders(before: RunReport, after: RunReport, target_pairs: list[tuple[str, str]]) -> list[str]:
    """The names of the graders whose fingerprints differ, or that only one of the runs has."""
    changed: list[str] = []
    for before_target, after_target in target_pairs:
        was = before.run.fingerprints.graders.get(before_target)
        now = after.run.fingerprints.graders.get(after_target)
        if was is not None and now is not None:
            changed += [name for name in {**was, **now} if was.get(name, "") != now.get(name, "")]
    return list(dict.fromkeys(changed))


def _require_same_graders(before: RunReport, after: RunReport, changed: list[str]) -> None:
    """Raise `ConfigError` if the runs have graders with different options."""
    before_hash, after_hash = before.run.configuration.identity.graders, after.run.configuration.identity.graders
    if before_hash != after_hash:
        names = f" ({', '.join(changed)})" if changed else ""
        raise ConfigError(
            f"{before.folder} and {after.folder} differ in their graders{names}, so a difference may not come from the "
            "targets; grade one of them with the other's evaluation file (quintain rescore RUN EVAL.YAML), or --force "
            "compares anyway"
        )


def _matched_targets(before: RunReport, after: RunReport) -> list[tuple[str, str]]:
    """The pairs of targets to compare: those in both runs, else the only one of each. Raises `ConfigError`."""
    before_targets, after_targets = before.run.configuration.columns, after.run.configuration.columns
    shared = [(name, name) for name in before_targets if name in after_targets]
    if shared:
        return shared
    if len(before_targets) == len(after_targets) == 1:
        return [(before_targets[0], after_targets[0])]
    raise ConfigError(
        f"{before.folder} has the targets {', '.join(before_targets)} and {after.folder} has "
        f"{', '.join(after_targets)}: no target is in both. "
        "Compare runs on the same targets, or runs with one target each"
    )


def _compare_measures(
    frame_pairs: list[tuple[TargetFrame, TargetFrame]], grader: str | None
) -> list[MeasureComparison]:
    """The comparison of each pair of frames, for a grader or (None) for the rows."""
    passed = paired_differences(frame_pairs, Measure("pass", grader))
    scores = paired_differences(frame_pairs, Measure("score", grader))
    return [
        MeasureComparison(passed=pass_difference, score=score_difference)
        for pass_difference, score_difference in zip(passed, scores, strict=True)
    ]


def _target_comparison(
    before: tuple[RunReport, str], after: tuple[RunReport, str], frames: tuple[TargetFrame, TargetFrame]
) -> TargetComparison:
    """The flipped and left-out cases of one target; its measures are added by the caller."""
    after_frame, before_frame = frames
    flipped = {int(hash_) for hash_ in pair_frames(after_frame, before_frame, ROW_PASS).differing_trials}
    paired_rows = int(pair_frames(after_frame, before_frame, ROW_SCORE).base.rows.sum())
    shown_trials = dict.fromkeys(sorted(flipped)[:MAX_FLIPS])
    before_outcomes, after_outcomes = _case_outcomes(before, shown_trials), _case_outcomes(after, shown_trials)
    flips = [
        Flip(case_id=case_id, repeat=repeat, before=outcome, after=after_outcomes[case_id, repeat])
        for (case_id, repeat), outcome in before_outcomes.items()
        if (case_id, repeat) in after_outcomes
    ]
    return TargetComparison(
        before=before[1],
        after=after[1],
        row=MeasureComparison(),
        left_out=len(before_frame.trial_hashes) + len(after_frame.trial_hashes) - 2 * paired_rows,
        flipped=len(flipped),
        flips=flips,
    )


def _case_outcomes(
    run: tuple[RunReport, str], trial_hashes: Mapping[int, object]
) -> dict[tuple[str, int], CaseOutcome]:
    """The results of the trials with these hashes, by case and repeat."""
    report, target = run
    return {
        (row.case_id, row.repeat): _case_outcome(row)
        for row in (report.rows() if trial_hashes else ())
        if row.column == target and trial_hash(row.case_id, row.repeat) in trial_hashes
    }


def _case_outcome(row: Row) -> CaseOutcome:
    """The pass and the score of a row."""
    return CaseOutcome(passed=row.passed, score=row.score)


#: The most flipped cases shown for each target; `--json` has more.
MAX_SHOWN_FLIPS = 20

_COLUMNS = ("", "before", "after", "change", "95 %", "p")


def comparison_tables(comparison: Comparison) -> Iterator[TextTable]:
    """A table of the targets, and one of the graders if there are several."""
    targets = comparison.targets
    rows = [row for target in targets for row in _comparison_rows(_target_label(target), target.row)]
    holm_note = f", Holm over {len(targets)} targets" if len(targets) > 1 else ""
    passed, scores = [each.row.passed for each in targets], [each.row.score for each in targets]
    notes = [p_note(passed, scores, holm_note)]
    yield TextTable(
        f"{comparison.before} → {comparison.after}", ("target", *_COLUMNS), rows, name_columns=2, notes=notes
    )
    by_grader = [
        (
            name,
            _target_label(target),
            *_difference_row(score, format_score, format_score_difference),
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
            *_difference_row(compared.passed, lambda share: f"{100 * share:.0f} %", format_share_difference),
        )
    if compared.score is not None:
        yield (
            "",
            "mean score",
            *_difference_row(compared.score, format_score, format_score_difference),
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
    scores = f"{format_score(flip.before.score)} → {format_score(flip.after.score)}"
    return f"{case}: {labels[flip.before.passed]} → {labels[flip.after.passed]} ({scores})"
