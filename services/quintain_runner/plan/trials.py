"""The trials of a run, the part of them that one command executes, and the score of an answer. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from types import MappingProxyType
from typing import NamedTuple

from quintain.config.file_errors import suggestion
from quintain.contracts.invoke import NO_TOKENS, ChatMessage, InvokeRequest, TokenUsage
from quintain.contracts.message import Message
from quintain.errors import ConfigError
from quintain.graders import Case
from quintain_runner.plan.address import request_id
from quintain_runner.plan.changes import Action, Occurrences, RerunPolicy, RunFingerprints, decide, first_request
from quintain_runner.plan.conversation import TrialConversation, opening, planned_ids
from quintain_runner.plan.dataset import DatasetStats
from quintain_runner.results.row import Row, RowFingerprints, RowKey, RowStatus, column_name
from quintain_runner.spec.asking_graders import PairwiseGrader
from quintain_runner.spec.evaluation import Evaluation
from quintain_runner.spec.graders import CommandGrader, FunctionGrader, GraderSpec, ProgramGrader, max_calls_of
from quintain_runner.spec.prompts import Prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One repeat of one case on one target, under one prompt.

    ``case`` is the case as it is asked: with the texts of the prompt. ``prompt`` is the prompt's name, or None.
    ``repeat`` counts from 1. ``previous`` is the trial's latest stored row, or None.
    ``kept`` is that row if its answer is graded again without a call. ``fingerprints`` are what its row is made of;
    that of the target is None if it is not known.

    ``has_left`` says that the results do not have the previous row any more.

    ``answered_at`` is the time at which the answer arrived; it is None before that, and for an answer that was stored
    or cached.

    ``opponents`` are the rows with whose answers its kept one is compared, by pairwise grader and by what the results
    call each. A trial that has any is graded by these graders alone, and all its other verdicts stay.

    ``occurrence`` counts, from 1, the cases that ask the same first, and ``twin`` the targets before this one that are
    configured alike.
    """

    case: Case
    target: str
    repeat: int
    fingerprints: RowFingerprints
    prompt: str | None = None
    previous: Row | None = None
    kept: Row | None = None
    has_left: bool = False
    answered_at: datetime | None = None
    conversation: TrialConversation | None = None
    opponents: Mapping[str, Mapping[str, Row]] = field(default_factory=dict)
    occurrence: int = 1
    twin: int = 0

    @property
    def number(self) -> str:
        """The number of what it asks its target among the equal requests of the run."""
        return f"{self.occurrence}.{self.repeat}.{self.twin}"

    @property
    def number_of_pairs(self) -> str:
        """The number of what is asked of its answer and others to the same question."""
        return request_id("later", first_request(self.case), self.occurrence, self.repeat)

    @property
    def later_number(self) -> str:
        """The number of what is asked of its answer: no two trials share a verdict."""
        return request_id("later", first_request(self.case), self.occurrence, self.repeat, self.target)

    @property
    def times_asked(self) -> int:
        """How often its target is asked the same with this try; what was asked of another target is not counted."""
        before = self.previous
        return 1 if before is None or before.fingerprints != self.fingerprints else self.tries

    @property
    def graded_case(self) -> Case:
        """The case as its graders get it: with the conversation that was held, if it was."""
        return self.case if self.conversation is None else self.conversation.graded_case

    def begun_conversation(self) -> TrialConversation:
        """The conversation from which the trial goes on: that of the row before, if its last turn has no answer.

        Not one that a worker holds, or that no turn can follow, nor one with another question or target.
        """
        row = self.previous
        if row is None or row.output is not None or row.fingerprints != self.fingerprints:
            return TrialConversation(self.case)
        begun = TrialConversation.of_row(self.case, row)
        return begun if begun.can_be_resumed else TrialConversation(self.case)

    @property
    def key(self) -> RowKey:
        """The key of the trial's row."""
        return RowKey(self.case.id, self.target, self.repeat, self.prompt)

    @property
    def column(self) -> str:
        """The column of every table that its row is in."""
        return column_name(self.target, self.prompt)

    @property
    def key_parts(self) -> list[str | int]:
        """The key as a part of request ids."""
        return [part for part in self.key if part is not None]

    @property
    def tries(self) -> int:
        """The number of this try, from 1. Grading an answer again is no new try."""
        if self.previous is None:
            return 1
        return self.previous.tries if self.kept is not None else self.previous.tries + 1

    @property
    def superseded(self) -> Row | None:
        """The row of the results that its row supersedes."""
        return None if self.has_left else self.previous

    @property
    def earlier_calls(self) -> int:
        """The calls of all earlier tries."""
        return 0 if self.previous is None else self.previous.calls

    @property
    def earlier_usage(self) -> TokenUsage:
        """The tokens of all earlier tries."""
        return NO_TOKENS if self.previous is None else self.previous.token_usage

    def after_expired_reply(self, calls: int = 1) -> Trial:
        """The next try of a trial whose calls were charged and answered, and whose answer to the last is deleted."""
        previous = self.previous or Row(
            case_id=self.case.id,
            target=self.target,
            prompt=self.prompt,
            repeat=self.repeat,
            status=RowStatus.ERROR,
            fingerprints=self.fingerprints,
        )
        return replace(self, previous=previous.with_fields(tries=self.tries, calls=previous.calls + calls))

    @property
    def request_id(self) -> str:
        """The call's id, made of what it asks and of the target's fingerprint: after a crash it is the same call, and
        charged once; of a changed question, target or simulated user it is another."""
        made_of = self.fingerprints
        return request_id("ask", self.key_parts, self.tries, made_of.input, made_of.target, made_of.user)

    def id_of_grading(self, grader: str, content: object, *version: object) -> str:
        """The id of a call about its answer, known before that, so that the call can be reserved.

        It is made of the id of the answer, or of the text of one that is kept, and of ``content``, which is asked
        beside it. A call that is to be another has another ``version``.
        """
        answer = self.request_id if self.kept is None else self.kept.output or ""
        # A conversation that was begun again has other answers.
        attempt = 1 if self.conversation is None else self.conversation.attempt
        return request_id("grade", self.key_parts, self.tries, grader, content, answer, attempt, version)

    @property
    def request_ids(self) -> list[str]:
        """The ids of the calls that it takes at most without its graders, if no conversation is lost."""
        if not self.case.is_conversation:
            return [self.request_id]
        return planned_ids(self.case, self.request_id, self.begun_conversation().number)

    @property
    def request(self) -> InvokeRequest:
        """The request that is sent to the target; of a conversation the next one, as far as it is known."""
        if not self.case.is_conversation:
            return request_of(self.case, self.target, self.repeat)
        begun, user = self.conversation or self.begun_conversation(), self.case.user
        question = user.goal if user is not None and begun.asks_user else begun.next_question
        return begun.request(question, self.target, self.repeat, self.request_id)


