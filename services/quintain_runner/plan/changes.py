"""Decides from fingerprints what becomes of a stored row. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, auto

from quintain.config.fingerprint import fingerprint_of
from quintain.graders import Case
from quintain_runner.plan.conversation import TrialConversation, most_asks
from quintain_runner.results.bill import SIMULATED_USER
from quintain_runner.results.counts import ANSWERED, NeededCalls
from quintain_runner.results.row import GraderRow, Row, RowFingerprints, RowStatus
from quintain_runner.results.store import KeyHashSet, key_hash
from quintain_runner.spec.graders import GraderSpec, judges_of


def input_fingerprint(case: Case) -> str:
    """The fingerprint of what decides the answer: the question or the messages, the system prompt, the settings, and
    what the user says later."""
    values = case.model_dump(mode="json", include={"question", "messages", "system_prompt"})
    if case.is_conversation:
        values |= case.model_dump(mode="json", include={"turns", "user"}, exclude_none=True)
    if case.settings is not None:
        values["settings"] = case.settings.model_dump(mode="json", exclude_none=True)
    return fingerprint_of(values)


def grading_fingerprint(case: Case) -> str:
    """The fingerprint of what only graders see: ``expected``, the order of the choices, and the fields that have no
    meaning of their own."""
    choices = set() if case.choices is None else {"choices"}
    return fingerprint_of(case.model_dump(mode="json", include={"expected", "metadata", *choices}))


def first_request(case: Case) -> str:
    """Return the hash of what a trial of a case asks first, whatever its target is."""
    if not case.is_conversation:
        return input_fingerprint(case)
    begun = TrialConversation(case)
    if begun.asks_user:
        return input_fingerprint(case.model_copy(update={"turns": None}))
    said = begun.messages(begun.next_question)
    return input_fingerprint(case.model_copy(update={"question": None, "messages": said, "turns": None, "user": None}))


class Occurrences:
    """Which of the cases, each under each prompt, that ask the same first each one is, in the order of the dataset.

    It takes 8 bytes for each, and more for those that are not the first.
    """

    def __init__(self) -> None:
        self._seen, self._counts, self._later = KeyHashSet(), Counter[int](), dict[int, int]()

    def add(self, case: Case, prompt: str | None) -> None:
        """Count a case as it is asked under a prompt."""
        if (asked := key_hash(first_request(case))) in self._seen:
            self._counts[asked] += 1
            self._later[key_hash(case.id, prompt or "")] = self._counts[asked] + 1
        else:
            self._seen.add(asked)

    def number(self, case: Case, prompt: str | None) -> int:
        """Return the number of a case under a prompt among those that ask the same first, from 1."""
        return self._later.get(key_hash(case.id, prompt or ""), 1) if self._later else 1


#: The change of a row whose case the dataset does not have any more.
NOT_IN_DATASET = "the case is not in the dataset"

#: The change of a row whose verdicts are of before the last `quintain rescore`.
RESCORED = "rescored"

#: The change of a row that holds a labeled answer on which no judge was asked.
NOT_JUDGED = "not judged yet"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFingerprints:
    """The fingerprints of a run's targets, and of its graders by target; None where one is not known.

    ``pairwise_graders`` compare rows that are made.
    ``judge_targets`` is the configured ``judge_target`` of each target.
    ``models`` are the models of targets by their fingerprints, of earlier commands too. ``generation`` counts the times
    that the run was graded again on purpose. ``keeps_other_graders``: the command selects graders, and the verdicts of
    others stay as they are.
    """

    targets: Mapping[str, str | None] = field(default_factory=dict)
    graders: Mapping[str, Mapping[str, str | None]] = field(default_factory=dict)
    pairwise_graders: Collection[str] = ()
    judge_targets: Mapping[str, str | None] = field(default_factory=dict)
    models: Mapping[str, str] = field(default_factory=dict)
    generation: int = 0
    keeps_other_graders: bool = False

    def graders_of(self, target: str, case: Case | None = None) -> Mapping[str, str | None]:
        """The graders' fingerprints by name, for answers of this target; with those of the case's own graders."""
        own = {} if case is None else {grader.name: self._own(grader, target) for grader in case.graders}
        return {**self.graders.get(target, {}), **own}

    def twins_before(self, target: str) -> int:
        """How many targets before this one are configured alike: their answers are not each other's."""
        names = list(self.targets)
        own = self.targets.get(target)
        before = names[: names.index(target)] if own is not None else ()
        return sum(self.targets[name] == own for name in before)

    def _own(self, grader: GraderSpec, target: str) -> str | None:
        judges = [self.targets.get(judge) for judge in judges_of(grader, target, self.judge_targets)]
        return None if None in judges else fingerprint_of([grader.fingerprint, *judges])

    def row_fingerprints(self, case: Case, target: str) -> RowFingerprints:
        """What a row of this case and target is made of now."""
        return RowFingerprints.unchecked(
            input=input_fingerprint(case),
            grading=grading_fingerprint(case),
            target=self.targets.get(target),
            user=None if case.user is None else self.targets.get(case.user.target),
        )


