"""What the user says of a run, the session of its plan, and everything else that a run needs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from quintain.client.client import Client
from quintain.config.prices import Price
from quintain.contracts.session import TargetUsage
from quintain_runner.engine.rerun_plan import RerunPlan
from quintain_runner.engine.scheduler import ErrorPolicy
from quintain_runner.graders.base import CloseSession, GraderEnvironment, ReadSessionInfo
from quintain_runner.plan.changes import RerunPolicy
from quintain_runner.plan.dataset import DatasetStats
from quintain_runner.plan.trials import TrialSelection
from quintain_runner.report.progress_display import ProgressDisplay
from quintain_runner.report.run_record import Origin
from quintain_runner.spec.evaluation import Evaluation

#: Reads the usage of the run's session by target; returns None if it is not available.
ReadSpending = Callable[[], Awaitable[Mapping[str, TargetUsage] | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRequest:
    """What a plan needs of its session.

    ``is_changed`` says whether an earlier plan had another identity: a changed plan has a budget of its own.
    ``most_calls`` is the most calls that this command can need, and 0 if it has nothing to do.
    """

    is_changed: bool
    most_calls: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSession:
    """The session of a plan.

    ``session_id`` is None if there is nothing to call: then ``client`` is that of another session, which counts
    nothing. ``calls_of_earlier_sessions`` were charged to other sessions of the run, ``calls_of_earlier_plans`` of them
    before the plan changed. ``is_bounded`` says that the session's limit does not follow from what the plan needs.

    ``ended_usage`` is the usage by target of a session that this one replaces, by its id. ``read_final_spending`` reads
    the usage by target after the run, and ``read_current_spending`` during it; without them the cost is unknown.
    """

    client: Client
    session_id: str | None
    calls_location: str = "calls.jsonl"
    calls_of_earlier_sessions: int = 0
    calls_of_earlier_plans: int = 0
    is_bounded: bool = True
    ended_usage: Mapping[str, Mapping[str, TargetUsage]] = field(default_factory=dict)
    read_final_spending: ReadSpending | None = None
    read_current_spending: ReadSpending | None = None


#: Gives the session of a plan: the one so far, or a new one.
OpenPlanSession = Callable[[SessionRequest], Awaitable[PlanSession]]


#: Default number of trials of each target that run at the same time.
DEFAULT_CONCURRENCY = 64

#: Default number of grader processes that run at the same time.
DEFAULT_GRADER_CONCURRENCY = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What the user says of a run: the evaluation file at ``path``, and the options of the command line.

    ``regrades`` begins a new generation: every verdict is given again. ``keeps_content`` says whether rows hold
    questions, answers and reasons. ``concurrency`` is the number of trials per target, and ``grader_concurrency`` the
    number of grader processes, that run at the same time. ``is_fresh`` renames the results of earlier commands.
    ``waits`` waits for the first worker of a fleet to register. ``command`` is the command line, for the record, and
    ``resume_command`` the one that goes on with the run, if it is another.
    """

    path: Path
    targets: tuple[str, ...] = ()
    #: The ids of the cases to execute; none for all.
    case_ids: tuple[str, ...] = ()
    #: The number of first cases to execute; None for all.
    limit: int | None = None
    max_calls: int | None = None
    output: Path | None = None
    config: Path | None = None
    concurrency: int = DEFAULT_CONCURRENCY
    grader_concurrency: int = DEFAULT_GRADER_CONCURRENCY
    rerun_policy: RerunPolicy = field(default_factory=RerunPolicy)
    error_policy: ErrorPolicy = field(default_factory=ErrorPolicy)
    regrades: bool = False
    keeps_content: bool = True
    is_fresh: bool = False
    waits: bool = True
    command: str = ""
    resume_command: str | None = None

    @property
    def folder(self) -> Path:
        """The results folder: ``--output``, or ``runs/<name of the file>`` in the working folder."""
        return self.output or Path("runs") / self.path.stem

    @property
    def selection(self) -> TrialSelection:
        """What the command is narrowed to."""
        return TrialSelection(
            case_ids=frozenset(self.case_ids) or None, limit=self.limit, targets=frozenset(self.targets) or None
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSetup:
    """Everything that `run_evaluation` needs.

    ``targets`` are those of the whole run. ``client`` is the client of a session that says which targets there are, and
    ``open_session`` gives the session that the plan's calls are charged to.
    ``read_session_info`` reads the counters of a child session by its token, and ``close_session`` closes one.
    ``judge_targets`` is the configured ``judge_target`` of each target.

    ``env`` is this process's environment, of which programs get what is allowed. ``dataset_stats`` is the result of the
    check of the dataset. ``origin`` has the targets as configured, for the run record.

    ``prices`` are the known token prices by target. ``target_models`` are the models of the targets if the
    configuration here is that of the workers. ``on_plan`` is called with the plan of this command before the first
    call.
    """

    options: RunOptions
    evaluation: Evaluation
    targets: tuple[str, ...]
    dataset_stats: DatasetStats
    client: Client
    open_session: OpenPlanSession
    read_session_info: ReadSessionInfo
    close_session: CloseSession
    grader_environment: GraderEnvironment
    judge_targets: Mapping[str, str | None]
    env: Mapping[str, str]
    progress: ProgressDisplay
    origin: Origin = field(default_factory=Origin)
    prices: Mapping[str, Price] = field(default_factory=dict)
    target_models: Mapping[str, str] = field(default_factory=dict)
    on_plan: Callable[[RerunPlan], None] = lambda _: None
