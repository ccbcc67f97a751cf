"""Decides from fingerprints what becomes of a stored row: kept, graded again, or its target asked again. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

from quintain.graders import Case
from quintain_runner.results.case_fingerprints import grading_fingerprint, input_fingerprint
from quintain_runner.results.row import GraderRow, Row, RowFingerprints, RowStatus

#: The change of a row whose case the dataset does not have any more.
NOT_IN_DATASET = "the case is not in the dataset"

#: The change of a row of schema 1.
NO_FINGERPRINTS = "rows of an earlier version hold no fingerprints"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFingerprints:
    """The fingerprints of a run's targets, and of its graders by target; None where one is not known.

    ``models`` are the models of targets by their fingerprints, of earlier commands too.
    """

    targets: Mapping[str, str | None] = field(default_factory=dict)
    graders: Mapping[str, Mapping[str, str | None]] = field(default_factory=dict)
    models: Mapping[str, str] = field(default_factory=dict)

    def graders_of(self, target: str) -> Mapping[str, str | None]:
        """The graders' fingerprints by name, for answers of this target."""
        return self.graders.get(target, {})

    def row_fingerprints(self, case: Case, target: str) -> RowFingerprints:
        """What a row of this case and target is made of now."""
        return RowFingerprints(
            input=input_fingerprint(case), grading=grading_fingerprint(case), target=self.targets.get(target)
        )


class Action(Enum):
    """What becomes of a trial when a run begins."""

    #: Its row stays.
    KEEP = auto()
    #: The answer of its row is graded again, without a call to the target.
    GRADE = auto()
    #: The target is asked.
    ASK = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class RerunPolicy:
    """Which rows are asked or graded again. ``keep_stale``: not those of which something changed."""

    rerun_errors: bool = True
    rerun_in_doubt: bool = False
    keep_stale: bool = False

    def should_rerun(self, status: RowStatus) -> bool:
        """Whether the trial that left an ungraded row is to be tried once more."""
        return self.rerun_errors if status is RowStatus.ERROR else self.rerun_in_doubt


@dataclass(frozen=True, slots=True)
class Decision:
    """What becomes of a trial, and which changes are the reason; none where there is only something left to do."""

    action: Action
    changes: tuple[str, ...] = ()

    def updated_row(self, row: Row) -> Row:
        """The row as it is to be in the file before anything is asked: what changed is written on it, so that it is
        in no table as what it is not, whatever ends the run."""
        stale = list(self.changes) or None
        return row.model_copy(update={"stale": stale, "stale_kept": bool(stale) and self.action is Action.KEEP})


def decide(row: Row | None, case: Case, target: str, fingerprints: RunFingerprints, policy: RerunPolicy) -> Decision:
    """What becomes of the trial that left this row, or none yet."""
    if row is None:
        return Decision(Action.ASK)
    asking, grading = _changes(row, case, target, fingerprints)
    is_kept = row.status is RowStatus.GRADED or not policy.should_rerun(row.status)
    if policy.keep_stale and (asking or grading) and is_kept:
        return Decision(Action.KEEP, (*asking, *grading))
    if asking or row.status is RowStatus.IN_DOUBT:
        return Decision(Action.KEEP if is_kept and not asking else Action.ASK, asking)
    if row.status is RowStatus.ERROR and is_kept and not grading:
        return Decision(Action.KEEP)
    if grading or row.status is RowStatus.ERROR:
        return Decision(Action.ASK if row.result is None else Action.GRADE, grading)
    return Decision(Action.KEEP)


def reusable_grader_row(row: Row | None, name: str, current: RowFingerprints, grader: str | None) -> GraderRow | None:
    """The verdict of a row that need not be given again; None where something of it changed, or there is none."""
    if row is None or row.fingerprints is None or row.fingerprints.grading != current.grading:
        return None
    verdict = row.graders.get(name)
    if verdict is None or verdict.error is not None or verdict.fingerprint != grader:
        return None
    return verdict


def _changes(
    row: Row, case: Case, target: str, fingerprints: RunFingerprints
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Why the target must be asked again, and why the answer must be graded again."""
    was, now = row.fingerprints, fingerprints.row_fingerprints(case, target)
    if was is None:
        return (NO_FINGERPRINTS,), ()
    asking: list[str] = []
    if was.target != now.target:
        asking.append(_target_change(target, was.target, now.target, fingerprints))
    if was.input != now.input:
        asking.append("question changed" if row.prompt is None else f"question or prompt {row.prompt} changed")
    if row.output is None:
        # There is no answer that anything could be graded of.
        return tuple(asking), ()
    grading = [] if was.grading == now.grading else ["expected changed"]
    graders = fingerprints.graders_of(target)
    for name, fingerprint in graders.items():
        verdict = row.graders.get(name)
        if verdict is None and row.status is RowStatus.GRADED:
            grading.append(f"new grader {name}")
        elif verdict is not None and verdict.fingerprint != fingerprint:
            grading.append(f"grader {name} changed")
    grading.extend(f"grader {name} removed" for name in row.graders if name not in graders)
    return tuple(asking), tuple(grading)


def _target_change(target: str, was: str | None, now: str | None, fingerprints: RunFingerprints) -> str:
    if was is None or now is None:
        return f"whether target {target} changed is not known"
    before, after = fingerprints.models.get(was), fingerprints.models.get(now)
    if before is None or after is None or before == after:
        return f"target {target} changed"
    return f"target {target}: model {before} → {after}"
