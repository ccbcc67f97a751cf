"""The options and settings of a run, and the checks of everything that its evaluation names, without making calls.

The checks collect all errors: `quintain check` prints them, and `quintain run` does not start if there are any.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from quintain.config.loader import Config, find_configuration, load_configuration
from quintain.config.prices import Price, known_prices
from quintain.config.targets import TargetConfig, card_of
from quintain.contracts.ledger import TargetCard
from quintain.contracts.money import NO_LIMIT, NoLimit
from quintain.contracts.session import Priority
from quintain.errors import ConfigError
from quintain.graders import Case
from quintain.programs.program import program_environment
from quintain.settings import MEMORY_URL, Settings, environment
from quintain_runner.engine.comparisons import comparing_problems, opponent_requirements
from quintain_runner.engine.judges import judge_problems, judge_requirements, judge_targets_of, judge_warnings
from quintain_runner.engine.recording import Recording
from quintain_runner.engine.requirements import case_requirements, check_local_turns, fields_in_use, token_limits
from quintain_runner.engine.run_overrides import RunOverrides, sort_overrides
from quintain_runner.files import naming_file
from quintain_runner.graders.base import judge_place, judge_references
from quintain_runner.graders.factory import FunctionGraders, unseen_files, with_built_graders
from quintain_runner.graders.program import variable_warnings
from quintain_runner.plan.changes import RerunPolicy
from quintain_runner.plan.conversation import MAX_ATTEMPTS
from quintain_runner.plan.dataset import DatasetStats, open_dataset, read_cases
from quintain_runner.plan.known_names import check_names
from quintain_runner.plan.labeled_answers import read_labels
from quintain_runner.plan.selection import feature_warnings
from quintain_runner.plan.trial_selection import SelectionOptions, TrialSelection, select_trials
from quintain_runner.plan.trials import check_targets_available, choose_targets, estimate_dataset
from quintain_runner.spec.evaluation import Evaluation, load_evaluation
from quintain_worker.providers.factory import check_program, check_provider
from quintain_worker.providers.provider import ProviderContext

#: The default number of errors in a row after which a target is parked.
DEFAULT_MAX_ERRORS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorPolicy:
    """When a target is parked: after ``max_errors`` errors in a row, or at 20 % errors in 50 or more finished trials.

    ``max_errors=0`` switches both rules off. ``fail_fast`` begins no more trials of any target after the first error.
    """

    max_errors: int = DEFAULT_MAX_ERRORS
    fail_fast: bool = False


#: Default numbers of trials of each target, and of grader processes, that run at the same time.
DEFAULT_CONCURRENCY, DEFAULT_GRADER_CONCURRENCY = 64, 8


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What the user says of a run: the evaluation file at ``path``, and the options of the command line.

    ``regrades`` begins a new generation: every verdict is given again. ``keeps_content`` says whether rows hold texts.
    ``concurrency`` trials of each target and ``grader_concurrency`` grader processes run at once. A target with a quota
    is parked after ``give_up_seconds`` without an answer; ``weight`` and ``priority`` decide on its share. ``is_fresh``
    renames earlier rows. ``cache`` is an age, ``off`` or a file, and ``replay`` a recording, ``recording`` when it is
    open; ``functions`` serve check and run. ``max_cost_usd`` may be ``none``. A run ``waits`` for the first worker. No
    target may be worse than in ``baseline``. ``overrides`` are ``KEY=VALUE``.
    """

    path: Path
    targets: tuple[str, ...] = ()
    selection: SelectionOptions = field(default_factory=SelectionOptions)
    overrides: tuple[str, ...] = ()
    model: str | None = None
    max_calls: int | None = None
    output: Path | None = None
    config: Path | None = None
    concurrency: int = DEFAULT_CONCURRENCY
    grader_concurrency: int = DEFAULT_GRADER_CONCURRENCY
    rerun_policy: RerunPolicy = field(default_factory=RerunPolicy)
    error_policy: ErrorPolicy = field(default_factory=ErrorPolicy)
    give_up_seconds: float | None = None
    weight: int | None = None
    max_cost_usd: float | NoLimit | None = None
    priority: Priority | None = None
    cache: str | None = None
    replay: Path | None = None
    recording: Recording | None = None
    functions: FunctionGraders | None = None
    regrades: bool = False
    keeps_content: bool = True
    is_fresh: bool = False
    baseline: Path | None = None
    waits: bool = True
    command: str = ""
    resume_command: str | None = None

    @property
    def folder(self) -> Path:
        """The results folder: ``--output``, or ``runs/<name of the file>`` in the working folder."""
        return self.output or Path("runs") / self.path.stem

    @property
    def sessionless(self) -> frozenset[str] | None:
        """The programs and functions of a recording that make no calls; None where they are started."""
        return None if self.recording is None else frozenset(self.recording.run.sessionless)


