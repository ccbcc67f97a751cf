"""What the configuration says of an evaluation's judges: what they cannot be shown, and who judges itself."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from quintain.config.loader import Config
from quintain.config.targets import ModelTarget, TargetConfig, TargetTarget
from quintain.contracts.invoke import JsonObject
from quintain.contracts.message import DEFAULT_REQUEST_BYTES
from quintain.errors import ConfigError
from quintain.graders import Case
from quintain_runner.files import read_text_file
from quintain_runner.graders.judge_request import build_judge_request, filled
from quintain_runner.graders.judge_sections import attachments
from quintain_runner.graders.pairwise import filled_prompt
from quintain_runner.plan.dataset import DatasetStats
from quintain_runner.plan.selection import FILLS_TEMPLATES, CaseRequirement
from quintain_runner.spec.asking_graders import ACTIVITY_SECTIONS, JudgeGrader, PairwiseGrader
from quintain_runner.spec.evaluation import Evaluation
from quintain_runner.spec.graders import judges_of, single_graders
from quintain_runner.spec.templates import parse_template


def judge_targets_of(config: Config | None) -> dict[str, str | None]:
    """The configuration's ``judge_target`` by target."""
    return {} if config is None else {name: target.judge_target for name, target in config.targets.items()}


def agents_of(config: Config | None) -> frozenset[str]:
    """The configured targets whose answers have steps as a rule.

    Others may have some, such as a Python function: of these it is known once there is an answer.
    """
    targets = {} if config is None else config.targets
    return frozenset(
        name
        for name, target in targets.items()
        if target.tells_steps and (target.is_agent or isinstance(target, TargetTarget))
    )


def settings_of(config: Config | None, env: Mapping[str, str]) -> dict[str, JsonObject]:
    """The settings of the configured targets; without ``extra_body``, which may hold what no row may show."""
    targets = {} if config is None else config.resolve(env).targets
    return {
        name: target.default_settings.model_dump(mode="json", exclude_none=True, exclude={"extra_body"})
        if isinstance(target, ModelTarget)
        else {}
        for name, target in targets.items()
    }


def judge_problems(
    evaluation: Evaluation, targets: Sequence[str], configured: Mapping[str, TargetConfig]
) -> Iterator[str]:
    """A line for each judge that is to be shown what a target did, of a target that cannot tell it."""
    for index, judge in _judges(evaluation):
        section = next((name for name in ACTIVITY_SECTIONS if name in (_show_of(judge) or ())), None)
        for name in targets:
            if section is not None and name in configured and not configured[name].tells_steps:
                yield (
                    f"{evaluation.path}: graders[{index}].show: {section}: target {name} (provider "
                    f"{configured[name].provider}), as it is configured, has no steps; take {section} out of show, or "
                    "let the target tell them (docs/protocol/steps.md)"
                )


def judge_warnings(
    evaluation: Evaluation,
    dataset: DatasetStats | None,
    targets: Sequence[str],
    judge_targets: Mapping[str, str | None],
) -> Iterator[str]:
    """A line for each judge, of the evaluation or of a case, that judges its own answers."""
    judged = {
        f"{evaluation.path}: graders[{index}] ({judge.name})": [
            name for name in targets if name in judges_of(judge, name, judge_targets)
        ]
        for index, judge in _judges(evaluation)
    }
    if dataset is not None:
        own = dataset.own_graders
        judged |= {
            f"{dataset.source.path}: graders ({name})": [
                one for one in targets if one in own.judges_of(one, judge_targets, name)
            ]
            for name in own.targets
        }
    for place, names in judged.items():
        if names:
            yield (
                f"{place}: {', '.join(names)} would judge its own answers, and models favour their own; name another "
                "target as judge"
            )


