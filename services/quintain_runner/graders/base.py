"""What graders share: their protocol, the context that they run in, and the retries of calls."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol, TypeVar

from quintain.client.client import Client
from quintain.client.transport import DEFAULT_DEADLINE_SECONDS
from quintain.config.prices import Price
from quintain.contracts.invoke import JsonObject, Result, TokenUsage
from quintain.contracts.money import CostTerms, picodollars
from quintain.contracts.session import OpenSession, SessionOpened
from quintain.contracts.values import MAX_DEADLINE_SECONDS
from quintain.errors import (
    BudgetUnavailable,
    Expired,
    Fault,
    GatewayUnavailable,
    Overloaded,
    QuintainError,
    Rejected,
    ReplyTooLarge,
    Throttled,
)
from quintain_runner.plan.address import AnswerMissing, Answers, NumberedRequest, Saved
from quintain_runner.plan.changes import RunFingerprints, reusable_grader_row
from quintain_runner.plan.scoring import Scoring
from quintain_runner.plan.trials import Trial
from quintain_runner.results.row import GRADER_FAILED, GraderRow
from quintain_runner.spec.asking_graders import JudgeGrader, SimilarGrader
from quintain_runner.spec.evaluation import Evaluation
from quintain_runner.spec.graders import GraderSpec, judges_of

#: Charged faults whose outcome is known: the provider answered, and the answer is of no use.
ANSWERED_FAULTS = (Rejected, ReplyTooLarge)

#: The errors after which an uncharged call is retried, and how often. Throttled and Expired have few retries, because
#: each of them already waited for a whole deadline. Provider errors are not retried, because the worker has done that;
#: nor is a lost connection to the broker, because the bus reconnects by itself.
MAX_RETRIES: Final[dict[type[QuintainError], int]] = {
    Overloaded: 40,
    GatewayUnavailable: 40,
    BudgetUnavailable: 10,
    Throttled: 3,
    Expired: 3,
}

#: The first and the longest pause before a retry, in seconds; pauses grow exponentially and are jittered.
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.2, 15.0

Returned = TypeVar("Returned")


def is_in_doubt(fault: Fault) -> bool:
    """Whether a call ended without an answer and may have been charged: to ask again may be charged again."""
    return fault.charged is not False and not isinstance(fault, ANSWERED_FAULTS)


def ignore_retry(_: QuintainError) -> None:
    """Do nothing: the default of ``on_retry`` in `call_with_retry`."""


class CallWaits:
    """How calls of a run wait for the quotas of their targets; here no target has one."""

    def line_seconds(self, target: str) -> float:
        """How long a call of this target may wait in its quota's line, besides the time that it takes."""
        del target
        return 0.0

    def resumable(self, target: str, error: QuintainError) -> bool:
        """Whether an uncharged call that ended with this error waits for its quota, and is repeated without limit."""
        del target, error
        return False

    def note_answer(self, target: str) -> None:
        """Note that a target answered a call."""

    async def retry_after_quota(self, target: str, fault: Fault) -> bool:
        """Whether the call that ended with this fault was one of an outage, at whose end its target is tried again."""
        del target, fault
        return False


def never(_: QuintainError) -> bool:
    """Return False: the default of ``resumable`` in `call_with_retry`."""
    return False


