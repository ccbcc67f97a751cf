"""Two runs of the same cases: what is better, what is worse, what chance may have done, and which cases flipped."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import AliasChoices, Field

from quintain.contracts.message import Message
from quintain.errors import ConfigError
from quintain_runner.analysis import Difference, differences
from quintain_runner.columns import ROW_PASS, ROW_SCORE, Column, Measure, columns_of, paired, trial_name
from quintain_runner.report import RunReport
from quintain_runner.rows import Row

#: So many flipped cases are told of a target.
MOST_FLIPS = 1_000

#: How much of a hash an error tells, in characters.
_TOLD = 12

_PASS = AliasChoices("pass", "passed")


class Outcome(Message):
    """What became of a case in one of the runs."""

    passed: bool = Field(validation_alias=_PASS, serialization_alias="pass")
    score: float | None


class Flip(Message):
    """A case that passed in one of the runs alone."""

    case_id: str
    repeat: int
    before: Outcome
    after: Outcome


class Compared(Message):
    """A pass rate and a mean score, after and before; None where no case has both."""

    passed: Difference | None = Field(default=None, validation_alias=_PASS, serialization_alias="pass")
    score: Difference | None = None

    @property
    def worse(self) -> bool:
        """Whether it fell by more than chance would make it."""
        return any(one is not None and one.significant and one.estimate.value < 0 for one in (self.passed, self.score))


class TargetComparison(Message):
    """One target of the earlier run beside one of the later: the same one, or the only one of each.

    ``left_out`` are rows of either run without a score in both. ``flips`` are at most `MOST_FLIPS`, of ``flipped``.
    """

    before: str
    after: str
    row: Compared
    graders: dict[str, Compared] = Field(default_factory=dict)
    left_out: int = 0
    flipped: int = 0
    flips: list[Flip] = Field(default_factory=list)


class Comparison(Message):
    """The later run against the earlier one. Holm's adjustment is over the targets, for each measure by itself."""

    before: str
    after: str
    targets: list[TargetComparison]

    @property
    def regressed(self) -> list[TargetComparison]:
        """The targets that are significantly worse."""
        return [target for target in self.targets if target.row.worse]


def compare_runs(before: RunReport, after: RunReport, *, force: bool = False) -> Comparison:
    """Compare two runs, case by case.

    Raises `ConfigError` where they asked other cases or graded otherwise and nobody said ``force``, and where they
    share no target and have several.
    """
    if not force:
        _require_alike(before, after)
    names = _matched(before, after)
    columns = [
        (columns_of(after.rows(), [theirs])[theirs], columns_of(before.rows(), [ours])[ours]) for ours, theirs in names
    ]
    rows = _compared(columns, None)
    graders = [
        name for name in columns[0][0].graders() if all(name in one.graders() for pair in columns for one in pair)
    ]
    by_grader = {name: _compared(columns, name) for name in graders}
    return Comparison(
        before=str(before.folder),
        after=str(after.folder),
        targets=[
            _target((before, ours), (after, theirs), columns[number]).model_copy(
                update={"row": rows[number], "graders": {name: told[number] for name, told in by_grader.items()}}
            )
            for number, (ours, theirs) in enumerate(names)
        ],
    )


def _require_alike(before: RunReport, after: RunReport) -> None:
    ours, theirs = before.run.configuration.identity, after.run.configuration.identity
    for what in ("dataset", "graders"):
        then, now = getattr(ours, what), getattr(theirs, what)
        if then != now:
            raise ConfigError(
                f"{before.folder} and {after.folder} have other {what} ({then[:_TOLD]} and {now[:_TOLD]}), so a "
                "difference may not be the targets'; --force compares the cases that have the same ids all the same"
            )


def _matched(before: RunReport, after: RunReport) -> list[tuple[str, str]]:
    ours, theirs = before.run.configuration.targets, after.run.configuration.targets
    shared = [(name, name) for name in ours if name in theirs]
    if shared:
        return shared
    if len(ours) == len(theirs) == 1:
        return [(ours[0], theirs[0])]
    raise ConfigError(
        f"{before.folder} has the targets {', '.join(ours)} and {after.folder} has {', '.join(theirs)}: none in both, "
        "and not one alone in each. Run them on the same targets, or one target in each"
    )


def _compared(columns: list[tuple[Column, Column]], grader: str | None) -> list[Compared]:
    passed = differences(columns, Measure("pass", grader))
    scores = differences(columns, Measure("score", grader))
    return [Compared(passed=one, score=other) for one, other in zip(passed, scores, strict=True)]


def _target(
    before: tuple[RunReport, str], after: tuple[RunReport, str], columns: tuple[Column, Column]
) -> TargetComparison:
    """One target's cases; what is compared of them comes later."""
    now, then = columns
    flipped = {int(name) for name in paired(now, then, ROW_PASS).trials}
    both = int(paired(now, then, ROW_SCORE).base.rows.sum())
    told = dict.fromkeys(sorted(flipped)[:MOST_FLIPS])
    ours, theirs = _outcomes(before, told), _outcomes(after, told)
    flips = [
        Flip(case_id=case_id, repeat=repeat, before=outcome, after=theirs[case_id, repeat])
        for (case_id, repeat), outcome in ours.items()
        if (case_id, repeat) in theirs
    ]
    return TargetComparison(
        before=before[1],
        after=after[1],
        row=Compared(),
        left_out=len(then.trials) + len(now.trials) - 2 * both,
        flipped=len(flipped),
        flips=flips,
    )


def _outcomes(run: tuple[RunReport, str], trials: Mapping[int, object]) -> dict[tuple[str, int], Outcome]:
    report, target = run
    return {
        (row.case_id, row.repeat): _outcome(row)
        for row in (report.rows() if trials else ())
        if row.target == target and trial_name(row.case_id, row.repeat) in trials
    }


def _outcome(row: Row) -> Outcome:
    return Outcome(passed=row.passed, score=row.score)