def judge_prompts(evaluation: Evaluation) -> dict[str, str]:
    """The instructions of the judges by grader name, those in lists too."""
    prompts: dict[str, str] = {}
    for judge in single_graders(evaluation.graders):
        if isinstance(judge, JudgeGrader) and judge.instructions is not None:
            prompts[judge.name] = judge.instructions
        elif isinstance(judge, JudgeGrader | PairwiseGrader) and judge.prompt is not None:
            # A prompt that cannot be read, or is no template, is already among the problems.
            with contextlib.suppress(ConfigError, ValueError):
                text = read_text_file(evaluation.folder, judge.prompt)
                parse_template(text)
                prompts[judge.name] = text
    return prompts


def judge_requirements(
    evaluation: Evaluation, targets: Sequence[str], configured: Mapping[str, TargetConfig]
) -> tuple[CaseRequirement, ...]:
    """The requirements on every case: that it fills the judges' templates, and that judges which are shown images or
    files can be."""
    judge_targets = {name: target.judge_target for name, target in configured.items()}
    requirements: list[CaseRequirement] = []
    prompts = judge_prompts(evaluation)
    for _, judge in _judges(evaluation):
        text = prompts.get(judge.name, "")
        fill = partial(filled, judge, text) if isinstance(judge, JudgeGrader) else partial(filled_prompt, judge, text)
        requirements.append(replace(FILLS_TEMPLATES, is_met=partial(_fills, fill, evaluation)))
        asked = dict.fromkeys(one for name in targets for one in judges_of(judge, name, judge_targets))
        blind = [name for name in asked if name in configured and not configured[name].takes_images]
        requirements.extend(_requirements_of(judge, blind, evaluation))
    return tuple(requirements)


def _fills(fill: Callable[[Case], object], evaluation: Evaluation, case: Case) -> bool:
    for prompt in evaluation.prompts:
        fill(prompt.apply(case))
    return True


def _requirements_of(
    judge: JudgeGrader | PairwiseGrader, blind: Sequence[str], evaluation: Evaluation
) -> Iterator[CaseRequirement]:
    """Those of one judge; ``blind`` are the targets it asks that take text only."""
    max_bytes = evaluation.spec.max_body_bytes or DEFAULT_REQUEST_BYTES

    def shown(case: Case) -> list[Case]:
        """The case under each prompt with which the judge is shown attachments."""
        asked = (prompt.apply(case) for prompt in evaluation.prompts)
        return [one for one in asked if attachments(_show_of(judge), one)]

    if blind:
        yield CaseRequirement(
            is_met=lambda case: not shown(case),
            problem="images or files",
            reason=f"{judge.name} shows them to {', '.join(blind)}, which takes text only",
            fix="take another judge_target, leave them out with where, or write a show without them",
        )
    if isinstance(judge, JudgeGrader):
        yield CaseRequirement(
            is_met=lambda case: all(
                len(build_judge_request(judge, "", one, None, target=judge.name).to_wire()) <= max_bytes
                for one in shown(case)
            ),
            problem=f"images or files of more than {max_bytes:,} bytes with what else is shown",
            reason=f"{judge.name} shows them to its judge, and no message may be larger",
            fix="raise max_body_bytes, leave them out with where, or write a show without them",
        )


def unknown_of_fleet(evaluation: Evaluation) -> str | None:
    """What check cannot know of the targets of a fleet, where judges are to be shown steps or may be shown images."""
    if next(_judges(evaluation), None) is None:
        return None
    return "whether the fleet's targets tell the steps, and its judges take the images, that judges are to be shown"


def _judges(evaluation: Evaluation) -> Iterator[tuple[int, JudgeGrader | PairwiseGrader]]:
    for index, grader in evaluation.numbered_graders:
        yield from ((index, one) for one in single_graders([grader]) if isinstance(one, JudgeGrader | PairwiseGrader))


def _show_of(judge: JudgeGrader | PairwiseGrader) -> list[str] | None:
    """What the grader says that its judge sees; None where it does not say it."""
    return judge.show if isinstance(judge, JudgeGrader) else None
