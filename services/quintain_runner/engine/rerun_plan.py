"""What a command does with the rows of earlier ones, known and written down before it makes a call."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import islice

from quintain.graders import Case
from quintain_runner.results.fingerprint import FingerprintSet, fingerprint
from quintain_runner.results.row import Row, RowKey
from quintain_runner.results.store import ResultFile
from quintain_runner.spec.changes import NOT_IN_DATASET, Action, Decision, RerunPolicy, RunFingerprints, decide
from quintain_runner.spec.plan import planned_questions
from quintain_runner.spec.prompts import Prompt
from quintain_runner.spec.reckoning import Reckoning

#: So many changed rows are written at once.
_BATCH_ROWS = 500

#: Opens the dataset, as often as it is asked.
OpenCases = Callable[[], AbstractContextManager[Iterable[Case]]]


@dataclass(slots=True)
class RerunPlan:
    """How many trials are kept, graded again, asked again and asked for the first time, and why.

    ``reckoned_again`` of the kept rows have another score or other tags, because a weight or ``by`` changed. ``stale``
    of the kept rows are kept although something changed. ``left_out`` rows are of cases that the dataset does not have
    any more. ``unknown`` are the targets whose workers report no fingerprint: whether they changed, nobody knows.
    """

    kept: int = 0
    reckoned_again: int = 0
    stale: int = 0
    graded_again: int = 0
    asked_again: int = 0
    new: int = 0
    left_out: int = 0
    stale_reasons: Counter[str] = field(default_factory=Counter)
    grading_reasons: Counter[str] = field(default_factory=Counter)
    asking_reasons: Counter[str] = field(default_factory=Counter)
    unknown: tuple[str, ...] = ()

    @property
    def has_rows(self) -> bool:
        """Whether there are rows of earlier commands."""
        return bool(self.kept or self.graded_again or self.asked_again or self.left_out)

    def add(self, row: Row | None, decision: Decision) -> None:
        """Count a trial, and the row that it has."""
        changes = decision.changes
        if row is None:
            self.new += 1
        elif decision.action is Action.KEEP:
            self.kept += 1
            self.stale += bool(changes)
            self.stale_reasons.update(changes)
        elif decision.action is Action.GRADE:
            self.graded_again += 1
            self.grading_reasons.update(changes or ("no verdict",))
        else:
            self.asked_again += 1
            self.asking_reasons.update(changes or ("no answer",))

    def to_wire(self) -> dict[str, int]:
        """The counts as ``run.json`` has them."""
        return {
            "kept": self.kept,
            "reckonedAgain": self.reckoned_again,
            "stale": self.stale,
            "gradedAgain": self.graded_again,
            "askedAgain": self.asked_again,
            "new": self.new,
            "leftOut": self.left_out,
        }

    def lines(self) -> Iterator[str]:
        """The plan in words, a line, and one more for what is not known; nothing where no row is of before."""
        if not self.has_rows:
            return
        parts = [f"{self.kept} rows kept"]
        if self.reckoned_again:
            parts.append(f"{self.reckoned_again} of them reckoned again (weight or by changed)")
        if self.stale:
            parts.append(f"{self.stale} of them stale{_reasons(self.stale_reasons)}")
        if self.graded_again:
            parts.append(f"{self.graded_again} graded again{_reasons(self.grading_reasons)}")
        if self.asked_again:
            parts.append(f"{self.asked_again} asked again{_reasons(self.asking_reasons)}")
        if self.new:
            parts.append(f"{self.new} new")
        if self.left_out:
            parts.append(f"{self.left_out} left out ({NOT_IN_DATASET})")
        yield " · ".join(parts)
        if self.unknown and self.kept:
            yield (
                f"no worker reports a fingerprint of {', '.join(self.unknown)}: whether that changed is not known; "
                "--fresh asks everything"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Planner:
    """Decides on every trial of a run, from the rows that there are."""

    results: ResultFile
    open_cases: OpenCases
    targets: Sequence[str]
    prompts: Sequence[Prompt]
    repeats: int
    fingerprints: RunFingerprints
    policy: RerunPolicy
    reckoning: Reckoning

    async def plan(self) -> RerunPlan:
        """Decide, and write on each row what changed since, so that no table has it as what it is not.

        Returns when that is on the disk: nothing may be asked before.
        """
        unknown = tuple(name for name, one in self.fingerprints.targets.items() if one is None)
        plan = RerunPlan(unknown=unknown)
        replacements = self._replacements(plan)
        while batch := await asyncio.to_thread(lambda: list(islice(replacements, _BATCH_ROWS))):
            await self.results.replace(batch)
        return plan

    def _replacements(self, plan: RerunPlan) -> Iterator[tuple[Row, Row]]:
        """Rows, and what they are to be from now on."""
        case_ids = FingerprintSet()
        with self.open_cases() as cases:
            for case in cases:
                case_ids.add(fingerprint(case.id))
                for asked, prompt, repeat in planned_questions([case], self.prompts, self.repeats):
                    for target in self.targets:
                        row = self.results.find(RowKey(case.id, target, repeat, prompt))
                        decision = decide(row, asked, target, self.fingerprints, self.policy)
                        plan.add(row, decision)
                        if row is not None and (updated := self._updated_row(row, asked, decision, plan)) != row:
                            yield row, updated
        for row in self.results.rows_at_opening():
            if fingerprint(row.case_id) not in case_ids:
                plan.left_out += 1
                updated = row.model_copy(update={"stale": [NOT_IN_DATASET], "stale_kept": False})
                if updated != row:
                    yield row, updated

    def _updated_row(self, row: Row, case: Case, decision: Decision, plan: RerunPlan) -> Row:
        """The row with what changed written on it; one that is kept is reckoned by the weights and tags of now."""
        updated = decision.updated_row(row)
        if decision.action is not Action.KEEP:
            return updated
        reckoned = self.reckoning.applied_to(updated, case)
        plan.reckoned_again += reckoned is not updated
        return reckoned


def _reasons(counts: Mapping[str, int]) -> str:
    return f" ({', '.join(counts)})"
