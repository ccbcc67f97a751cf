"""Graders of a list of graders: all of them must pass the answer, or any of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from quintain.contracts.invoke import NO_TOKENS, Result
from quintain_runner.graders.base import GraderRunner, GradingContext, GradingResult, PlannedCalls, final_verdict
from quintain_runner.plan.trials import Trial
from quintain_runner.results.row import Check, GraderRow
from quintain_runner.spec.graders import AllGrader, CombiningGrader, parts_of


@dataclass(frozen=True, slots=True)
class CombinedGraderRunner:
    """A list of graders that is ready to grade answers; ``parts`` are its graders, in their order."""

    spec: CombiningGrader
    parts: tuple[GraderRunner, ...]

    @property
    def name(self) -> str:
        """The name of the grader in the results."""
        return self.spec.name

    def planned_calls(self, trial: Trial, context: GradingContext, expected_calls: int) -> list[PlannedCalls]:
        """Implements `GraderRunner.planned_calls`: those of its graders that have to run."""
        trial, context = self._inside(trial, context)
        running = (part for part in self.parts if context.reusable(trial, part.name) is None)
        return [calls for part in running for calls in part.planned_calls(trial, context, expected_calls)]

    def _inside(self, trial: Trial, context: GradingContext) -> tuple[Trial, GradingContext]:
        """The trial and the context as its graders see them: with their own earlier verdicts and fingerprints."""
        version = context.fingerprint_of(trial, self.name)
        graders = {part.name: None if version is None else f"{version}/{part.name}" for part in self.parts}
        fingerprints = replace(context.fingerprints, graders={trial.target: graders})
        if (kept := trial.kept) is not None:
            verdict = kept.graders.get(self.name)
            kept = kept.with_fields(graders={} if verdict is None else verdict.parts)
        case = trial.case.model_copy(update={"graders": []})
        return replace(trial, kept=kept, case=case), replace(context, fingerprints=fingerprints)

    async def grade(self, trial: Trial, result: Result, context: GradingContext) -> GradingResult:
        """Run its graders up to the first that fails to give a verdict; see `GraderRunner.grade`."""
        trial, context = self._inside(trial, context)
        rows: dict[str, GraderRow] = {}
        usage, earlier_calls = NO_TOKENS, 0
        for part, shown in zip(self.parts, parts_of(self.spec), strict=True):
            if (kept := context.reusable(trial, part.name)) is not None:
                rows[part.name] = kept
                earlier_calls += kept.calls
                continue
            grading = await part.grade(trial, result, context)
            usage += grading.token_usage
            earlier_calls += grading.earlier_calls
            rows[part.name] = row = final_verdict(part.spec, grading.row).with_fields(
                fingerprint=context.fingerprint_of(trial, part.name),
                generation=context.fingerprints.generation,
                weight=part.spec.weight,
            )
            if row.error is not None:
                failed = self._row(rows).with_fields(error=f"{shown.name}: {row.error}", in_doubt=row.in_doubt)
                return replace(grading, row=failed, token_usage=usage, earlier_calls=earlier_calls)
        return GradingResult(self._combined(rows), usage, earlier_calls=earlier_calls)

    def _row(self, rows: dict[str, GraderRow]) -> GraderRow:
        """What is kept of the verdicts of its graders: those that took calls are not given again."""
        parts = {name: row for name, row in rows.items() if row.calls}
        return GraderRow(calls=sum(row.calls for row in rows.values()), parts=parts)

    def _combined(self, rows: dict[str, GraderRow]) -> GraderRow:
        checks = list(self._checks(rows))
        counted = [row for row in rows.values() if row.weight] or list(rows.values())
        scores = [(row.weight or 1.0, row.score or 0.0) for row in counted]
        if isinstance(self.spec, AllGrader):
            passed = all(row.passed for row in counted)
            score = sum(weight * score for weight, score in scores) / sum(weight for weight, _ in scores)
        else:
            passed = any(row.passed for row in counted)
            score = max(score for _, score in scores)
        return self._row(rows).with_fields(score=score, passed=passed, checks=checks)

    def _checks(self, rows: dict[str, GraderRow]) -> Iterator[Check]:
        for row, shown in zip(rows.values(), parts_of(self.spec), strict=True):
            yield Check(text=shown.name, passed=bool(row.passed), score=row.score, reason=row.reason)


def single_runners(graders: Iterable[GraderRunner]) -> Iterator[GraderRunner]:
    """Iterate over the graders, with those of a list, and of lists in it, in place of the list."""
    for grader in graders:
        yield from single_runners(grader.parts) if isinstance(grader, CombinedGraderRunner) else (grader,)
