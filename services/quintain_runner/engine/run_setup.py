"""Everything that a run needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from quintain.client.client import Client
from quintain.config.prices import Price
from quintain_runner.dataset.reader import DatasetStats
from quintain_runner.engine.error_limit import ErrorPolicy
from quintain_runner.engine.plan_session import OpenPlanSession
from quintain_runner.engine.rerun_plan import RerunPlan
from quintain_runner.graders.base import CloseSession, ReadSessionInfo
from quintain_runner.plan.changes import RerunPolicy
from quintain_runner.plan.selection import TrialSelection
from quintain_runner.progress.display import ProgressDisplay
from quintain_runner.report.run_record import Origin
from quintain_runner.spec.environment import GraderEnvironment
from quintain_runner.spec.evaluation import Evaluation

#: Default number of trials of each target that run at the same time.
DEFAULT_CONCURRENCY = 64

#: Default number of grader processes that run at the same time.
DEFAULT_GRADER_CONCURRENCY = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSetup:
    """Everything that `run_evaluation` needs.

    ``output`` is the results folder. ``client`` is the client of a session that says which targets there are, and
    ``open_session`` gives the session that the plan's calls are charged to; by default it is that one.
    ``read_session_info`` reads the counters of a child session by its token, and ``close_session`` closes one.
    ``judge_targets`` is the configured ``judge_target`` of each target.

    ``env`` is this process's environment, of which programs get what is allowed. ``dataset_stats`` is the result of an
    earlier check of the dataset; if None, the dataset is checked first. ``origin`` has the targets as configured, for
    the run record.

    ``prices`` are the known token prices by target. ``concurrency`` is the number of trials per target, and
    ``grader_concurrency`` the number of grader processes, that run at the same time.

    ``selection`` narrows this command to some trials; ``targets`` are those of the whole run. ``regrades`` begins a new
    generation: every verdict is given again. ``keeps_content`` says whether rows hold questions, answers and reasons.

    ``target_models`` are the models of the targets if the configuration here is that of the workers. ``command`` is the
    command line, for the record. ``on_plan`` is called with the plan of this command before the first call.
    """

    evaluation: Evaluation
    targets: tuple[str, ...]
    output: Path
    client: Client
    read_session_info: ReadSessionInfo
    close_session: CloseSession
    grader_environment: GraderEnvironment
    judge_targets: Mapping[str, str | None]
    env: Mapping[str, str]
    progress: ProgressDisplay
    dataset_stats: DatasetStats | None = None
    origin: Origin = field(default_factory=Origin)
    prices: Mapping[str, Price] = field(default_factory=dict)
    open_session: OpenPlanSession | None = None
    target_models: Mapping[str, str] = field(default_factory=dict)
    command: str = ""
    on_plan: Callable[[RerunPlan], None] = lambda _: None
    rerun_policy: RerunPolicy = field(default_factory=RerunPolicy)
    selection: TrialSelection = field(default_factory=TrialSelection)
    regrades: bool = False
    keeps_content: bool = True
    error_policy: ErrorPolicy = field(default_factory=ErrorPolicy)
    concurrency: int = DEFAULT_CONCURRENCY
    grader_concurrency: int = DEFAULT_GRADER_CONCURRENCY