def is_on_fleet(settings: Settings) -> bool:
    """Whether the environment names a fleet, by the URL of a broker or of a gateway."""
    if settings.broker_url is None:
        return settings.gateway_url is not None
    return not settings.broker_url.startswith(MEMORY_URL)


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
    selection: TrialSelection = field(default_factory=TrialSelection)
    overrides: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def is_on_fleet(self) -> bool:
        """Whether services elsewhere are used, or a recording; otherwise all services run in this process."""
        return is_on_fleet(self.settings) or self.options.recording is not None

    @property
    def cases(self) -> int:
        """The number of cases that this command may execute."""
        return self.dataset.cases if self.selection.case_count is None else self.selection.case_count

    @property
    def own_max_calls(self) -> int | None:
        """The call budget that the user set; None if it follows from what the trials need."""
        return self.evaluation.spec.max_calls if self.options.max_calls is None else self.options.max_calls

    @property
    def weight(self) -> int | None:
        """The session's weight where it shares a quota; None if the user set none."""
        return self.evaluation.spec.weight if self.options.weight is None else self.options.weight

    @property
    def max_cost_usd(self) -> float | None:
        """The most that the run may cost, in US dollars; None if the user set no limit, or took it away."""
        own = self.options.max_cost_usd
        return self.evaluation.spec.max_cost_usd if own is None else None if own == NO_LIMIT else own

    @property
    def priority(self) -> Priority | None:
        """The session's priority where it waits for a quota; None if the user set none."""
        return self.evaluation.spec.priority if self.options.priority is None else self.options.priority

    @property
    def max_calls(self) -> int:
        """The call budget: the one that was set, else the most that all answers and graders can need."""
        if (own := self.own_max_calls) is not None:
            return own
        estimate = estimate_dataset(self.evaluation, self.dataset, cases=self.cases, targets=len(self.targets))
        return estimate.most - (estimate.answers if self.options.rerun_policy.answers_only else 0) + self.spare_calls

    @property
    def spare_calls(self) -> int:
        """The calls that conversations take more where they are lost and begun again."""
        if self.dataset.conversations is None or self.options.rerun_policy.answers_only:
            return 0
        estimate = estimate_dataset(self.evaluation, self.dataset, cases=self.cases, targets=len(self.targets))
        return (MAX_ATTEMPTS - 1) * estimate.answers

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


@dataclass(slots=True)
class Inspection:
    """The result of an inspection; a part stays None or empty if an error prevented it from being read."""

    options: RunOptions
    settings: Settings
    env: Mapping[str, str]
    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    evaluation: Evaluation | None = None
    config: Config | None = None
    targets: tuple[str, ...] = ()
    dataset: DatasetStats | None = None
    selection: TrialSelection = field(default_factory=TrialSelection)
    overrides: RunOverrides = field(default_factory=RunOverrides)
    one_text: set[str] = field(default_factory=set)  # The agents that say that they take one text.

    @contextlib.contextmanager
    def collect_errors(self) -> Iterator[None]:
        """Add a `ConfigError` raised inside to the problems, and continue after the block."""
        try:
            yield
        except ConfigError as error:
            self.problems.extend(line for line in error.message.split("\n") if line not in self.problems)

    def checked(self) -> RunSettings:
        """The settings of the run. Raises `ConfigError` with all problems, a line each."""
        if self.problems or self.evaluation is None or self.dataset is None:
            raise ConfigError("\n".join(self.problems))
        return RunSettings(
            options=self.options,
            settings=self.settings,
            env=self.env,
            evaluation=self.evaluation,
            config=self.config,
            targets=self.targets,
            dataset=self.dataset,
            selection=self.selection,
            overrides=tuple(f"{one.option}={one.text}" for one in (*self.overrides.evaluation, *self.overrides.config)),
            warnings=tuple(self.warnings),
        )

    @property
    def is_on_fleet(self) -> bool:
        """Whether the calls are not made here: services elsewhere are used, or a recording."""
        return is_on_fleet(self.settings) or self.options.recording is not None

    @property
    def judge_references(self) -> list[tuple[int, str]]:
        """Each grader's place in the file with each target that it calls by default."""
        if self.evaluation is None:
            return []
        return list(judge_references(self.evaluation, self.targets, judge_targets_of(self.config)))

    @property
    def called_targets(self) -> tuple[str, ...]:
        """The targets under test, those that speak to them as users, then those that graders call by default."""
        users = self.dataset.references(self.targets, judge_targets_of(self.config)) if self.dataset else ()
        return tuple(dict.fromkeys([*self.targets, *(to for _, to in (*users, *self.judge_references))]))


