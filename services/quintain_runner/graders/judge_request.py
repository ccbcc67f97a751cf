"""What a judge is asked, and how its reply is read. No I/O.

The judged answer is untrusted. It stands between marks that its author cannot predict (`judge_sections`), the judge is
told that the text between them is data, and only a reply that is a single JSON object counts as a verdict.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Final, Literal

from pydantic import JsonValue

from quintain.contracts.invoke import ChatMessage, InvokeRequest, InvokeSettings, JsonObject, Result
from quintain.errors import ConfigError
from quintain.graders import Case
from quintain_runner.files import InvalidJson, extract_fenced_json, read_json
from quintain_runner.graders.judge_sections import DATA_RULES, attachments, marked_content, shown_sections
from quintain_runner.graders.verdict import PASS_FIELDS, PASS_SCORE, GraderError, verdict_from_fields
from quintain_runner.plan.conversation import TrialConversation
from quintain_runner.results.row import Check, GraderRow, JudgeUsed, Row
from quintain_runner.spec.asking_graders import ANSWER_SECTIONS, JudgeGrader, RubricCriterion
from quintain_runner.spec.grader_options import IS_DATA
from quintain_runner.spec.templates import parse_template

#: The most characters of an invalid reply that its error shows.
_MAX_REPLY_CHARACTERS = 100

#: What a template of a judge prints for each section of the answer.
_SECTION_NAMES: Final = {name: f"the section {name}" for name in ANSWER_SECTIONS}

_VERDICT_FORM: Final = '{"pass": true or false, "reason": "one or two sentences"}'
_GRADE_FORM: Final = '{"score": a number from 0 to 1, "reason": "one or two sentences"}'

#: How a reply looks, by what it must say; a judge that may choose says either.
_VERDICT_RULES: Final = {
    kind: f"Reply with one JSON object and nothing else:\n{form}."
    for kind, form in {
        "pass": _VERDICT_FORM,
        "score": _GRADE_FORM,
        None: f"{_VERDICT_FORM}\nor, where a grade is called for, {_GRADE_FORM}",
    }.items()
}

_VERDICT_SCHEMA: Final[JsonObject] = {
    "type": "object",
    "properties": {"score": {"type": "number"}, "pass": {"type": "boolean"}, "reason": {"type": "string"}},
    "required": ["score", "pass", "reason"],
    "additionalProperties": False,
}

_RUBRIC_RULES: Final = """\
Judge each of these criteria by itself:
{criteria}

