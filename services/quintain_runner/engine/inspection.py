"""Checks everything that an evaluation names, without making calls, and collects all errors.

`quintain check` prints them, and `quintain run` does not start if there are any.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from quintain.config import Config
from quintain.errors import ConfigError
from quintain.programs.program import program_environment
from quintain.settings import Settings, environment
from quintain_runner.engine.backend import is_on_fleet, load_evaluation_config, select_targets
from quintain_runner.engine.requirements import case_requirements, fields_in_use, graders_without_session
from quintain_runner.engine.run_setup import RunOptions
from quintain_runner.graders.base import judge_target_of, variable_warnings
from quintain_runner.graders.factory import UnavailableGraders, open_graders, unseen_files
from quintain_runner.plan.dataset import DatasetStats, open_dataset
from quintain_runner.plan.selection import feature_warnings
from quintain_runner.plan.trials import check_targets_available
from quintain_runner.results.store import read_resume_state
from quintain_runner.spec.evaluation import Evaluation, load_evaluation
from quintain_runner.spec.graders import CommandGrader, FunctionGrader, GraderSpec, JudgeGrader
from quintain_worker import ProviderContext, check_program, check_provider


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedEvaluation:
    """An evaluation in which nothing is wrong. ``config`` is None on a fleet whose workers have the configuration."""

    on_fleet: bool
    warnings: tuple[str, ...]
    evaluation: Evaluation
    config: Config | None
    targets: tuple[str, ...]
    dataset_stats: DatasetStats


@dataclass(slots=True)
class Inspection:
    """The result of an inspection; a part stays None or empty if an error prevented it from being read."""

    on_fleet: bool
    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    evaluation: Evaluation | None = None
    config: Config | None = None
    targets: tuple[str, ...] = ()
    dataset_stats: DatasetStats | None = None

    @contextlib.contextmanager
    def collect_errors(self) -> Iterator[None]:
        """Add a `ConfigError` raised inside to the problems, and continue after the block."""
        try:
            yield
        except ConfigError as error:
            self.problems.extend(line for line in error.message.splitlines() if line not in self.problems)

    def checked(self) -> CheckedEvaluation:
        """The evaluation. Raises `ConfigError` with all problems, a line each."""
        if self.problems or self.evaluation is None or self.dataset_stats is None:
            raise ConfigError("\n".join(self.problems))
        return CheckedEvaluation(
            on_fleet=self.on_fleet,
            warnings=tuple(self.warnings),
            evaluation=self.evaluation,
            config=self.config,
            targets=self.targets,
            dataset_stats=self.dataset_stats,
        )

    @property
    def judge_targets(self) -> Mapping[str, str | None]:
        """The configuration's ``judge_target`` by target."""
        return {} if self.config is None else {name: each.judge_target for name, each in self.config.targets.items()}

    @property
    def graders(self) -> list[GraderSpec]:
        """The graders of the evaluation file."""
        return [] if self.evaluation is None else self.evaluation.spec.graders

    @property
    def called_targets(self) -> tuple[str, ...]:
        """The targets under test, then those that graders call by default."""
        judges = [judge for grader in self.graders for judge in self.targets_called_by(grader)]
        return tuple(dict.fromkeys([*self.targets, *judges]))

    def targets_called_by(self, grader: GraderSpec) -> list[str]:
        """The default targets of a grader, for all targets under test; empty if it makes no calls."""
        if self.evaluation is None or grader.name in self.evaluation.graders_without_session:
            return []
        if not isinstance(grader, CommandGrader | FunctionGrader | JudgeGrader):
            return []
        return list(dict.fromkeys(judge_target_of(grader, target, self.judge_targets) for target in self.targets))


