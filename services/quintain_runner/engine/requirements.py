"""What a run requires of its cases. No I/O."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from types import MappingProxyType

from pydantic import ValidationError

from quintain.config.loader import Config
from quintain.config.targets import TargetConfig
from quintain.contracts.message import DEFAULT_REQUEST_BYTES
from quintain.errors import BadRequest, ConfigError
from quintain.graders import Case
from quintain_runner.graders.activity import is_tool_call_list
from quintain_runner.graders.judge_sections import section_text
from quintain_runner.plan.cases import input_length, token_count
from quintain_runner.plan.dataset import DatasetStats
from quintain_runner.plan.selection import CaseRequirement
from quintain_runner.plan.trials import check_targets_available, request_of
from quintain_runner.spec.asking_graders import ANSWER_SECTIONS, OWN_SECTIONS, JudgeGrader
from quintain_runner.spec.builtin_graders import ChoiceGrader, ComparingGrader, ToolCallsGrader
from quintain_runner.spec.evaluation import Evaluation, EvaluationSpec
from quintain_runner.spec.graders import GraderSpec, grader_kind, single_graders
from quintain_runner.spec.prompts import Prompt
from quintain_runner.spec.templates import parse_template

#: The most bytes of JSON that one character of a text takes (``\u0001``).
_MAX_BYTES_PER_CHARACTER = 6

#: An upper bound of what a request contains besides the texts of its case, in bytes.
_ENVELOPE_BYTES = 2000


def case_requirements(
    evaluation: Evaluation, targets: Collection[str], token_limits: Mapping[str, float] = MappingProxyType({})
) -> tuple[CaseRequirement, ...]:
    """The requirements on every case: it has what the prompts name, its requests can be sent, and its answers graded.

    ``targets`` are the names of the targets under test; a request contains its target's name. ``token_limits`` are the
    tokens a minute of their quotas, by name, where the configuration names them.
    """
    spec = evaluation.spec
    asking = (requirement for prompt in evaluation.prompts for requirement in _prompt_requirements(prompt))
    sections = _section_requirements(evaluation)
    tokens = _token_requirements(evaluation, token_limits)
    return (
        *_grading_requirements(evaluation),
        *_tool_call_requirements(spec),
        *sections,
        _own_section_requirement(evaluation),
        *asking,
        *tokens,
        _size_requirement(evaluation, targets),
    )


def check_turns(dataset: DatasetStats, targets: Iterable[str], one_question: Collection[str]) -> None:
    """Raise `ConfigError` with a line for each target that the dataset's conversations need and that is among those
    which take ``one_question``."""
    if dataset.conversations is None:
        return
    unable = [name for name in dict.fromkeys([*targets, *dataset.user_targets]) if name in one_question]
    if unable:
        raise ConfigError(
            "\n".join(
                f"{dataset.source.path}: cases have turns, and target {name} takes one question and keeps no history; "
                "take another target, or leave these cases out with where"
                for name in unable
            )
        )


def check_local_turns(
    dataset: DatasetStats, targets: Collection[str], configured: Mapping[str, TargetConfig], one_text: Collection[str]
) -> None:
    """Raise `ConfigError` for the users of a dataset, and for judges of its cases, that are not configured, and as
    `check_turns` does; ``one_text`` are the agents that take one text, as they say themselves."""
    judge_targets = {name: target.judge_target for name, target in configured.items()}
    check_targets_available(dataset.references(targets, judge_targets), list(configured))
    one_question = [name for name, target in configured.items() if name in one_text or not target.keeps_conversation]
    check_turns(dataset, targets, one_question)


def token_limits(config: Config, targets: Iterable[str]) -> dict[str, float]:
    """The tokens a minute of the quotas that these targets name."""
    names = {config.targets[name].quota for name in targets if name in config.targets}
    quotas = {name: config.quotas[name] for name in sorted(filter(None, names)) if name in config.quotas}
    return {name: limit for name, quota in quotas.items() if (limit := quota.tokens_per_minute) is not None}


def fields_in_use(evaluation: Evaluation) -> frozenset[str]:
    """The fields of a case that the evaluation file names: in prompts, ``where``, ``by`` and what graders read."""
    spec, graders = evaluation.spec, list(single_graders(evaluation.spec.graders))
    shown = (field for each in graders if isinstance(each, JudgeGrader) for field in each.show or ())
    prompted = (field for prompt in evaluation.prompts for field in prompt.fields)
    compared = (text for each in graders if isinstance(each, ComparingGrader) for text in each.templates)
    filled = (field for text in compared for field in parse_template(text).fields)
    called = (field for each in graders if isinstance(each, ToolCallsGrader) and (field := each.called_field))
    return frozenset(
        field.partition(".")[0] for field in (*shown, *called, *filled, *prompted, *spec.dataset.where, *spec.by)
    )


def _grading_requirements(evaluation: Evaluation) -> Iterator[CaseRequirement]:
    """The case has a grader with a weight, and what its graders compare with is there, and can be compared with."""
    is_narrowed, graders = evaluation.judges_only or evaluation.only_graders, evaluation.graders
    if not is_narrowed and not any(grader.weight for grader in graders):
        yield CaseRequirement(
            is_met=lambda case: any(grader.weight for grader in case.graders),
            problem="no grader with a weight",
            reason="no row of them has a score",
            fix="write graders in the evaluation file, or in each case",
        )
    comparing = [grader for grader in single_graders(graders) if _needs_expected(grader)]
    if comparing:
        yield CaseRequirement(
            is_met=lambda case: case.expected is not None,
            problem="no expected",
            reason=f"needed by {_grader_names(comparing)}",
            fix="add it to them, leave them out with where, or take another grader",
        )
    if choosing := [grader for grader in single_graders(graders) if isinstance(grader, ChoiceGrader)]:
        yield CaseRequirement(
            is_met=lambda case: case.choices is not None,
            problem="no choices",
            reason=f"needed by {_grader_names(choosing)}",
            fix="add them to these, a list of texts, leave them out with where, or take another grader",
        )
    for grader in single_graders(graders):
        if isinstance(grader, ComparingGrader) and (grader.templates or not grader.has_value):
            yield CaseRequirement(
                is_met=lambda case, grader=grader: _problem_of(grader, case) is None,  # type: ignore[misc]
                detail=lambda case, grader=grader: _problem_of(grader, case),  # type: ignore[misc]
                problem=f"{'a value' if grader.has_value else 'an expected'} that is not {grader.takes}",
                reason=f"needed by {_grader_names([grader])}",
                fix="mend it, leave them out with where, or take another grader",
            )


def _problem_of(grader: ComparingGrader, case: Case) -> str | None:
    """Why the answer to a case cannot be compared with what is right; None if it can, or nothing is expected."""
    is_missing = not grader.has_value and case.expected is None
    return None if is_missing else grader.problem_of(grader.answers(case))


def _tool_call_requirements(spec: EvaluationSpec) -> Iterator[CaseRequirement]:
    for grader in single_graders(spec.graders):
        if isinstance(grader, ToolCallsGrader) and (field := grader.called_field) is not None:
            yield CaseRequirement(
                is_met=lambda case, field=field: is_tool_call_list(case.metadata.get(field)),  # type: ignore[misc]
                problem=f"no list of tool calls in {field!r}",
                reason=f"needed by {grader.name} (tool-calls)",
                fix="add it to them, such as [search, pay], leave them out with where, or write called",
            )


def _section_requirements(evaluation: Evaluation) -> Iterator[CaseRequirement]:
    """Each section that a judge is to be shown and that not every case has."""
    judges = [grader for grader in single_graders(evaluation.graders) if isinstance(grader, JudgeGrader)]
    for name in dict.fromkeys(name for judge in judges for name in judge.show or ()):
        if name in {"question", "expected", *ANSWER_SECTIONS}:
            continue
        showing = _grader_names(judge for judge in judges if name in (judge.show or ()))
        yield CaseRequirement(
            is_met=lambda case, name=name: any(  # type: ignore[misc]
                section_text(name, prompt.apply(case), None) is not None for prompt in evaluation.prompts
            ),
            problem=f"no field {name!r}",
            reason=f"{showing} has it in show, and would not see it",
            fix="add it to them, or take it out of show",
            field=name,
            own_fields=OWN_SECTIONS,
        )


def _own_section_requirement(evaluation: Evaluation) -> CaseRequirement:
    """Each judge that a case has of its own is shown only what the case has."""

    def has_all(case: Case) -> bool:
        judges = (grader for grader in single_graders(case.graders) if isinstance(grader, JudgeGrader))
        shown = {name for judge in judges for name in judge.show or ()} - {*ANSWER_SECTIONS}
        asked = [prompt.apply(case) for prompt in evaluation.prompts] if shown else []
        return all(any(section_text(name, one, None) is not None for one in asked) for name in shown)

    return CaseRequirement(
        is_met=has_all,
        problem="a judge that is to be shown what its case lacks",
        reason="it would not see it",
        fix="add the fields of show to them, or take them out of show",
    )


def _token_requirements(evaluation: Evaluation, token_limits: Mapping[str, float]) -> Iterator[CaseRequirement]:
    """A call of more tokens than its quota has in a minute would be refused by its provider, whenever it starts."""
    for name, limit in token_limits.items():
        yield CaseRequirement(
            is_met=lambda case, limit=limit: all(  # type: ignore[misc]
                token_count(input_length(prompt.apply(case))) <= limit for prompt in evaluation.prompts
            ),
            problem=f"an input of more than {limit:,.0f} tokens",
            reason=f"tokens_per_minute of quota {name} allows one call no more",
            fix="shorten them, leave them out with where, or write the limit that the provider gives the key",
        )


def _needs_expected(grader: GraderSpec) -> bool:
    """Whether a grader fails without ``expected``. A judge does only if the file lists it in ``show``."""
    if isinstance(grader, JudgeGrader):
        return grader.show is not None and "expected" in grader.show
    return isinstance(grader, ChoiceGrader) or (isinstance(grader, ComparingGrader) and not grader.has_value)


def _grader_names(graders: Iterable[GraderSpec]) -> str:
    return ", ".join(f"{grader.name} ({grader_kind(grader)})" for grader in graders)


def _prompt_requirements(prompt: Prompt) -> Iterator[CaseRequirement]:
    if not prompt.asks_the_case:
        yield CaseRequirement(
            is_met=lambda case: not case.is_conversation,
            problem="turns or a user",
            reason=f"the prompt {prompt.name} takes the place of what the case says first, and not of its turns",
            fix="give the prompt only system, or leave them out with where",
        )
        yield CaseRequirement(
            is_met=lambda case: bool(prompt.apply(case).question_text.strip()),
            problem="an empty message",
            reason=f"the prompt {prompt.name} is nothing but white space with them",
            fix="fill in their fields, leave them out with where, or change the prompt",
        )


def _size_requirement(evaluation: Evaluation, targets: Collection[str]) -> CaseRequirement:
    # The longest name makes the largest request.
    target = max(targets, key=len, default="")
    max_bytes = evaluation.spec.max_body_bytes or DEFAULT_REQUEST_BYTES

    def fits(case: Case) -> bool:
        return all(request_fits(prompt.apply(case)) for prompt in evaluation.prompts)

    def request_fits(case: Case) -> bool:
        texts = (case.id, case.question, case.system_prompt, *(case.turns or ()))
        characters = sum(len(text) for text in texts if text is not None)
        if (
            case.messages is None
            and case.user is None
            and case.settings is None
            and characters * _MAX_BYTES_PER_CHARACTER + _ENVELOPE_BYTES < max_bytes
        ):
            return True
        try:
            body = request_of(case, target, evaluation.spec.repeats).to_wire()
        except (BadRequest, ValidationError):
            # The text is empty or not valid Unicode, which is another error.
            return True
        return len(body) <= max_bytes

    return CaseRequirement(
        is_met=fits,
        problem=f"a request of more than {max_bytes:,} bytes",
        reason="no message may be larger",
        fix="raise max_body_bytes, shorten them, or leave them out with where",
    )
