"""The protocol that every grader implements, and the context that graders run in."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from quintain.client.client import Client
from quintain.config.prices import Price
from quintain.contracts.invoke import Result, TokenUsage
from quintain.contracts.session import Info, OpenSession, SessionOpened
from quintain.errors import QuintainError
from quintain_runner.graders.environment import GraderEnvironment
from quintain_runner.plan.changes import RunFingerprints
from quintain_runner.plan.scoring import Scoring
from quintain_runner.plan.trials import Trial
from quintain_runner.results.row import GRADER_FAILED, GraderRow
from quintain_runner.spec.graders import JudgeGrader, ProgramGrader

#: Reads the counters of a session by that session's token.
ReadSessionInfo = Callable[[str], Awaitable[Info]]

#: Closes a session by its token, and returns its last counters.
CloseSession = Callable[[str], Awaitable[Info]]

#: How much longer a session that is opened before its trial begins lives than one that is opened for its grader, in
#: seconds: the time for the answer, and for the graders before it.
SESSION_LEAD_SECONDS = 1800.0


@dataclass(frozen=True, slots=True)
class PlannedCalls:
    """The calls that a grader will make: the one of ``request_id``, or those of a session that is opened for it."""

    request_id: str | None = None
    session: OpenSession | None = None


@dataclass(frozen=True, slots=True)
class ReservedSession:
    """A grader's session that was opened before its trial began, with ``calls`` reserved for it."""

    opened: SessionOpened
    calls: int
    usable_until: float

    @classmethod
    def of(cls, opened: SessionOpened, request: OpenSession) -> ReservedSession:
        """The session that was opened now."""
        calls = (request.max_calls if request.reserve is True else request.reserve) or 0
        return cls(opened, calls, asyncio.get_running_loop().time() + SESSION_LEAD_SECONDS)


async def _close_nothing(_: str) -> Info:
    raise NotImplementedError("no grader's session was reserved")


@dataclass(frozen=True, slots=True, kw_only=True)
class GradingContext:
    """What the graders of a run share.

    ``session`` is the client of the run's session, and ``read_session_info`` reads the counters of a grader's child
    session. ``judge_targets`` is the configured ``judge_target`` of each target. ``max_calls`` is the run's limit,
    which no grader's limit exceeds. ``process_slots`` bounds the number of grader processes that run at the same time.
    ``on_retry`` is called with the trial's column and the error before each retry of a call. ``prices`` are the known
    token prices by target. ``fingerprints`` are those of the run's targets and graders.
    ``scoring`` makes rows of verdicts. ``sessions`` are those that were opened for this trial's graders before it
    began, by the grader's name, and ``close_session`` closes one.
    """

    run_name: str
    session: Client
    read_session_info: ReadSessionInfo
    environment: GraderEnvironment
    graders: tuple[GraderRunner, ...]
    judge_targets: Mapping[str, str | None]
    max_calls: int
    process_slots: asyncio.Semaphore
    on_retry: Callable[[str, QuintainError], None]
    prices: Mapping[str, Price] = field(default_factory=dict)
    fingerprints: RunFingerprints = field(default_factory=RunFingerprints)
    scoring: Scoring = field(default_factory=Scoring)
    sessions: Mapping[str, ReservedSession] = field(default_factory=dict)
    close_session: CloseSession = _close_nothing

    def reserved_session(self, grader: str) -> ReservedSession | None:
        """The session that was opened for a grader before its trial began; None if there is none, or not any more."""
        reserved = self.sessions.get(grader)
        return reserved if reserved is not None and asyncio.get_running_loop().time() < reserved.usable_until else None


@dataclass(frozen=True, slots=True)
class GradingResult:
    """The result of one grader: its row, the tokens it used, and the code of its error if it failed.

    ``in_doubt`` says that it failed, and that a call of it may have been charged without an answer.
    ``may_lack_budget`` says that it failed, and that a call of it may have been refused for the run's budget: by its
    own limit it had calls left.
    """

    row: GraderRow
    token_usage: TokenUsage
    error_code: str = GRADER_FAILED
    in_doubt: bool = False
    may_lack_budget: bool = False


class GraderRunner(Protocol):
    """A grader of an evaluation that is ready to grade answers."""

    @property
    def name(self) -> str:
        """The name of the grader in the results."""

    def planned_calls(self, trial: Trial, context: GradingContext, expected_calls: int) -> PlannedCalls | None:
        """The calls to reserve before the trial begins; None if it makes none.

        ``expected_calls`` are those of a grader that may make any number.
        """

    async def grade(self, trial: Trial, result: Result, context: GradingContext) -> GradingResult:
        """Grade one answer of a target.

        A failure of the grader is returned in the row. Raises a `Fault` if its session cannot be opened or read.
        """


def judge_target_of(grader: ProgramGrader | JudgeGrader, target: str, judge_targets: Mapping[str, str | None]) -> str:
    """The default target of a grader: its own ``judge_target``, else the one configured for ``target``, else
    ``target``.
    """
    return grader.judge_target or judge_targets.get(target) or target