async def call_with_retry(
    call: Callable[[], Awaitable[Returned]],
    on_retry: Callable[[QuintainError], None] = ignore_retry,
    resumable: Callable[[QuintainError], bool] = never,
) -> Returned:
    """Await ``call()`` and return its result, repeating it after the errors in `MAX_RETRIES`; raises the last error.

    Charged calls are not repeated. A server's ``retry_after_ms`` is added to the pause. ``on_retry`` is called with
    each error that is followed by a retry; ``resumable`` says after which errors the number of retries has no limit.
    Every call must use the same request id, or be safe to execute twice.

    Example::

        result = await call_with_retry(lambda: client.send(request, request_id=request_id))
    """
    failure_counts: dict[type[QuintainError], int] = {}
    while True:
        try:
            return await call()
        except (Fault, GatewayUnavailable) as error:
            failure_counts[type(error)] = failure_counts.get(type(error), 0) + 1
            # A call whose charge is unknown is asked for again: its request id is the same, so it is charged once.
            charged, retry_after_ms = (
                (error.charged, error.retry_after_ms) if isinstance(error, Fault) else (False, None)
            )
            if charged or (failure_counts[type(error)] > MAX_RETRIES.get(type(error), 0) and not resumable(error)):
                raise
            on_retry(error)
        max_delay_seconds = min(FIRST_PAUSE_SECONDS * 2 ** min(sum(failure_counts.values()), 20), LONGEST_PAUSE_SECONDS)
        # Jittered, so that calls that were rejected together are not retried together.
        await asyncio.sleep((retry_after_ms or 0) / 1000 + random.uniform(max_delay_seconds / 2, max_delay_seconds))  # noqa: S311 -- no secret


#: How much longer a session that is opened before its trial begins lives than one that is opened for its grader, in
#: seconds: the time for the answer, and for the graders before it.
SESSION_LEAD_SECONDS = 1800.0


@dataclass(frozen=True, slots=True)
class PlannedCalls:
    """Calls that a grader will make: the one of ``request_id``, or those of a session that is opened for it.

    The one is a call of ``target``, whose request has ``body_bytes`` beside the answer. Of the answer, and with
    ``shows_steps`` of its steps, it has ``max_shown_bytes`` at most.
    """

    request_id: str | None = None
    session: OpenSession | None = None
    target: str = ""
    body_bytes: int = 0
    max_shown_bytes: int | None = None
    shows_steps: bool = False

    @property
    def reserved_calls(self) -> int:
        """How many calls of its session are reserved before the trial begins."""
        if self.session is None:
            return 0
        reserve = self.session.reserve
        return (self.session.max_calls if reserve is True else reserve) or 0

    def most_cost(
        self, costs: Mapping[str, CostTerms], body_bytes: int, answer_bytes: int, steps_bytes: int = 0
    ) -> int:
        """Return the most that the calls cost, in picodollars, for a question, an answer and steps of so many bytes.

        What a program shows its judge is not known: the question and the answer, as a rule.
        """
        if self.session is None:
            shown_bytes = answer_bytes + (steps_bytes if self.shows_steps else 0)
            if self.max_shown_bytes is not None:
                shown_bytes = min(shown_bytes, self.max_shown_bytes)
            terms, shown_bytes, calls = costs.get(self.target), self.body_bytes + shown_bytes, 1
        elif self.session.max_cost_usd is not None:
            return picodollars(self.session.max_cost_usd)
        else:
            terms, shown_bytes = costs.get(self.session.default_target), body_bytes + answer_bytes
            calls = self.reserved_calls
        return 0 if terms is None else calls * (terms.bound(shown_bytes) or 0)


