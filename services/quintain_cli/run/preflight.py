"""Checks an evaluation without making calls, and reports all errors at once."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import Field

from quintain.config import Config
from quintain.contracts.message import Message
from quintain.errors import ConfigError
from quintain.settings import Settings, environment
from quintain_cli.run.backend import is_on_fleet, load_evaluation_config, select_targets
from quintain_cli.run.probe import ProbePlan, ProbeResult, probe_targets
from quintain_runner import (
    CommandGrader,
    DatasetStats,
    EstimateInput,
    Evaluation,
    FunctionGrader,
    GraderRunner,
    GraderSpec,
    JudgeGrader,
    ProgramGraderRunner,
    RunEstimate,
    check_targets_available,
    estimate_run,
    grader_kind,
    judge_target_of,
    known_prices,
    load_evaluation,
    max_calls_of,
    open_dataset,
    open_graders,
    read_text_file,
    without_secret_variables,
)


class GraderSummary(Message):
    """A grader, its kind, the targets that it may call, and the maximum number of calls per row."""

    name: str
    kind: str
    calls: list[str] = Field(default_factory=list)
    most_calls: int = 0


class CheckReport(Message):
    """The result of a check. ``problems`` are errors to fix before a run; failed probes are in ``probes``."""

    evaluation: str
    problems: list[str] = Field(default_factory=list)
    on_fleet: bool = False
    config: str | None = None
    variables: list[str] = Field(default_factory=list)
    cases: int | None = None
    repeats: int | None = None
    targets: list[str] = Field(default_factory=list)
    graders: list[GraderSummary] = Field(default_factory=list)
    max_calls: int | None = None
    probes: list[ProbeResult] = Field(default_factory=list)
    estimate: RunEstimate | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckOptions:
    """The options of a check from the command line."""

    path: Path
    targets: tuple[str, ...] = ()
    config: Path | None = None
    probe: bool = False


@dataclass(slots=True)
class _CheckState:
    """The state of a check; a part stays None if an error prevented it from being read."""

    problems: list[str] = field(default_factory=list)
    evaluation: Evaluation | None = None
    config: Config | None = None
    targets: tuple[str, ...] = ()
    dataset_stats: DatasetStats | None = None
    graders: tuple[GraderRunner, ...] = ()
    probes: list[ProbeResult] = field(default_factory=list)

    @contextlib.contextmanager
    def collect_errors(self) -> Iterator[None]:
        """Add a `ConfigError` raised inside to the problems, and continue after the block."""
        try:
            yield
        except ConfigError as error:
            self.problems.extend(line for line in error.message.splitlines() if line not in self.problems)


async def check_evaluation(options: CheckOptions, settings: Settings) -> CheckReport:
    """Check an evaluation. With ``options.probe`` each target is called once if there are no problems.

    Raises `BusError` if there is no fleet to probe.
    """
    state, on_fleet = _CheckState(), is_on_fleet(settings)
    with state.collect_errors():
        state.evaluation = load_evaluation(options.path)
    folder = options.path.absolute().parent
    with state.collect_errors():
        state.config = load_evaluation_config(settings, options.config, folder, on_fleet=on_fleet)
    with state.collect_errors():
        if state.config is not None and not on_fleet:
            state.config.resolve(environment())
    evaluation = state.evaluation
    if evaluation is not None:
        with state.collect_errors():
            if state.config is not None or on_fleet:
                state.targets = select_targets(evaluation, state.config, options.targets, on_fleet=on_fleet)
        await _check_dataset_and_graders(state, evaluation, on_fleet=on_fleet)
        if options.probe and not state.problems and state.dataset_stats is not None:
            probe_plan = ProbePlan(evaluation, state.config, state.dataset_stats, _called_targets(state, evaluation))
            with state.collect_errors():
                state.probes = await probe_targets(probe_plan, settings)
    return _build_report(options, state, on_fleet=on_fleet)


async def _check_dataset_and_graders(state: _CheckState, evaluation: Evaluation, *, on_fleet: bool) -> None:
    if state.targets and state.config is not None and not on_fleet:
        with state.collect_errors():
            check_targets_available(_named_judge_targets(state, evaluation), list(state.config.targets))
    # The output of a dataset command is only checked; a run executes the command again.
    with tempfile.TemporaryDirectory() as folder, state.collect_errors():
        state.dataset_stats = open_dataset(evaluation, Path(folder), environment())
    with state.collect_errors():
        hidden_variables = frozenset(() if state.config is None else state.config.variable_names)
        async with open_graders(evaluation, without_secret_variables(environment(), hidden_variables)) as graders:
            state.graders = graders


def _build_report(options: CheckOptions, state: _CheckState, *, on_fleet: bool) -> CheckReport:
    report = CheckReport(evaluation=str(options.path), problems=state.problems, on_fleet=on_fleet)
    config, evaluation = state.config, state.evaluation
    if config is not None:
        report = report.model_copy(update={"config": str(config.path), "variables": list(config.variable_names)})
    if evaluation is None:
        return report
    spec = evaluation.spec
    return report.model_copy(
        update={
            "cases": None if state.dataset_stats is None else state.dataset_stats.cases,
            "repeats": spec.repeats,
            "targets": list(state.targets),
            "graders": [_grader_summary(state, grader) for grader in spec.graders],
            "max_calls": spec.max_calls,
            "probes": state.probes,
            "estimate": _build_estimate(state, evaluation),
        }
    )


def _build_estimate(state: _CheckState, evaluation: Evaluation) -> RunEstimate | None:
    if state.dataset_stats is None or not state.targets:
        return None
    return estimate_run(
        EstimateInput(
            spec=evaluation.spec,
            dataset=state.dataset_stats,
            targets=state.targets,
            judge_targets=_judge_targets(state),
            judge_prompts=_prompts(evaluation),
            probed_usage={probe.target: probe.token_usage for probe in state.probes if probe.token_usage is not None},
            sessionless_graders=_graders_without_session(state),
            prices={} if state.config is None else known_prices(state.config.targets),
        )
    )


def _prompts(evaluation: Evaluation) -> dict[str, str]:
    prompts: dict[str, str] = {}
    for grader in evaluation.spec.graders:
        if isinstance(grader, JudgeGrader):
            # A prompt that cannot be read is already among the problems.
            with contextlib.suppress(ConfigError):
                prompts[grader.name] = read_text_file(evaluation.folder, grader.prompt)
    return prompts


def _judge_targets(state: _CheckState) -> Mapping[str, str | None]:
    return {} if state.config is None else {name: target.judge_target for name, target in state.config.targets.items()}


def _graders_without_session(state: _CheckState) -> frozenset[str]:
    return frozenset(
        grader.name for grader in state.graders if isinstance(grader, ProgramGraderRunner) and not grader.needs_session
    )


def _judge_targets_of(state: _CheckState, grader: GraderSpec) -> list[str]:
    if not isinstance(grader, CommandGrader | FunctionGrader | JudgeGrader) or grader.name in _graders_without_session(
        state
    ):
        return []
    return list(dict.fromkeys(judge_target_of(grader, target, _judge_targets(state)) for target in state.targets))


def _grader_summary(state: _CheckState, grader: GraderSpec) -> GraderSummary:
    judges = _judge_targets_of(state, grader)
    return GraderSummary(
        name=grader.name, kind=grader_kind(grader), calls=judges, most_calls=max_calls_of(grader) if judges else 0
    )


def _named_judge_targets(state: _CheckState, evaluation: Evaluation) -> Iterator[tuple[str, str]]:
    for index, grader in enumerate(evaluation.spec.graders):
        for judge_target in _judge_targets_of(state, grader):
            yield f"{evaluation.path}: graders[{index}].judge_target", judge_target


def _called_targets(state: _CheckState, evaluation: Evaluation) -> tuple[str, ...]:
    judge_targets = [
        judge_target for grader in evaluation.spec.graders for judge_target in _judge_targets_of(state, grader)
    ]
    return tuple(dict.fromkeys([*state.targets, *judge_targets]))
