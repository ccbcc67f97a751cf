"""What a command does with the rows of earlier ones: who is asked now, what changed, and what follows for each row.

All is known and written down before the first call.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from quintain.contracts.session import Info
from quintain.errors import ConfigError
from quintain.graders import Case
from quintain_runner.engine.comparisons import Comparisons, pairwise_graders
from quintain_runner.engine.run_settings import RunSettings
from quintain_runner.graders.base import GraderRunner, judge_place, judge_references
from quintain_runner.graders.factory import grader_fingerprints
from quintain_runner.plan.changes import (
    NOT_IN_DATASET,
    NOT_JUDGED,
    Action,
    Decision,
    Occurrences,
    RerunPolicy,
    RunFingerprints,
    decide,
    needed_calls,
)
from quintain_runner.plan.scoring import Scoring
from quintain_runner.plan.trials import PlannedQuestion, grader_limits, planned_questions
from quintain_runner.report.run_file import RunFile
from quintain_runner.results.counts import ANSWERED, CallsLeft, NeededCalls
from quintain_runner.results.row import TARGET_CHANGED, Row, RowKey, RowStatus, column_name
from quintain_runner.results.store import KeyHashSet, ResultFile, key_hash

#: So many changed rows are written at once.
_BATCH_ROWS = 500

#: So many rows that cannot be graded again are named.
_NAMED_ROWS = 5


async def run_fingerprints(
    run: RunSettings, info: Info, graders: tuple[GraderRunner, ...], record: RunFile, env: dict[str, str]
) -> RunFingerprints:
    """The fingerprints of everybody who is asked in this run, as workers registered them, and of the graders.

    Targets that this command does not call are in it if they are served now.
    """
    targets = record.configuration.targets
    served = [name for name in targets if name in run.targets or name in info.available_targets]
    names = dict.fromkeys([*served, *(name for _, name in target_references(run, served))])
    known: dict[str, str | None] = {name: (info.target_fingerprints or {}).get(name) for name in names}
    target_models = run.models
    models = {one: target_models[name] for name, one in known.items() if one and name in target_models}
    recording = run.options.recording
    of_graders = await grader_fingerprints(
        run.evaluation, graders, run.judge_targets, known, env if recording is None else None
    )
    if recording is not None:
        recorded = recording.run.graders
        of_graders = {
            target: {name: recorded.get(target, {}).get(name, one) for name, one in own.items()}
            for target, own in of_graders.items()
        }
    return RunFingerprints(
        targets=known,
        graders=of_graders,
        pairwise_graders=frozenset(grader.name for grader in pairwise_graders(run.evaluation)),
        judge_targets=run.judge_targets,
        models={**record.fingerprints.models, **models},
        generation=record.generation + run.options.regrades,
        keeps_other_graders=bool(run.evaluation.only_graders),
    )


def target_references(run: RunSettings, targets: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Each of these targets, of the users who speak to them and of their judges, with the place that names it; only
    the judges where the answers were given."""
    path = run.evaluation.path
    if not run.options.rerun_policy.given_answers:
        for target in targets:
            yield f"{path}: targets", target
        yield from run.dataset.references(targets, run.judge_targets)
    for index, judge in judge_references(run.evaluation, targets, run.judge_targets):
        yield judge_place(run.evaluation, index), judge