class Action(Enum):
    """What becomes of a trial when a run begins."""

    #: Its row stays.
    KEEP = auto()
    #: The answer of its row is graded again, without a call to the target.
    GRADE = auto()
    #: The target is asked.
    ASK = auto()
    #: It is not executed now: it waits for a command that selects it, or that may ask the target.
    WAIT = auto()
    #: Its answer had to be graded again, and the row does not hold it: nobody may be asked before the user decides.
    REFUSE = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class RerunPolicy:
    """Which rows are asked or graded again.

    ``answers_only``: no target is asked; kept answers are graded again, also those of a target that changed since.
    ``given_answers``: only judges are run, and it is no change that a target changed, because it was not asked.
    """

    rerun_errors: bool = True
    rerun_in_doubt: bool = False
    answers_only: bool = False
    given_answers: bool = False

    def should_rerun(self, status: RowStatus) -> bool:
        """Whether the trial that left an ungraded row is to be tried once more."""
        return self.rerun_errors if status is RowStatus.ERROR else self.rerun_in_doubt


@dataclass(frozen=True, slots=True)
class Decision:
    """What becomes of a trial, and which changes are the reason; none where there is only something left to do.

    ``keeps_answer`` says that the answer of the row is still wanted, and only its verdicts are not.
    """

    action: Action
    changes: tuple[str, ...] = ()
    keeps_answer: bool = False

    def waiting(self) -> Decision:
        """The decision for a trial that this command does not execute."""
        return self if self.action is Action.KEEP else replace(self, action=Action.WAIT)


def decide(row: Row | None, case: Case, target: str, fingerprints: RunFingerprints, policy: RerunPolicy) -> Decision:
    """What becomes of the trial that left this row, or none yet."""
    decision = Decision(Action.ASK) if row is None else _decide_on_row(row, case, target, fingerprints, policy)
    may_not_ask = policy.answers_only and decision.action is Action.ASK
    return decision.waiting() if may_not_ask else decision


def _decide_on_row(row: Row, case: Case, target: str, fingerprints: RunFingerprints, policy: RerunPolicy) -> Decision:
    asking, grading = _changes(row, case, target, fingerprints)
    asking = () if policy.given_answers and _asks_the_same(row, case) else asking
    if policy.answers_only and row.has_answer and grading and _asks_the_same(row, case):
        return _grade_again(row, (*grading, *asking))
    status = row.open_status
    is_kept = status in ANSWERED or not policy.should_rerun(status)
    if asking:
        return Decision(Action.ASK, asking)
    if grading:
        return _grade_again(row, grading)
    if is_kept:
        return Decision(Action.KEEP)
    changes = (NOT_JUDGED,) if policy.given_answers and not row.graders else ()
    return Decision(Action.GRADE if row.is_gradable else Action.ASK, changes)


def _asks_the_same(row: Row, case: Case) -> bool:
    """Whether the answer of a row is one to the case as it is now."""
    return row.fingerprints.input == input_fingerprint(case)