async def inspect_evaluation(
    options: RunOptions, settings: Settings, *, results_folder: Path | None = None
) -> Inspection:
    """Read the files, then check the targets, the graders and every case; errors are collected in ``problems``.

    ``results_folder`` is where a run follows, and the output of a dataset command is stored; if None, it is deleted.
    """
    found = Inspection(options, settings, environment())
    with found.collect_errors():
        found.overrides = sort_overrides(options.overrides)
    with found.collect_errors():
        found.evaluation = load_evaluation(
            options.path, judges_only=options.rerun_policy.given_answers, overrides=found.overrides.evaluation
        ).selecting(options.selection.prompts, options.selection.graders)
    with found.collect_errors():
        found.config = _load_config(found)
    found.warnings += [note for one in (found.evaluation, found.config) if one is not None for note in one.notes]
    resolved: Config | None = None
    if found.config is not None and not found.is_on_fleet:
        with found.collect_errors():
            resolved = found.config.resolve(found.env)
    if found.evaluation is not None:
        if found.config is not None or found.is_on_fleet:
            with found.collect_errors():
                found.targets = _choose_targets(found, found.evaluation)
        await _inspect_graders(found, found.evaluation)
        if found.options.sessionless is None:
            found.warnings += variable_warnings(found.evaluation, found.env, program_environment(found.env))
            with found.collect_errors():
                found.warnings += unseen_files(found.evaluation, found.env)
    if resolved is not None:
        # What is refused after earlier results were set aside would have changed something.
        _inspect_providers(found, resolved, is_started=results_folder is not None and not options.is_fresh)
    if found.evaluation is not None:
        _inspect_dataset(found, found.evaluation, results_folder)
        judge_targets = judge_targets_of(found.config)
        found.warnings += judge_warnings(found.evaluation, found.dataset, found.targets, judge_targets)
    return found


def _load_config(found: Inspection) -> Config | None:
    """Load the configuration beside or above the evaluation file.

    On a fleet it may be missing, because the workers have it; then the result is None. If it exists it must be valid,
    because graders must not see the variables that it names. Raises `ConfigError`.
    """
    path, folder = found.options.config, found.options.path.absolute().parent
    if (model := found.options.model) is not None:
        targets = found.options.targets or (found.evaluation and found.evaluation.spec.targets)
        targets = targets or list(load_configuration(found.settings, path, start_folder=folder).targets)
        found.overrides = found.overrides.with_model(model, targets)
    overrides = found.overrides.config
    if found.is_on_fleet and overrides:
        raise ConfigError(f"{overrides[0].option}: the workers have the configuration; only the evaluation can be set")
    if found.is_on_fleet and find_configuration(found.settings, path, start_folder=folder) is None:
        return None
    return load_configuration(found.settings, path, start_folder=folder, overrides=overrides)


def _choose_targets(found: Inspection, evaluation: Evaluation) -> tuple[str, ...]:
    """The targets under test: those of the evaluation, narrowed to those of the command. Raises `ConfigError`.

    On a fleet any name is accepted here; the run checks it there before the first call.
    """
    known, only = [] if found.config is None else list(found.config.targets), found.options.targets
    if found.is_on_fleet:
        known += [*(evaluation.spec.targets or ()), *only]
    return choose_targets(evaluation, list(dict.fromkeys(known)), only)


async def _inspect_graders(found: Inspection, evaluation: Evaluation) -> None:
    with found.collect_errors():
        built = with_built_graders(evaluation, found.env, found.options.sessionless, found.options.functions)
        found.evaluation, problems = await built
        found.problems += problems
    if found.targets and found.config is not None and not found.is_on_fleet:
        with found.collect_errors():
            named = ((judge_place(evaluation, index), to) for index, to in found.judge_references)
            check_targets_available(named, list(found.config.targets))
        found.problems += judge_problems(evaluation, found.targets, found.config.targets)


def _inspect_providers(found: Inspection, config: Config, *, is_started: bool) -> None:
    """Check the providers of all targets, as a worker here serves all, and the programs of those that are called."""
    context = ProviderContext(folder=config.folder, env=found.env)
    called = found.called_targets
    for name, target in config.targets.items():
        with found.collect_errors(), naming_file(config.path):
            warnings = check_provider(name, target, context, is_started=is_started)
            if name in called:
                found.warnings += [*warnings, *check_program(name, target, context, found.one_text)]


def _inspect_dataset(found: Inspection, evaluation: Evaluation, results_folder: Path | None) -> None:
    if results_folder is not None and evaluation.spec.dataset.command is not None and found.problems:
        # The command may take long, and its output would be stored: the other errors are to be fixed first.
        return
    options, config = found.options, None if found.is_on_fleet else found.config  # Of a fleet they are not known.
    limits, configured = ({}, {}) if config is None else (token_limits(config, found.targets), config.targets)
    needed = case_requirements(evaluation, found.targets, limits)
    found.problems += comparing_problems(evaluation, found.settings, keeps_content=options.keeps_content)
    with (
        found.collect_errors(),
        opponent_requirements(evaluation, found.targets, options.folder, found.problems) as compared,
        tempfile.TemporaryDirectory() as temporary_folder,
    ):
        folder = Path(temporary_folder) if results_folder is None else results_folder
        judged = judge_requirements(evaluation, found.targets, configured)
        found.dataset = open_dataset(evaluation, folder, found.env, (*needed, *judged, *compared))
        found.warnings += found.dataset.warnings
        for unused in feature_warnings(found.dataset.feature_fields, fields_in_use(evaluation)):
            found.warnings.append(f"{evaluation.path}: {unused}")
        if (labels := evaluation.spec.labels) is not None:
            read_labels(evaluation.folder / labels, read_cases(found.dataset.source))
        check_names(evaluation, found.dataset)
        found.selection = select_trials(options.selection, found.dataset, options.targets, options.folder)
        if configured:
            check_local_turns(found.dataset, found.targets, configured, found.one_text)