@dataclass(slots=True)
class RerunPlan:
    """How many trials are kept, graded again, asked again and asked, or judged as labeled, for the first time, and why.

    ``kept_without_score`` of the kept rows are errors or in doubt, ``recomputed`` of them have another score or
    other tags, because a weight or ``by`` changed.
    ``left_out`` rows are of cases that the dataset does not have any more, and ``not_selected`` trials wait for a
    command that selects them. ``refused`` rows had to be graded again and do not hold their answer; ``refused_keys``
    are the first of them. ``unknown`` are the targets whose workers report no fingerprint: whether they changed, nobody
    knows.
    ``different_seconds`` says of the targets that workers serve differently, how long they have.
    """

    kept: int = 0
    kept_without_score: int = 0
    recomputed: int = 0
    graded_again: int = 0
    asked_again: int = 0
    new: int = 0
    left_out: int = 0
    not_selected: int = 0
    refused: int = 0
    refused_keys: list[RowKey] = field(default_factory=list)
    #: The first of the rows that are left out.
    left_out_keys: list[RowKey] = field(default_factory=list)
    #: Which rows are asked or graded again.
    policy: RerunPolicy = field(default_factory=RerunPolicy)
    #: The calls that this command needs.
    calls_left: CallsLeft = field(default_factory=CallsLeft)
    #: The number of trials that this command executes, by column.
    pending: Counter[str] = field(default_factory=Counter)
    grading_reasons: Counter[str] = field(default_factory=Counter)
    asking_reasons: Counter[str] = field(default_factory=Counter)
    #: The rows that are to be compared with others.
    compared: int = 0
    unknown: tuple[str, ...] = ()
    different_seconds: Mapping[str, float] = field(default_factory=dict)
    #: Which cases ask the same first.
    occurrences: Occurrences = field(default_factory=Occurrences)
    _pending_cases: KeyHashSet = field(default_factory=KeyHashSet)
    _left: KeyHashSet = field(default_factory=KeyHashSet)

    @property
    def has_rows(self) -> bool:
        """Whether there are rows of earlier commands."""
        return bool(self.kept or self.graded_again or self.asked_again or self.left_out)

    def is_pending(self, case_id: str, target: str) -> bool:
        """Whether this command executes any trial of this case and target."""
        return key_hash(case_id, target) in self._pending_cases

    def leave(self, key: RowKey) -> None:
        """Note that the row of this key leaves the results."""
        self._left.add(key_hash(*map(str, key)))

    def has_left(self, key: RowKey) -> bool:
        """Whether the row of this key leaves the results, or has left."""
        return key_hash(*map(str, key)) in self._left

    @property
    def has_leaving(self) -> bool:
        """Whether any row leaves the results."""
        return len(self._left) > 0

    def add(self, key: RowKey, row: Row | None, decision: Decision, needed: NeededCalls) -> None:
        """Count a trial, the row that it has, and the calls that it needs."""
        changes = decision.changes
        if decision.action in (Action.ASK, Action.GRADE):
            column = column_name(key.target, key.prompt)
            self.pending[column] += 1
            self.calls_left.add(column, needed)
            self._pending_cases.add(key_hash(key.case_id, key.target))
        if decision.action is Action.WAIT:
            self.not_selected += 1
        elif decision.action is Action.REFUSE:
            self.refused += 1
            self.refused_keys += [key] if len(self.refused_keys) < _NAMED_ROWS else []
        elif row is None or NOT_JUDGED in changes:
            self.new += 1
        elif decision.action is Action.KEEP:
            self.kept += 1
            self.kept_without_score += row.status not in ANSWERED
        elif decision.action is Action.GRADE:
            self.graded_again += 1
            what = "votes missing" if row.status is RowStatus.GRADED else "no verdict"
            self.grading_reasons.update(changes or (what,))
        else:
            self.asked_again += 1
            self.asking_reasons.update(changes or ("no answer",))

    def add_comparisons(self, column: str, needed: NeededCalls) -> None:
        """Count a row that lacks comparisons, and the calls that they need."""
        self.compared += 1
        self.calls_left.add(column, needed)

    def warnings(self) -> Iterator[str]:
        """A sentence for each target that workers serve differently."""
        for name, seconds in self.different_seconds.items():
            yield (
                f"workers have served target {name} with different configurations for {seconds:.0f} s: only answers of "
                f"the one that changed last become rows, others are charged as {TARGET_CHANGED}; `quintain status` "
                "names the workers"
            )

    def to_wire(self) -> dict[str, int]:
        """The counts as ``run.json`` has them."""
        return {
            "kept": self.kept,
            "recomputed": self.recomputed,
            "gradedAgain": self.graded_again,
            "askedAgain": self.asked_again,
            "new": self.new,
            "leftOut": self.left_out,
            "notSelected": self.not_selected,
            "answers": self.calls_left.answers,
            "mostCalls": self.calls_left.most,
            **({"compared": self.compared} if self.compared else {}),
        }

    def lines(self) -> Iterator[str]:
        """The plan in words, a line, and one more for what is not known; nothing where no row is of before."""
        if not self.has_rows and not self.not_selected:
            return
        without_score = f" ({self.kept_without_score} without a score)" if self.kept_without_score else ""
        counted = (
            (self.recomputed, "of them recomputed (weight or by changed)"),
            (self.graded_again, f"graded again{_reasons(self.grading_reasons)}"),
            (self.asked_again, f"asked again{_reasons(self.asking_reasons)}"),
            (self.new, "labeled, to judge" if self.policy.given_answers else "new"),
            (self.left_out, f"left out ({NOT_IN_DATASET})"),
            (self.compared, "to compare"),
            (self.not_selected, "not selected"),
        )
        parts = [f"{self.kept} rows kept{without_score}", *(f"{count} {what}" for count, what in counted if count)]
        yield " · ".join(parts)
        if self.unknown and self.kept:
            yield (
                f"no worker reports a fingerprint of {', '.join(self.unknown)}: whether that changed is not known; "
                "--fresh asks everything"
            )