def request_of(case: Case, target: str, repeat: int) -> InvokeRequest:
    """The request that asks a target about a case; of a conversation about all that is known of it before."""
    if case.is_conversation:
        said = [*(case.turns or ()), *([] if case.user is None else [case.user.goal])]
        case = case.model_copy(
            update={
                "question": None,
                "messages": [*opening(case), *(ChatMessage(role="user", content=text) for text in said)],
            }
        )
    return InvokeRequest(
        question=case.question,
        messages=case.messages,
        system_prompt=case.system_prompt,
        target=target,
        eval_case_id=case.id,
        attempt=repeat,
        settings=case.settings,
    )


class PlannedQuestion(NamedTuple):
    """What each target is asked: the case under one prompt, the prompt's name, and the repeat from 1.

    ``occurrence`` counts the cases that ask the same first.
    """

    case: Case
    prompt: str | None
    repeat: int
    occurrence: int = 1


#: Gives the stored row of a key, or None.
FindRow = Callable[[RowKey], Row | None]


def pending_trials(
    questions: Iterable[PlannedQuestion],
    target: str,
    *,
    find_row: FindRow,
    rerun_policy: RerunPolicy,
    fingerprints: RunFingerprints | None = None,
    has_left: Callable[[RowKey], bool] = lambda _: False,
) -> Iterator[Trial]:
    """Iterate over the trials of a target that still have to be executed, in the order of the questions.

    ``find_row`` returns the stored row of a key, and ``rerun_policy`` says which rows are executed again.
    ``fingerprints`` are those of the run's targets and graders. ``has_left`` says of which rows the results have none
    any more.
    """
    fingerprints = fingerprints or RunFingerprints()
    twin = fingerprints.twins_before(target)
    for case, prompt, repeat, occurrence in questions:
        row = find_row(RowKey(case.id, target, repeat, prompt))
        decision = decide(row, case, target, fingerprints, rerun_policy)
        if decision.action not in (Action.ASK, Action.GRADE):
            continue
        made_of = fingerprints.row_fingerprints(case, target)
        if kept := row if decision.action is Action.GRADE else None:
            made_of = made_of.with_fields(target=kept.target_fingerprint, user=kept.fingerprints.user)
        yield Trial(
            case=case,
            target=target,
            repeat=repeat,
            fingerprints=made_of,
            prompt=prompt,
            # Of an answer that is not wanted any more nothing is counted with the next one.
            previous=None if decision.changes and kept is None else row,
            kept=kept,
            has_left=row is not None and has_left(row.key),
            occurrence=occurrence,
            twin=twin,
        )


