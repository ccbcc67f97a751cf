"""Checks an evaluation without making calls, and reports all errors at once."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field

from quintain.config.prices import known_prices
from quintain.contracts.message import Message
from quintain.errors import ConfigError
from quintain.settings import Settings
from quintain_cli.run.backend import is_on_fleet
from quintain_cli.run.inspection import Inspection, InspectionOptions, inspect_evaluation
from quintain_cli.run.probe import ProbePlan, ProbeResult, probe_targets
from quintain_runner import (
    EstimateInput,
    Evaluation,
    GraderSpec,
    JudgeGrader,
    RunEstimate,
    estimate_run,
    grader_kind,
    max_grader_calls,
    read_text_file,
)


class GraderSummary(Message):
    """A grader, its kind, the targets that it may call, and the maximum number of calls per row."""

    name: str
    kind: str
    calls: list[str] = Field(default_factory=list)
    most_calls: int = 0


class CheckReport(Message):
    """The result of a check.

    ``problems`` are errors to fix before a run, ``warnings`` are what may be one, ``not_checked`` says what cannot be
    known from here, and failed probes are in ``probes``.
    """

    evaluation: str
    problems: list[str] = Field(default_factory=list)
    warnings: list[str] = Field(default_factory=list)
    not_checked: list[str] = Field(default_factory=list)
    on_fleet: bool = False
    config: str | None = None
    variables: list[str] = Field(default_factory=list)
    cases: int | None = None
    repeats: int | None = None
    targets: list[str] = Field(default_factory=list)
    prompts: list[str] = Field(default_factory=list)
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


async def check_evaluation(options: CheckOptions, settings: Settings) -> CheckReport:
    """Check an evaluation. With ``options.probe`` each target is called once if there are no problems.

    Raises `BusError` if there is no fleet to probe.
    """
    inspection = InspectionOptions(
        path=options.path, targets=options.targets, config=options.config, on_fleet=is_on_fleet(settings)
    )
    found = await inspect_evaluation(inspection, settings)
    probes: list[ProbeResult] = []
    if options.probe and not found.problems and found.evaluation is not None and found.dataset_stats is not None:
        probe_plan = ProbePlan(found.evaluation, found.config, found.dataset_stats, found.called_targets)
        with found.collect_errors():
            probes = await probe_targets(probe_plan, settings)
    return _build_report(options, found, probes)


def _build_report(options: CheckOptions, found: Inspection, probes: list[ProbeResult]) -> CheckReport:
    report = CheckReport(
        evaluation=str(options.path),
        problems=found.problems,
        warnings=found.warnings,
        on_fleet=found.on_fleet,
        not_checked=list(_not_checked(found, probed={probe.target for probe in probes})),
    )
    config, evaluation = found.config, found.evaluation
    if config is not None:
        report = report.model_copy(update={"config": str(config.path), "variables": list(config.variable_names)})
    if evaluation is None:
        return report
    spec = evaluation.spec
    return report.model_copy(
        update={
            "cases": None if found.dataset_stats is None else found.dataset_stats.cases,
            "repeats": spec.repeats,
            "targets": list(found.targets),
            "prompts": evaluation.prompt_names,
            "graders": [_grader_summary(found, evaluation, grader) for grader in spec.graders],
            "max_calls": spec.max_calls,
            "probes": probes,
            "estimate": _build_estimate(found, evaluation, probes),
        }
    )


def _not_checked(found: Inspection, *, probed: Collection[str]) -> Iterator[str]:
    """Yield what can only be known on other machines or by a call."""
    if found.on_fleet:
        yield "the extras, programs and variables of the fleet's workers, which only their machines have"
    unprobed = [name for name in found.called_targets if name not in probed and not _is_mock(found, name)]
    if unprobed:
        yield f"whether {', '.join(unprobed)} would answer (key, model, server): --probe calls each once"


def _is_mock(found: Inspection, name: str) -> bool:
    # On a fleet the configuration of the workers decides.
    targets = {} if found.config is None or found.on_fleet else found.config.targets
    return name in targets and targets[name].provider == "mock"


def _build_estimate(found: Inspection, evaluation: Evaluation, probes: list[ProbeResult]) -> RunEstimate | None:
    if found.dataset_stats is None or not found.targets:
        return None
    return estimate_run(
        EstimateInput(
            evaluation=evaluation,
            dataset=found.dataset_stats,
            targets=found.targets,
            judge_targets=found.judge_targets,
            judge_prompts=_prompts(evaluation),
            probed_usage={probe.target: probe.token_usage for probe in probes if probe.token_usage is not None},
            prices={} if found.config is None else known_prices(found.config.targets),
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


def _grader_summary(found: Inspection, evaluation: Evaluation, grader: GraderSpec) -> GraderSummary:
    called = found.targets_called_by(grader)
    most_calls = max_grader_calls(evaluation, grader) if called else 0
    return GraderSummary(name=grader.name, kind=grader_kind(grader), calls=called, most_calls=most_calls)