@dataclass(frozen=True, slots=True)
class Planner:
    """Decides on every trial of a run, from the rows that there are.

    ``comparisons`` have the targets of all commands. ``holds`` says of which rows the store has the answer. Rows of
    targets without a known place in the fingerprints are not looked at: they cannot be called now.
    """

    run: RunSettings
    results: ResultFile
    comparisons: Comparisons
    holds: Callable[[Row], bool]

    async def plan(self) -> RerunPlan:
        """Decide, and take each row out of the results that is not wanted as it is, so that no table has it.

        A row whose answer is still wanted, and is not in the store, stays until it is graded again. Returns when all
        is on the disk: nothing may be asked before. Raises `ConfigError`, and changes nothing, if
        selected rows have to be graded again that do not hold their answers.
        """
        if self.results.resume_state.rows_without_content:
            await asyncio.to_thread(self._refuse_ungradable)
        unknown = tuple(name for name, one in self.comparisons.fingerprints.targets.items() if one is None)
        plan = RerunPlan(
            unknown=unknown,
            policy=self.run.options.rerun_policy,
            calls_left=CallsLeft(grader_limits(self.run.evaluation, self.run.dataset.own_graders.limits)),
        )
        replacements = self._replacements(plan)
        while batch := await asyncio.to_thread(lambda: list(islice(replacements, _BATCH_ROWS))):
            await self.results.replace(batch)
        if plan.has_leaving:
            await self.results.take_out(plan.has_left)
        return plan

    def _refuse_ungradable(self) -> None:
        plan = RerunPlan()
        for _ in self._replacements(plan):
            # Nothing is written before it is known that nothing is refused.
            pass
        if plan.refused:
            names = ", ".join(f"{key.case_id} · {key.target}" for key in plan.refused_keys)
            more = f" and {plan.refused - len(plan.refused_keys)} more" if plan.refused > len(plan.refused_keys) else ""
            most = plan.refused * (
                1 + sum(grader_limits(self.run.evaluation, self.run.dataset.own_graders.limits).values())
            )
            calls = f"{plan.refused} to {most}" if most > plan.refused else str(most)
            raise ConfigError(
                f"{self.results.path}: {plan.refused} rows have to be graded again and do not hold their answers "
                f"(written with --no-content): {names}{more}. To ask for these answers again "
                f"costs {calls} calls: `quintain run --fresh` asks for all"
            )

    def _replacements(self, plan: RerunPlan) -> Iterator[tuple[Row, Row]]:
        """Rows with another score or other tags, and what they are to be from now on."""
        case_ids, found, scoring = KeyHashSet(), 0, Scoring.of(self.run.evaluation.spec)
        with self.run.open_cases() as cases:
            for case, is_selected in self.run.selection.cases.mark_cases(cases):
                case_ids.add(key_hash(case.id))
                for prompt in self.run.evaluation.prompts:
                    plan.occurrences.add(prompt.apply(case), prompt.name)
                for question, row, decision in self._decide_on_case(plan, case, is_selected=is_selected):
                    found += 1
                    if decision.action is Action.KEEP and (scored := scoring.applied_to(row, question.case)) != row:
                        plan.recomputed += 1
                        yield row, scored
        if found < self.results.rows_at_opening_count:
            for row in self.results.rows_at_opening():
                if key_hash(row.case_id) not in case_ids:
                    plan.left_out += 1
                    plan.left_out_keys += [row.key] if len(plan.left_out_keys) < _NAMED_ROWS else []
                    plan.leave(row.key)

    def _decide_on_case(
        self, plan: RerunPlan, case: Case, *, is_selected: bool
    ) -> Iterator[tuple[PlannedQuestion, Row, Decision]]:
        """Decide on the trials of a case; the rows that there are, each with what is asked and the decision."""
        evaluation, options = self.run.evaluation, self.run.options
        for question in planned_questions([case], evaluation.prompts, evaluation.spec.repeats):
            planned: dict[str, tuple[Action, Row | None]] = {}
            for target in self.comparisons.targets:
                if target not in self.comparisons.fingerprints.targets:
                    continue
                key = RowKey(case.id, target, question.repeat, question.prompt)
                row = self.results.find(key)
                decision = decide(row, question.case, target, self.comparisons.fingerprints, options.rerun_policy)
                if not (is_selected and self.run.selection.has_column(target, question.prompt)):
                    decision = decision.waiting()
                needed = needed_calls(decision.action, row, question.case, target, self.comparisons.fingerprints)
                plan.add(key, row, decision, needed)
                is_unwanted = row is not None and bool(decision.changes) and not decision.keeps_answer
                planned[target] = decision.action, None if is_unwanted else row
                if row is not None:
                    if is_unwanted or (decision.changes and self.holds(row)):
                        plan.leave(row.key)
                    yield question, row, decision
            for target, needed in self.comparisons.missing(question, planned):
                if is_selected and self.run.selection.has_column(target, question.prompt):
                    plan.add_comparisons(column_name(target, question.prompt), needed)


def _reasons(counts: Mapping[str, int]) -> str:
    return f" ({', '.join(counts)})"
