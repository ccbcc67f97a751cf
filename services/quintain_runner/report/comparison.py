"""Compares two runs of the same cases: differences of measures, and what became of each case."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum

from pydantic import AliasChoices, Field

from quintain.contracts.message import Message
from quintain.errors import ConfigError
from quintain_runner.report.run_report import RunReport
from quintain_runner.results.row import Row
from quintain_runner.results.store import KeyHashSet, key_hash
from quintain_runner.statistics.analysis import paired_differences
from quintain_runner.statistics.arrays import np
from quintain_runner.statistics.frame import (
    ROW_PASS,
    ROW_SCORE,
    Measure,
    PairedDifferences,
    TargetFrame,
    build_frames,
    pair_frames,
    trial_hash,
)
from quintain_runner.statistics.significance import Difference

#: The most flipped trials listed for each target.
MAX_FLIPS = 1_000

_PASS = AliasChoices("pass", "passed")


class CaseChange(StrEnum):
    """What the later run changed in a case, over the repeats with a score in both runs."""

    WORSE_IN_EVERY = "worseInEveryRepeat"
    WORSE_IN_SOME = "worseInSome"
    BETTER = "better"
    SAME = "same"


def case_change(repeats: int, before: int, after: int) -> CaseChange:
    """The change of a case of which ``before`` and ``after`` repeats passed, of those with a score in both runs."""
    if before == after:
        return CaseChange.SAME
    if after > before:
        return CaseChange.BETTER
    return CaseChange.WORSE_IN_EVERY if before - after == repeats else CaseChange.WORSE_IN_SOME


def count_changes(cases: Iterable[tuple[int, int, int, int]]) -> tuple[dict[CaseChange, int], float]:
    """How many cases changed in each way, and how many would be worse in every repeat by chance alone.

    Each entry has the arguments of `case_change`, and how many cases have them. If nothing changed, the r passes of a
    case with r repeats in each run are as likely to be any r of its 2r trials as any others, and one of the C(2r, r)
    choices is that all are of the earlier run. Source: R. A. Fisher, "The Design of Experiments" (1935), chapter II.
    """
    counts, by_chance = dict.fromkeys(CaseChange, 0), 0.0
    for repeats, before, after, count in cases:
        counts[case_change(repeats, before, after)] += count
        if before + after == repeats:
            by_chance += count / math.comb(2 * repeats, repeats)
    return counts, by_chance


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

    ``left_out`` is the number of rows of either run without a score in both. ``changes`` counts cases by what became of
    them; ``worse_by_chance`` is the second value of `count_changes`. ``flipped`` is the number of trials whose pass
    changed, and ``flips`` lists some of them.
    """

    before: str
    after: str
    row: MeasureComparison
    graders: dict[str, MeasureComparison] = Field(default_factory=dict)
    left_out: int = 0
    changes: dict[CaseChange, int] = Field(default_factory=dict)
    worse_by_chance: float = 0.0
    flipped: int = 0
    flips: list[Flip] = Field(default_factory=list)


class Comparison(Message):
    """The comparison of a later run with an earlier one. Holm's adjustment is over the targets, separately for each
    measure.
    """

    before: str
    after: str
    targets: list[TargetComparison]
    #: The rows of either run whose case asks or expects something else in the other run, or is not in it.
    changed_cases: int = 0
    #: The graders that are not the same in both runs: their options, files or judges.
    changed_graders: list[str] = Field(default_factory=list)

    @property
    def regressed_targets(self) -> list[TargetComparison]:
        """The targets that are significantly worse."""
        return [target for target in self.targets if target.row.is_significantly_worse]


