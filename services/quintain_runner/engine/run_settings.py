"""The settings of a run: what the user says, and with it what its files and its environment say."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from quintain.config.loader import Config
from quintain.config.prices import Price, known_prices
from quintain.config.quotas import card_of
from quintain.config.targets import TargetConfig
from quintain.contracts.ledger import TargetCard
from quintain.graders import Case
from quintain.settings import MEMORY_URL, Settings
from quintain_runner.engine.quota_watch import DEFAULT_GIVE_UP_SECONDS
from quintain_runner.engine.scheduler import ErrorPolicy
from quintain_runner.plan.changes import RerunPolicy
from quintain_runner.plan.dataset import DatasetStats, read_cases
from quintain_runner.plan.trials import TrialSelection, estimate_calls
from quintain_runner.spec.evaluation import Evaluation

#: Default number of trials of each target that run at the same time.
DEFAULT_CONCURRENCY = 64

#: Default number of grader processes that run at the same time.
DEFAULT_GRADER_CONCURRENCY = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What the user says of a run: the evaluation file at ``path``, and the options of the command line.

    ``regrades`` begins a new generation: every verdict is given again. ``keeps_content`` says whether rows hold
    questions, answers and reasons. ``concurrency`` is the number of trials per target, and ``grader_concurrency`` the
    number of grader processes, that run at the same time. A target with a quota is parked after
    ``give_up_seconds`` without an answer. ``is_fresh`` renames the results of earlier commands.
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
    give_up_seconds: float = DEFAULT_GIVE_UP_SECONDS
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


def is_on_fleet(settings: Settings) -> bool:
    """Whether the environment names a fleet, by the URL of a broker or of a gateway."""
    if settings.broker_url is None:
        return settings.gateway_url is not None
    return not settings.broker_url.startswith(MEMORY_URL)


def judge_targets_of(config: Config | None) -> dict[str, str | None]:
    """The configuration's ``judge_target`` by target."""
    return {} if config is None else {name: target.judge_target for name, target in config.targets.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """All settings of a run, in which nothing is wrong. Every part of the engine reads them here.

    ``settings`` are those of the environment ``env``, of which programs get what is allowed. ``targets`` are the
    targets under test that this command may call, or whose answers it grades.
    """

    options: RunOptions
    settings: Settings
    env: Mapping[str, str]
    evaluation: Evaluation
    #: None on a fleet whose workers have the configuration.
    config: Config | None
    targets: tuple[str, ...]
    dataset: DatasetStats
    warnings: tuple[str, ...] = ()

    @property
    def is_on_fleet(self) -> bool:
        """Whether services elsewhere are used; otherwise all services run in this process."""
        return is_on_fleet(self.settings)

    @property
    def cases(self) -> int:
        """The number of cases that this command may execute."""
        sizes = (self.dataset.cases, len(self.options.case_ids) or None, self.options.limit)
        return min(size for size in sizes if size is not None)

    @property
    def own_max_calls(self) -> int | None:
        """The call budget that the user set; None if it follows from what the trials need."""
        return self.evaluation.spec.max_calls if self.options.max_calls is None else self.options.max_calls

    @property
    def max_calls(self) -> int:
        """The call budget: the one that was set, else the most that all answers and graders can need."""
        if (own := self.own_max_calls) is not None:
            return own
        trials = self.evaluation.trials_of(self.cases, targets=len(self.targets))
        estimate = estimate_calls(self.evaluation, trials=trials)
        return estimate.most - (estimate.answers if self.options.regrades else 0)

    @property
    def judge_targets(self) -> Mapping[str, str | None]:
        """The configured ``judge_target`` of each target."""
        return judge_targets_of(self.config)

    @property
    def prices(self) -> Mapping[str, Price]:
        """The known token prices by target."""
        return known_prices(self._configured)

    @property
    def cards(self) -> list[TargetCard]:
        """The targets as configured, for the run's record."""
        return [card_of(name, target) for name, target in self._configured.items()]

    @property
    def models(self) -> Mapping[str, str]:
        """The models of the targets, if the configuration here is that of the workers."""
        if self.config is None or self.is_on_fleet:
            return {}
        targets = self.config.resolve(self.env).targets
        return {name: model for name, target in targets.items() if (model := card_of(name, target).model)}

    @property
    def _configured(self) -> Mapping[str, TargetConfig]:
        return {} if self.config is None else self.config.targets

    def open_cases(self) -> closing[Generator[Case, None, None]]:
        """Open the dataset; it may be opened several times."""
        return closing(read_cases(self.dataset.source))