@dataclass(frozen=True, slots=True)
class ReservedSession:
    """A grader's session that was opened before its trial began, with ``calls`` reserved for it."""

    opened: SessionOpened
    calls: int
    usable_until: float

    @classmethod
    def of(cls, opened: SessionOpened, request: OpenSession) -> ReservedSession:
        """The session that was opened now."""
        calls = PlannedCalls(session=request).reserved_calls
        return cls(opened, calls, asyncio.get_running_loop().time() + SESSION_LEAD_SECONDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class GradingContext:
    """What the graders of a run share.

    ``session`` is the client of the run's session, and ``client_of`` gives that of a grader's child session by its
    token. ``judge_targets`` is the configured ``judge_target`` of each target. ``max_calls`` is the run's limit,
    which no grader's limit exceeds. ``process_slots`` bounds the number of grader processes that run at the same time.
    ``on_retry`` is called with the trial's column and the error before each retry of a call. ``prices`` are the known
    token prices by target. ``fingerprints`` are those of the run's targets and graders.
    ``agents`` are the targets whose answers have steps as a rule, and ``settings`` the configured ones of those whose
    configuration is known.
    ``scoring`` makes rows of verdicts. ``waits`` is how calls wait for quotas. ``sessions`` are those that were opened
    for this trial's graders before it began, by the grader's name. ``timeouts`` are the time limits of the targets that
    have one, in seconds. ``costs`` are what calls of the targets can cost at most, and ``max_cost_usd`` is the run's
    limit, which no grader's limit exceeds; None where it has none. ``build_own`` makes a case's own grader ready.
    ``answers`` are looked up before a target is asked, and ``saved`` is what a trial found there; with ``only_stored``
    no target is asked.
    """

    run_name: str
    session: Client
    client_of: Callable[[str], Client]
    gateway_url: str
    graders: tuple[GraderRunner, ...]
    judge_targets: Mapping[str, str | None]
    max_calls: int
    process_slots: asyncio.Semaphore
    on_retry: Callable[[str, QuintainError], None]
    prices: Mapping[str, Price] = field(default_factory=dict)
    fingerprints: RunFingerprints = field(default_factory=RunFingerprints)
    scoring: Scoring = field(default_factory=Scoring)
    waits: CallWaits = field(default_factory=CallWaits)
    sessions: Mapping[str, ReservedSession] = field(default_factory=dict)
    timeouts: Mapping[str, float] = field(default_factory=dict)
    costs: Mapping[str, CostTerms] = field(default_factory=dict)
    max_cost_usd: float | None = None
    agents: frozenset[str] = frozenset()
    settings: Mapping[str, JsonObject] = field(default_factory=dict)
    build_own: Callable[[GraderSpec], GraderRunner] | None = None
    answers: Answers = field(default_factory=Answers)
    saved: Saved = field(default_factory=Saved)
    only_stored: bool = False

    def graders_of(self, trial: Trial) -> tuple[GraderRunner, ...]:
        """The graders that grade a trial: pairwise ones with opponents, or else all that are not pairwise, and those of
        its case."""
        if trial.opponents:
            return tuple(grader for grader in self.graders if grader.name in trial.opponents)
        shared = (grader for grader in self.graders if grader.name not in self.fingerprints.pairwise_graders)
        return (*shared, *(() if self.build_own is None else map(self.build_own, trial.case.graders)))

    def fingerprint_of(self, trial: Trial, grader: str) -> str | None:
        """The fingerprint of one of the trial's graders; None where it is not known."""
        return self.fingerprints.graders_of(trial.target, trial.case).get(grader)

    def reusable(self, trial: Trial, name: str) -> GraderRow | None:
        """The verdict that a grader need not give again; a comparison that is made now lacks something of its own."""
        if trial.opponents:
            return None
        return reusable_grader_row(trial.kept, name, trial.fingerprints, self.fingerprints, trial.case)

    def deadline_seconds(self, target: str) -> float:
        """How long a call of this target may take from now, its time in queues included: a limit of less than the
        default is one of its tries, and not of the waits between them."""
        limit = max(DEFAULT_DEADLINE_SECONDS, self.timeouts.get(target, 0.0))
        return min(MAX_DEADLINE_SECONDS, limit + self.waits.line_seconds(target))

    async def ask(self, asked: NumberedRequest, request_id: str, *, column: str | None = None) -> Result:
        """Give the stored answer, or send the request to the target that it names, again as `call_with_retry` does;
        ``column`` counts that. Raises the last error."""
        target = asked.target
        try:
            return await self.answer(
                asked,
                lambda: call_with_retry(
                    lambda: self.session.send(
                        asked.request, request_id=request_id, deadline_seconds=self.deadline_seconds(target)
                    ),
                    ignore_retry if column is None else partial(self.on_retry, column),
                    partial(self.waits.resumable, target),
                ),
            )
        except ANSWERED_FAULTS:
            self.waits.note_answer(target)
            raise

    async def answer(
        self,
        asked: NumberedRequest,
        call: Callable[[], Awaitable[Result]],
        is_usable: Callable[[Result], bool] = lambda _: True,
    ) -> Result:
        """Give the stored answer, or that of ``call``, which is kept; for other runs too if it ``is_usable``."""
        if (found := self.answers.find(asked)) is not None:
            if found.replayed:
                return found.with_fields(cached=self.saved.has_row)
            if found.cached:
                self.saved.answers += 1
                price = self.prices.get(asked.target)
                cost = found.cost_usd if price is None else price.of_call(found.token_usage)
                self.saved.usd += cost or 0.0
            return found
        if self.only_stored:
            raise AnswerMissing
        try:
            result = await call()
        except Fault as fault:
            self.answers.keep(asked, fault, is_usable=False)
            raise
        self.waits.note_answer(asked.target)
        self.answers.keep(asked, result, is_usable=is_usable(result))
        return result

    def reserved_session(self, grader: str) -> ReservedSession | None:
        """The session that was opened for a grader before its trial began; None if there is none, or not any more."""
        reserved = self.sessions.get(grader)
        return reserved if reserved is not None and asyncio.get_running_loop().time() < reserved.usable_until else None


@dataclass(frozen=True, slots=True)
class GradingResult:
    """The result of one grader: its row, the tokens it used, and the code of its error if it failed.

    ``in_doubt`` says that it failed, and that a call of it may have been charged without an answer.
    ``may_lack_budget`` says that it failed, and that a call of it may have been refused for the run's budget: by its
    own limit it had calls left. ``earlier_calls`` of the row's calls were made when the answer was graded before.
    """

    row: GraderRow
    token_usage: TokenUsage
    error_code: str = GRADER_FAILED
    in_doubt: bool = False
    may_lack_budget: bool = False
    earlier_calls: int = 0

    @property
    def calls(self) -> int:
        """How many calls it made now."""
        return self.row.calls - self.earlier_calls


class GraderRunner(Protocol):
    """A grader of an evaluation that is ready to grade answers."""

    @property
    def spec(self) -> GraderSpec:
        """Its specification."""

    @property
    def name(self) -> str:
        """The name of the grader in the results."""

    def planned_calls(self, trial: Trial, context: GradingContext, expected_calls: int) -> Sequence[PlannedCalls]:
        """The calls to reserve before the trial begins; none if it makes none.

        ``expected_calls`` are those of a grader that may make any number.
        """

    async def grade(self, trial: Trial, result: Result, context: GradingContext) -> GradingResult:
        """Grade one answer of a target.

        A failure of the grader is returned in the row. Raises a `Fault` if its session cannot be opened.
        """


def final_verdict(spec: GraderSpec, row: GraderRow) -> GraderRow:
    """The verdict of a grader with the options that every grader has: its threshold, then whether it is turned around.
    An error stays one."""
    if row.error is not None or (score := row.score) is None:
        return row
    if spec.threshold is not None and not isinstance(spec, SimilarGrader):
        row = row.with_fields(passed=score >= spec.threshold)
    if not spec.negate:
        return row
    reason = row.reason or ("it is so, and must not be" if row.passed else None)
    return row.with_fields(score=1 - score, passed=not row.passed, reason=reason)


#: How many bytes of a judge's request a character of what it is shown takes: JSON escapes some, and others have more.
BYTES_PER_CHARACTER = 2


def max_shown_bytes(judge: JudgeGrader) -> int:
    """How many bytes of a judge's request its sections take at most, about."""
    return judge.max_show_characters * BYTES_PER_CHARACTER


def judge_place(evaluation: Evaluation, index: int) -> str:
    """The place in the evaluation file that names the target that a grader calls by default."""
    key = "embedding_target" if isinstance(evaluation.spec.graders[index], SimilarGrader) else "judge_target"
    return f"{evaluation.path}: graders[{index}].{key}"


def judge_references(
    evaluation: Evaluation, targets: Iterable[str], judge_targets: Mapping[str, str | None]
) -> Iterator[tuple[int, str]]:
    """Each grader that may make calls, by its place in the file, with each target that it calls by default for answers
    of these targets.
    """
    targets = list(targets)
    for index, grader in evaluation.numbered_graders:
        if grader.name in evaluation.graders_without_session:
            continue
        for judge in dict.fromkeys(one for target in targets for one in judges_of(grader, target, judge_targets)):
            yield index, judge