def compare_runs(before: RunReport, after: RunReport, *, force: bool = False, max_flips: int = MAX_FLIPS) -> Comparison:
    """Compare two runs, case by case.

    Of different datasets, the cases are compared that ask and expect the same in both. Raises `ConfigError` if there
    are none, or if the graders differ, unless ``force`` is True; and if the runs have no common target and not exactly
    one target each. Of each target at most ``max_flips`` trials are listed whose pass changed.

    Example::

        comparison = compare_runs(read_report(Path("runs/old")), read_report(Path("runs/new")))
        print(comparison.regressed_targets)
    """
    target_pairs = comparable_targets(before, after, force=force)
    same_cases = None if force or has_same_dataset(before, after) else _SameCases(before, after)
    rows_of = RunReport.rows if same_cases is None else same_cases.rows
    before_frames, after_frames = (
        build_frames(rows_of(report), names)
        for report, names in zip((before, after), zip(*target_pairs, strict=True), strict=True)
    )
    frame_pairs = [(after_frames[new], before_frames[old]) for old, new in target_pairs]
    pairs = [pair_frames(*frames, ROW_PASS) for frames in frame_pairs]
    rows = _compare_measures(frame_pairs, None)
    graders = [
        name
        for name in frame_pairs[0][0].grader_names()
        if all(name in frame.grader_names() for pair in frame_pairs for frame in pair)
    ]
    by_grader = {name: _compare_measures(frame_pairs, name) for name in graders}
    flips = _flips((before, after), target_pairs, pairs, max_flips)
    return Comparison(
        before=str(before.folder),
        after=str(after.folder),
        changed_cases=0 if same_cases is None else same_cases.left_out,
        changed_graders=_changed_graders(before, after, target_pairs),
        targets=[
            _target_comparison(target_pairs[number], frame_pairs[number], pairs[number]).with_fields(
                row=rows[number],
                graders={name: comparisons[number] for name, comparisons in by_grader.items()},
                flips=flips[number],
            )
            for number in range(len(target_pairs))
        ],
    )


def comparable_targets(before: RunReport, after: RunReport, *, force: bool = False) -> list[tuple[str, str]]:
    """The pairs of targets that `compare_runs` compares. Raises `ConfigError` as it does, without reading rows."""
    target_pairs = _matched_targets(before, after)
    if not force:
        _require_same_graders(before, after, _changed_graders(before, after, target_pairs))
    return target_pairs


def has_same_dataset(before: RunReport, after: RunReport) -> bool:
    """Whether both runs asked and expected the same of every case."""
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
    names: tuple[str, str], frames: tuple[TargetFrame, TargetFrame], passes: PairedDifferences
) -> TargetComparison:
    """What became of the cases of one target, and the number of left-out rows; the caller adds its measures."""
    paired_rows = int(pair_frames(*frames, ROW_SCORE).base.rows.sum())
    kinds, counts = np.unique(
        np.stack((passes.base.rows, passes.base.sums, passes.base.sums + passes.differences.sums)).astype(np.int64),
        axis=1,
        return_counts=True,
    )
    changes, by_chance = count_changes(zip(*kinds.tolist(), counts.tolist(), strict=True))
    return TargetComparison(
        before=names[0],
        after=names[1],
        row=MeasureComparison(),
        left_out=sum(len(frame.trial_hashes) for frame in frames) - 2 * paired_rows,
        changes=changes,
        worse_by_chance=by_chance,
        flipped=len(passes.differing_trials),
    )


def _flips(
    reports: tuple[RunReport, RunReport],
    target_pairs: Sequence[tuple[str, str]],
    pairs: Sequence[PairedDifferences],
    max_flips: int,
) -> list[list[Flip]]:
    """The flipped trials of each pair of targets, at most ``max_flips`` of each."""
    listed = [{int(hash_) for hash_ in np.sort(pair.differing_trials)[:max_flips]} for pair in pairs]
    outcomes = (
        _case_outcomes(report, dict(zip(names, listed, strict=True)))
        for report, names in zip(reports, zip(*target_pairs, strict=True), strict=True)
    )
    return [
        [
            Flip(case_id=trial[0], repeat=trial[1], before=outcome, after=after[trial])
            for trial, outcome in before.items()
            if trial in after
        ]
        for before, after in zip(*outcomes, strict=True)
    ]


def _case_outcomes(
    report: RunReport, trial_hashes: Mapping[str, Collection[int]]
) -> list[dict[tuple[str, int], CaseOutcome]]:
    """The results of the trials with these hashes, of each column by case and repeat."""
    found: dict[str, dict[tuple[str, int], CaseOutcome]] = {name: {} for name in trial_hashes}
    for row in report.rows() if any(trial_hashes.values()) else ():
        if trial_hash(row.case_id, row.repeat) in trial_hashes.get(row.column, ()):
            found[row.column][row.case_id, row.repeat] = CaseOutcome(passed=row.passed, score=row.score)
    return list(found.values())