Reply with one JSON object and nothing else. It has each criterion by its name:
{{"criteria": {{{example}: {{"score": a number from 0 to 1, "reason": "one sentence"}}, and so on}}}}"""


def build_judge_request(
    spec: JudgeGrader, prompt: str, case: Case, result: Result | None, *, target: str
) -> InvokeRequest:
    """The request that asks the judge about an answer; the same answer to the same case gives the same request.

    ``prompt`` is the text of the judge's prompt file, without templates. ``result`` is None before the answer is known.
    """
    content = marked_content(prompt, shown_sections(spec, case, result), attachments(spec.show, case))
    return InvokeRequest(
        system_prompt=judge_instructions(spec, prompt),
        question=content if isinstance(content, str) else None,
        messages=None if isinstance(content, str) else [ChatMessage(role="user", content=content)],
        target=target,
        eval_case_id=case.id,
        settings=_structured_settings(spec) if spec.structured else None,
        grader=spec.name,
    )


def filled(spec: JudgeGrader, prompt: str, case: Case) -> tuple[JudgeGrader, str]:
    """A judge and the text of its prompt, with the templates of both filled with the fields of a case.

    Of the answer, which is untrusted, they name the section. A case's own judge has none: it is data. Raises
    `TemplateError`.
    """
    if spec.is_data:
        return spec, prompt

    def fill(text: str, part: str) -> str:
        return parse_template(text, f"the grader {spec.name}, {part}").render(case, **_SECTION_NAMES)

    rubric = [one.model_copy(update={"text": fill(one.text, f"criterion {one.id}")}) for one in spec.rubric]
    return spec.model_copy(update={"rubric": rubric}), fill(prompt, "prompt")


def request_hash(request: InvokeRequest) -> str:
    """The hash by which a verdict knows what its judge was sent."""
    return hashlib.sha256(request.to_wire()).hexdigest()[:16]


def sent_request(recorded: JsonValue, row: Row, used: JudgeUsed) -> InvokeRequest | None:
    """The request that a judge was sent about the answer of a row, made again; None where that gives another one.

    ``recorded`` is the judge's grader as ``run.json`` has it, where it is none of a case. A row does not hold the
    metadata of its case.
    """
    if row.case is None or (result := row.result) is None:
        return None
    try:
        asked = Case(id=row.case_id, **dict(row.case))
        is_own = used.grader is not None
        spec = JudgeGrader.model_validate(used.grader if is_own else recorded, context={IS_DATA: is_own})
        spec, prompt = filled(spec, spec.instructions or "", asked)
        case = TrialConversation.of_row(asked, row).graded_case
    except (ConfigError, ValueError):
        return None
    request = build_judge_request(spec, prompt, case, result, target=used.target)
    return request if request_hash(request) == used.request else None


def judge_instructions(spec: JudgeGrader, prompt: str) -> str:
    """The system prompt of a judge: the same for all answers, so that providers can cache it."""
    return "\n\n".join([*([prompt.strip()] if prompt.strip() else []), DATA_RULES, _reply_rules(spec)])


def _reply_rules(spec: JudgeGrader) -> str:
    if not spec.rubric:
        return _VERDICT_RULES[spec.vote_type]
    criteria = "\n".join(f"- {criterion.id}: {criterion.text}" for criterion in spec.rubric)
    return _RUBRIC_RULES.format(criteria=criteria, example=json.dumps(spec.rubric[0].id))


def _structured_settings(spec: JudgeGrader) -> InvokeSettings:
    schema = _VERDICT_SCHEMA
    if spec.rubric:
        scored = _object_schema({"score": {"type": "number"}, "reason": {"type": "string"}})
        schema = _object_schema({"criteria": _object_schema({criterion.id: scored for criterion in spec.rubric})})
    verdict: JsonObject = {"name": "verdict", "strict": True, "schema": schema}
    return InvokeSettings(response_format={"type": "json_schema", "json_schema": verdict})


def _object_schema(properties: Mapping[str, JsonValue]) -> JsonObject:
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(properties),
        "additionalProperties": False,
    }


def parse_judgement(
    reply: str, rubric: Sequence[RubricCriterion] = (), needed: Literal["pass", "score"] | None = None
) -> GraderRow:
    """The verdict in a judge's reply. Raises `GraderError` if it is invalid; an invalid reply never becomes a score.

    With a ``rubric`` the score is the mean of its criteria by their weights, and each criterion is a check. The answer
    passes with a score of `PASS_SCORE` or more, if it passes each criterion that is required. ``needed`` is what the
    verdict must say without one: votes of different kinds cannot be counted together.
    """
    try:
        value = read_json(extract_fenced_json(reply))
    except InvalidJson as json_error:
        raise GraderError(
            f"The judge gave no verdict ({json_error}); its reply begins with {reply_beginning(reply)}"
        ) from None
    if rubric:
        return _rubric_verdict(value, rubric, reply)
    if not isinstance(value, dict) or not value.keys() & {"score", *PASS_FIELDS}:
        raise GraderError(f"The judge's reply is JSON without pass and score; it begins with {reply_beginning(reply)}")
    if needed is not None and all(value.get(key) is None for key in (PASS_FIELDS if needed == "pass" else [needed])):
        raise GraderError(f"The judge's vote has no {needed}; its reply begins with {reply_beginning(reply)}")
    try:
        return verdict_from_fields({key: value.get(key) for key in ("score", "reason", *PASS_FIELDS)})
    except GraderError as error:
        raise GraderError(f"The judge's verdict cannot be used. {error.message}") from None


def _rubric_verdict(value: object, rubric: Sequence[RubricCriterion], reply: str) -> GraderRow:
    given = value.get("criteria") if isinstance(value, dict) else None
    if not isinstance(given, dict):
        raise GraderError(f"The judge's reply is JSON without criteria; it begins with {reply_beginning(reply)}")
    names = [criterion.id for criterion in rubric]
    if missing := [name for name in names if name not in given]:
        raise GraderError(f"The judge left out {', '.join(missing)}")
    if len(given) > len(names):
        raise GraderError(f"The judge gave {len(given) - len(names)} criteria that the rubric does not have")
    checks = [_criterion_check(criterion, given[criterion.id]) for criterion in rubric]
    weights = [criterion.weight for criterion in rubric]
    score = sum(weight * (check.score or 0.0) for weight, check in zip(weights, checks, strict=True)) / sum(weights)
    failed = [check for criterion, check in zip(rubric, checks, strict=True) if criterion.required and not check.passed]
    reasons = [f"{check.id}: {check.reason}" for check in failed or checks if check.reason and not check.passed]
    passed = score >= PASS_SCORE and not failed
    return GraderRow(score=score, passed=passed, reason="; ".join(reasons) or None, checks=checks)


def _criterion_check(criterion: RubricCriterion, given: object) -> Check:
    fields = {key: given.get(key) for key in ("score", "reason", *PASS_FIELDS)} if isinstance(given, dict) else {}
    try:
        verdict = verdict_from_fields(fields)
    except GraderError as error:
        raise GraderError(f"The judge's verdict on {criterion.id} cannot be used. {error.message}") from None
    return Check(
        id=criterion.id,
        text=criterion.text,
        passed=bool(verdict.passed),
        score=verdict.score,
        reason=verdict.reason,
        weight=criterion.weight,
    )


def reply_beginning(reply: str) -> str:
    """The beginning of a reply, for error messages."""
    return repr(reply.strip()[:_MAX_REPLY_CHARACTERS]) if reply.strip() else "nothing: it is empty"