async def inspect_evaluation(
    options: RunOptions, settings: Settings, *, results_folder: Path | None = None
) -> Inspection:
    """Read the files, then check the targets, the graders and every case; errors are collected in ``problems``.

    ``results_folder`` is where the output of a dataset command is stored; if None, it is read and deleted. With
    ``keep_stale`` graders that cannot be run any more are no error if that folder has their verdicts.
    """
    on_fleet = is_on_fleet(settings)
    found = Inspection(on_fleet=on_fleet)
    with found.collect_errors():
        found.evaluation = load_evaluation(options.path)
    folder = options.path.absolute().parent
    with found.collect_errors():
        found.config = load_evaluation_config(settings, options.config, folder, on_fleet=on_fleet)
    resolved: Config | None = None
    with found.collect_errors():
        if found.config is not None and not on_fleet:
            resolved = found.config.resolve(environment())
    if found.evaluation is not None:
        with found.collect_errors():
            if found.config is not None or on_fleet:
                found.targets = select_targets(found.evaluation, found.config, options.targets, on_fleet=on_fleet)
        await _inspect_graders(found, found.evaluation, options, results_folder)
        found.warnings += variable_warnings(found.evaluation, environment(), program_environment(environment()))
        with found.collect_errors():
            found.warnings += unseen_files(found.evaluation, environment())
    if resolved is not None:
        _inspect_providers(found, resolved)
    if found.evaluation is not None:
        _inspect_dataset(found, found.evaluation, results_folder)
    return found


async def _inspect_graders(
    found: Inspection, evaluation: Evaluation, options: RunOptions, results_folder: Path | None
) -> None:
    env = environment()
    with found.collect_errors():
        try:
            found.evaluation = await _with_built_graders(evaluation, env)
        except UnavailableGraders as error:
            _check_kept(error, results_folder, keeps_stale=options.rerun_policy.keep_stale)
            kept = replace(evaluation, unavailable_graders=error.reasons)
            found.evaluation = await _with_built_graders(kept, env)
    if found.targets and found.config is not None and not found.on_fleet:
        with found.collect_errors():
            check_targets_available(_named_judge_targets(found, evaluation.path), list(found.config.targets))


async def _with_built_graders(evaluation: Evaluation, env: Mapping[str, str]) -> Evaluation:
    """The evaluation, with what its graders said of themselves. Raises as `open_graders`."""
    async with open_graders(evaluation, env) as graders:
        return replace(evaluation, graders_without_session=graders_without_session(graders))


def _check_kept(error: UnavailableGraders, folder: Path | None, *, keeps_stale: bool) -> None:
    """Raise the error, unless the results have verdicts of all these graders and stale rows are kept."""
    graded = {} if folder is None else read_resume_state(folder).most_grader_calls
    if any(name not in graded for name in error.reasons):
        raise error
    if not keeps_stale:
        way_out = f"; {folder} has its verdicts: `quintain run --keep-stale` keeps them, marked as stale"
        raise ConfigError("\n".join(f"{why}{way_out}" for why in error.reasons.values()))


def _named_judge_targets(found: Inspection, path: Path) -> Iterable[tuple[str, str]]:
    for index, grader in enumerate(found.graders):
        for judge_target in found.targets_called_by(grader):
            yield f"{path}: graders[{index}].judge_target", judge_target


def _inspect_providers(found: Inspection, config: Config) -> None:
    """Check the providers of all targets, as a worker in this process serves all, and the programs of those targets
    that are called."""
    context = ProviderContext(folder=config.folder, env=environment())
    for name, target in config.targets.items():
        with found.collect_errors(), _with_path(config.path):
            check_provider(name, target, context)
            if name in found.called_targets:
                found.warnings += check_program(name, target, context)


def _inspect_dataset(found: Inspection, evaluation: Evaluation, results_folder: Path | None) -> None:
    if results_folder is not None and evaluation.spec.dataset.command is not None and found.problems:
        # The command may take long, and its output would be stored: the other errors are to be fixed first.
        return
    requirements = case_requirements(evaluation, found.targets)
    with found.collect_errors(), tempfile.TemporaryDirectory() as temporary_folder:
        folder = Path(temporary_folder) if results_folder is None else results_folder
        found.dataset_stats = open_dataset(evaluation, folder, environment(), requirements)
        found.warnings += found.dataset_stats.warnings
        counts, used = found.dataset_stats.feature_fields, fields_in_use(evaluation)
        found.warnings += (f"{evaluation.path}: {text}" for text in feature_warnings(counts, used))


@contextlib.contextmanager
def _with_path(path: Path) -> Iterator[None]:
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{path}: {error.message}") from error