def planned_questions(
    cases: Iterable[Case], prompts: Sequence[Prompt], repeats: int, occurrences: Occurrences | None = None
) -> Iterator[PlannedQuestion]:
    """Everything that each target is asked, in the order of the dataset."""
    for case in cases:
        for prompt in prompts:
            asked = prompt.apply(case)
            occurrence = 1 if occurrences is None else occurrences.number(case, prompt.name)
            for repeat in range(1, repeats + 1):
                yield PlannedQuestion(asked, prompt.name, repeat, occurrence)


def choose_targets(evaluation: Evaluation, configured: Sequence[str], only: Sequence[str] = ()) -> tuple[str, ...]:
    """The targets to evaluate, without duplicates.

    They are ``only`` (the ``--target`` options) if given, else the targets of the evaluation file, else the single one
    of ``configured``. Raises `ConfigError` if no target is selected or one is unknown.
    """
    allowed = evaluation.spec.targets or list(configured)
    chosen = list(only) or evaluation.spec.targets or (list(configured) if len(configured) == 1 else [])
    if not chosen:
        raise ConfigError(
            f"{evaluation.path}: it names no targets, and {len(configured)} are configured "
            f"({', '.join(configured)}); add targets: [...] or give --target"
        )
    for name in chosen:
        if name not in allowed or name not in configured:
            known = configured if name in allowed else [target for target in allowed if target in configured]
            raise ConfigError(f"{evaluation.path}: unknown target {name!r}{suggestion(name, known)}")
    return tuple(dict.fromkeys(chosen))


class CallsEstimate(Message):
    """The number of calls of a whole run.

    ``answers`` are the calls of the targets themselves, and of the users who speak to them. ``most`` is the total if
    every grader uses its limit, and ``typical`` is the expected total, or None if a grader's own code decides how often
    it calls.
    """

    answers: int
    most: int
    typical: int | None = None


def estimate_calls(
    evaluation: Evaluation, *, trials: int, asks: int | None = None, targets: int = 1, own_calls: int = 0
) -> CallsEstimate:
    """The calls of this many trials: the estimate that `quintain check` and `quintain run` show, and the default
    budget of a run. ``asks`` are those of the targets and of simulated users, by default one for each trial. The trials
    are of so many ``targets``, whose answers are compared. ``own_calls`` are those of the cases' own graders."""
    asks = trials if asks is None else asks
    pairwise = [grader for grader in evaluation.graders if isinstance(grader, PairwiseGrader)]
    each = sum(grader_limits(evaluation).values()) - len(pairwise)
    most = asks + own_calls + trials * each + trials // targets * sum(grader.most_calls(targets) for grader in pairwise)
    # A grader that may call once is assumed to do so; a higher limit does not say how often it calls.
    is_known = all(grader.target.max_calls <= 1 for grader in calling_graders(evaluation))
    return CallsEstimate(answers=asks, most=most, typical=most if is_known else None)


def estimate_dataset(evaluation: Evaluation, dataset: DatasetStats, *, cases: int, targets: int) -> CallsEstimate:
    """The calls of so many cases of a dataset, by all these targets."""
    asks = dataset.asks_of(cases, len(evaluation.asked_prompts)) * evaluation.spec.repeats * targets
    trials = evaluation.trials_of(cases, targets=targets)
    own_calls = dataset.grader_calls_of(cases) * evaluation.trials_of(1, targets=targets)
    return estimate_calls(evaluation, trials=trials, asks=asks, targets=targets, own_calls=own_calls)


def grader_limits(evaluation: Evaluation, own: Mapping[str, int] = MappingProxyType({})) -> dict[str, int]:
    """The most calls that one execution of each grader can make; ``own`` are those of the cases' own graders."""
    return {**own, **{grader.name: max_grader_calls(evaluation, grader) for grader in evaluation.graders}}


def max_grader_calls(evaluation: Evaluation, grader: GraderSpec) -> int:
    """The most calls that one execution of a grader can make; 0 if it is known to take no session."""
    return 0 if grader.name in evaluation.graders_without_session else max_calls_of(grader)


def calling_graders(evaluation: Evaluation) -> list[ProgramGrader]:
    """The graders whose own code may call targets."""
    programs = [grader for grader in evaluation.graders if isinstance(grader, CommandGrader | FunctionGrader)]
    return [grader for grader in programs if max_grader_calls(evaluation, grader)]


_NO_WORKER = "; no worker has registered a target: start one with `quintain serve worker`"


def check_targets_available(target_references: Iterable[tuple[str, str]], available: Sequence[str]) -> None:
    """Check, before any call is made, that the session may call every target that the evaluation names.

    ``target_references`` are pairs of the place that names a target (for the message) and the target; ``available`` are
    the targets of the session. Raises `ConfigError` with one line for each unknown target.
    """
    errors = [
        f"{where}: unknown target {name!r}{suggestion(name, available) if available else _NO_WORKER}"
        for where, name in target_references
        if name not in available
    ]
    if errors:
        raise ConfigError("\n".join(dict.fromkeys(errors)))