def _grade_again(row: Row, changes: tuple[str, ...]) -> Decision:
    """Grade the kept answer, or refuse to, if the row does not hold it."""
    return Decision(Action.GRADE if row.is_gradable else Action.REFUSE, changes, keeps_answer=True)


def needed_calls(
    action: Action, row: Row | None, case: Case, target: str, fingerprints: RunFingerprints
) -> NeededCalls:
    """What a trial needs of which this becomes; ``row`` is the one that it left, if any."""
    graders = tuple(name for name in fingerprints.graders_of(target, case) if name not in fingerprints.pairwise_graders)
    if action is Action.ASK:
        return NeededCalls(asks=most_asks(case), graders=graders)
    if action is not Action.GRADE:
        return NeededCalls()
    now = fingerprints.row_fingerprints(case, target)
    unfinished = [name for name in graders if reusable_grader_row(row, name, now, fingerprints, case) is None]
    # Of a jury that is the same only the missing votes are asked for.
    missing = {
        name: len(verdict.missing_votes)
        for name in unfinished
        if (verdict := unchanged_grader_row(row, name, now, fingerprints, case)) is not None and verdict.missing_votes
    }
    return NeededCalls(votes=sum(missing.values()), graders=tuple(name for name in unfinished if name not in missing))


def unchanged_grader_row(
    row: Row | None, name: str, current: RowFingerprints, fingerprints: RunFingerprints, case: Case | None = None
) -> GraderRow | None:
    """The result of a grader in a row; None where something of it changed since, or there is none."""
    if row is None or row.fingerprints.grading != current.grading or (verdict := row.graders.get(name)) is None:
        return None
    grader = fingerprints.graders_of(row.target, case).get(name)
    return verdict if (verdict.fingerprint, verdict.generation) == (grader, fingerprints.generation) else None


def reusable_grader_row(
    row: Row | None, name: str, current: RowFingerprints, fingerprints: RunFingerprints, case: Case | None = None
) -> GraderRow | None:
    """The verdict of a row that need not be given again; None where something of it changed or is missing."""
    verdict = unchanged_grader_row(row, name, current, fingerprints, case)
    return None if verdict is None or verdict.error is not None or verdict.missing_votes else verdict


def _changes(
    row: Row, case: Case, target: str, fingerprints: RunFingerprints
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Why the target must be asked again, and why the answer must be graded again."""
    was, now = row.fingerprints, fingerprints.row_fingerprints(case, target)
    graders = fingerprints.graders_of(target, case)
    verdicts = {
        name: one for name, one in row.graders.items() if name in graders or not fingerprints.keeps_other_graders
    }
    rescored = (RESCORED,) if any(one.generation != fingerprints.generation for one in verdicts.values()) else ()
    asking: list[str] = []
    if was.target != now.target:
        asking.append(_target_change(f"target {target}", was.target, now.target, fingerprints))
    if case.user is not None and was.user != now.user:
        asking.append(_target_change(f"{SIMULATED_USER} {case.user.target}", was.user, now.user, fingerprints))
    if was.input != now.input:
        asking.append("question changed" if row.prompt is None else f"question or prompt {row.prompt} changed")
    if not row.has_answer:
        # There is no answer that anything could be graded of.
        return tuple(asking), ()
    grading = [*rescored] if was.grading == now.grading else [*rescored, "expected changed"]
    for name, fingerprint in graders.items():
        verdict = row.graders.get(name)
        if verdict is None and row.status in ANSWERED and name not in fingerprints.pairwise_graders:
            grading.append(f"new grader {name}")
        elif verdict is not None and verdict.fingerprint != fingerprint:
            grading.append(f"grader {name} changed")
    grading.extend(f"grader {name} removed" for name in verdicts if name not in graders)
    return tuple(asking), tuple(grading)


def _target_change(who: str, was: str | None, now: str | None, fingerprints: RunFingerprints) -> str:
    if was is None or now is None:
        return f"whether {who} changed is not known"
    before, after = fingerprints.models.get(was), fingerprints.models.get(now)
    if before is None or after is None or before == after:
        return f"{who} changed"
    return f"{who}: model {before} → {after}"
