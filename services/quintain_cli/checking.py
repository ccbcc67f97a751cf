"""Looking at an evaluation before it is run: everything that can be found out without a call, and all of it at once."""

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
from quintain_cli.probing import Probe, Probing, probe_targets
from quintain_cli.run_ground import config_beside, is_on_fleet, targets_under_test
from quintain_runner import (
    CommandGrader,
    DatasetFacts,
    Estimate,
    Evaluation,
    Executing,
    FunctionGrader,
    Grader,
    GraderSpec,
    JudgeGrader,
    Plan,
    check_known,
    estimate_plan,
    judge_of,
    kind_of,
    load_evaluation,
    most_calls,
    open_dataset,
    prepared_graders,
    prices_of,
    read_beside,
    scrubbed,
)


class GraderFacts(Message):
    """A grader: its kind, whom it may call, and how often at most."""

    name: str
    kind: str
    calls: list[str] = Field(default_factory=list)
    most_calls: int = 0


class CheckReport(Message):
    """What was found. ``problems`` are mistakes to mend before a run; what a probe found is in ``probes``."""

    evaluation: str
    problems: list[str] = Field(default_factory=list)
    on_fleet: bool = False
    config: str | None = None
    variables: list[str] = Field(default_factory=list)
    cases: int | None = None
    repeats: int | None = None
    targets: list[str] = Field(default_factory=list)
    graders: list[GraderFacts] = Field(default_factory=list)
    max_calls: int | None = None
    probes: list[Probe] = Field(default_factory=list)
    estimate: Estimate | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckOptions:
    """What the command line says of a check."""

    path: Path
    targets: tuple[str, ...] = ()
    config: Path | None = None
    probe: bool = False


@dataclass(slots=True)
class _Found:
    """What has been found so far; a part stays None where a mistake kept it from being read."""

    problems: list[str] = field(default_factory=list)
    evaluation: Evaluation | None = None
    config: Config | None = None
    targets: tuple[str, ...] = ()
    facts: DatasetFacts | None = None
    graders: tuple[Grader, ...] = ()
    probes: list[Probe] = field(default_factory=list)

    @contextlib.contextmanager
    def telling(self) -> Iterator[None]:
        """A mistake within is told, and the check goes on."""
        try:
            yield
        except ConfigError as error:
            self.problems.extend(line for line in error.message.splitlines() if line not in self.problems)


async def look(options: CheckOptions, settings: Settings) -> CheckReport:
    """Look at everything. With ``probe`` each target is asked once, where nothing else is wrong.

    Raises what the bus raises where there is no fleet to probe.
    """
    found, on_fleet = _Found(), is_on_fleet(settings)
    with found.telling():
        found.evaluation = load_evaluation(options.path)
    folder = options.path.absolute().parent
    with found.telling():
        found.config = config_beside(settings, options.config, folder, on_fleet=on_fleet)
    with found.telling():
        if found.config is not None and not on_fleet:
            found.config.resolved(environment())
    evaluation = found.evaluation
    if evaluation is not None:
        with found.telling():
            if found.config is not None or on_fleet:
                found.targets = targets_under_test(evaluation, found.config, options.targets, on_fleet=on_fleet)
        await _look_at_cases(found, evaluation, on_fleet=on_fleet)
        if options.probe and not found.problems and found.facts is not None:
            probing = Probing(evaluation, found.config, found.facts, _called(found, evaluation))
            with found.telling():
                found.probes = await probe_targets(probing, settings)
    return _report(options, found, on_fleet=on_fleet)


async def _look_at_cases(found: _Found, evaluation: Evaluation, *, on_fleet: bool) -> None:
    if found.targets and found.config is not None and not on_fleet:
        with found.telling():
            check_known(_named(found, evaluation), list(found.config.targets))
    # What a command prints is looked at and forgotten: the run asks for its own.
    with tempfile.TemporaryDirectory() as folder, found.telling():
        found.facts = open_dataset(evaluation, Path(folder), environment())
    with found.telling():
        hidden = frozenset(() if found.config is None else found.config.references)
        async with prepared_graders(evaluation, scrubbed(environment(), hidden)) as graders:
            found.graders = graders


def _report(options: CheckOptions, found: _Found, *, on_fleet: bool) -> CheckReport:
    report = CheckReport(evaluation=str(options.path), problems=found.problems, on_fleet=on_fleet)
    config, evaluation = found.config, found.evaluation
    if config is not None:
        report = report.model_copy(update={"config": str(config.path), "variables": list(config.references)})
    if evaluation is None:
        return report
    spec = evaluation.spec
    return report.model_copy(
        update={
            "cases": None if found.facts is None else found.facts.cases,
            "repeats": spec.repeats,
            "targets": list(found.targets),
            "graders": [_grader_facts(found, grader) for grader in spec.graders],
            "max_calls": spec.max_calls,
            "probes": found.probes,
            "estimate": _estimate(found, evaluation),
        }
    )


def _estimate(found: _Found, evaluation: Evaluation) -> Estimate | None:
    if found.facts is None or not found.targets:
        return None
    return estimate_plan(
        Plan(
            spec=evaluation.spec,
            facts=found.facts,
            targets=found.targets,
            judge_targets=_judge_targets(found),
            prompts=_prompts(evaluation),
            measured={probe.target: probe.token_usage for probe in found.probes if probe.token_usage is not None},
            sessionless=_sessionless(found),
            prices={} if found.config is None else prices_of(found.config.targets),
        )
    )


def _prompts(evaluation: Evaluation) -> dict[str, str]:
    prompts: dict[str, str] = {}
    for grader in evaluation.spec.graders:
        if isinstance(grader, JudgeGrader):
            # One that cannot be read is among the problems already.
            with contextlib.suppress(ConfigError):
                prompts[grader.name] = read_beside(evaluation.folder, grader.prompt)
    return prompts


def _judge_targets(found: _Found) -> Mapping[str, str | None]:
    return {} if found.config is None else {name: one.judge_target for name, one in found.config.targets.items()}


def _sessionless(found: _Found) -> frozenset[str]:
    return frozenset(one.name for one in found.graders if isinstance(one, Executing) and not one.needs_session)


def _judges(found: _Found, grader: GraderSpec) -> list[str]:
    if not isinstance(grader, CommandGrader | FunctionGrader | JudgeGrader) or grader.name in _sessionless(found):
        return []
    return list(dict.fromkeys(judge_of(grader, target, _judge_targets(found)) for target in found.targets))


def _grader_facts(found: _Found, grader: GraderSpec) -> GraderFacts:
    judges = _judges(found, grader)
    return GraderFacts(
        name=grader.name, kind=kind_of(grader), calls=judges, most_calls=most_calls(grader) if judges else 0
    )


def _named(found: _Found, evaluation: Evaluation) -> Iterator[tuple[str, str]]:
    for index, grader in enumerate(evaluation.spec.graders):
        for judge in _judges(found, grader):
            yield f"{evaluation.path}: graders[{index}].judge_target", judge


def _called(found: _Found, evaluation: Evaluation) -> tuple[str, ...]:
    judges = [judge for grader in evaluation.spec.graders for judge in _judges(found, grader)]
    return tuple(dict.fromkeys([*found.targets, *judges]))
