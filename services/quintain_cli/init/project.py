"""The files that a carried evaluation becomes. No I/O."""

from __future__ import annotations

import json
import re
from typing import Any

from quintain.config.yaml_file import write_yaml
from quintain.errors import ConfigError
from quintain.graders import Case
from quintain.runtime.text_files import InvalidLine
from quintain_cli.init.carried import At, CarriedCase, CarriedEvaluation, JsonDict, unique
from quintain_cli.init.prompts import paths_in, printed, renamed
from quintain_runner.plan.cases import case_from_fields, require_question
from quintain_runner.spec.templates import parse_template

#: The target of an evaluation none of whose own targets could be carried.
STAND_IN = "mock"

#: Fields of a case that have a meaning of their own: a variable of this name gets another one.
_RESERVED = frozenset({"id", "messages", "settings", "system_prompt", "expected", "turns", "graders", "not_carried"})

#: Stands for the assertions that are not carried, so that no answer passes for the lack of them: none matches it.
_NOT_CARRIED: JsonDict = {"name": "not-carried", "builtin": "regex", "pattern": "(?!)"}

#: Stands for no assertion, which every answer passes there: every answer matches it.
_NO_ASSERTIONS: JsonDict = {"name": "no-assertions", "builtin": "regex", "pattern": "^"}


def project_files(carried: CarriedEvaluation) -> dict[str, str]:
    """Return the files of a carried evaluation, by name."""
    targets, evaluated = dict(carried.targets), list(carried.evaluated)
    if not evaluated:
        targets.setdefault(STAND_IN, {"provider": "mock"})
        evaluated = [STAND_IN]
        at = At(carried.source, lambda _: 1)
        carried.leave_out(at, f"its target: {STAND_IN}, which repeats the question, stands in; edit quintain.yaml")
    prompts = _without_direct_input(carried)
    templates = [text for prompt in prompts for text in _texts(prompt)]
    for case in carried.cases:
        _fill(case.variables, templates)
    names = _names_to_change(carried)
    carried.cases = [case for case in carried.cases if _is_asked(carried, case, names, templates)]
    if not carried.cases:
        raise ConfigError(f"{carried.source}: none of its tests can be carried over: {carried.reasons()}")
    cases = [_fields(carried, case, names) for case in carried.cases]
    ids: set[str] = set()
    for number, fields in enumerate(cases, start=1):
        fields["id"] = unique(str(fields["id"] or f"case-{number}"), ids)
    programs = [
        one for one in cases[0]["graders"] if "command" in one and all(one in case["graders"] for case in cases)
    ]
    for case, fields in zip(carried.cases, cases, strict=True):
        taken = set[str]()
        own = [one for one in fields.pop("graders") if "command" not in one]
        own = [{**one, "name": unique(one["name"], taken)} if "name" in one else one for one in own]
        if any("command" in one and one not in programs for one in case.graders):
            carried.leave_out(case.at, "a program of this test alone; one of all tests is a grader of the evaluation")
            case.lost.append("script")
        if case.lost:
            own.append({**_NOT_CARRIED, **({"weight": 0} if own or programs else {})})
            fields["not_carried"] = case.lost
        elif not own and not programs:
            own = [_NO_ASSERTIONS]
        fields |= {"graders": own} if own else {}  # noqa: PLW2901 -- changed in place
    evaluation: JsonDict = {
        "dataset": "cases.jsonl",
        "targets": evaluated,
        **({"prompts": [_changed(prompt, names) for prompt in prompts]} if prompts else {}),
        **({"repeats": carried.repeats} if carried.repeats else {}),
        **(
            {"graders": [{"name": f"program-{n}", **one} for n, one in enumerate(programs, start=1)]}
            if programs
            else {}
        ),
    }
    # In the order of the file, and then what is in others.
    carried.left_out.sort(key=lambda note: (note.file != "", 0 if note.file else note.line))
    return {
        "quintain.yaml": write_yaml({"targets": targets}),
        "eval.yaml": write_yaml(evaluation),
        "cases.jsonl": "".join(json.dumps(case, ensure_ascii=False, default=str) + "\n" for case in cases),
    }


def _texts(prompt: JsonDict) -> list[str]:
    return [prompt["user"]] if "user" in prompt else [message["content"] for message in prompt["messages"]]


def _without_direct_input(carried: CarriedEvaluation) -> list[JsonDict]:
    """The prompts; none where the only one is a variable with the messages themselves, as AgentV has it."""
    texts = [text for prompt in carried.prompts for text in _texts(prompt)]
    only = re.fullmatch(r"\{\{\s*(\w+)\s*\}\}", texts[0]) if len(texts) == 1 else None
    if only is None or not any(isinstance(case.variables.get(only[1]), list) for case in carried.cases):
        return carried.prompts
    for case in carried.cases:
        asked = case.variables.pop(only[1], None)
        case.fields["messages" if isinstance(asked, list) else "question"] = asked
    carried.prompts = []
    return carried.prompts


def _is_asked(carried: CarriedEvaluation, case: CarriedCase, names: frozenset[str], templates: list[str]) -> bool:
    """Whether a case fills the prompts; else it is left out. What they print otherwise than there is noted."""
    fields = {**_fields(carried, case, names), "id": "case", "graders": []}
    try:
        row = require_question(case_from_fields(fields)) if not templates else case_from_fields(fields)
        texts = [parse_template(renamed(text, names)).render(row) for text in templates if isinstance(row, Case)]
    except (ValueError, ConfigError) as error:
        row, texts = InvalidLine(str(error)), []
    if not isinstance(row, Case) or not all(map(str.strip, texts)):
        carried.leave_out(case.at, row if isinstance(row, InvalidLine) else "a test that asks nothing")
        return False
    if any(value in ([], {}) for value in case.variables.values()) and any("if " in text for text in templates):
        carried.leave_out(case.at.under("vars"), "an empty list or object is false in a condition here, and true there")
    if texts != [printed(text, case.variables) for text in templates]:
        carried.leave_out(case.at.under("vars"), "how a prompt prints them: lists and objects are JSON here")
    return True


def _fill(variables: JsonDict, templates: list[str]) -> None:
    """Give a case an empty text for what a prompt asks for and promptfoo prints as nothing."""
    variables |= {name: "" for name, value in variables.items() if value is None}
    for template in templates:
        for *keys, last in paths_in(template, required=True):
            values: Any = variables
            for key in keys:
                values = values.setdefault(key, {}) if isinstance(values, dict) else None
            if isinstance(values, dict):
                values.setdefault(last, "")


def _names_to_change(carried: CarriedEvaluation) -> frozenset[str]:
    """The variables whose names are fields of a case with another meaning, or that are not what such a field holds."""
    values = [(name, value) for case in carried.cases for name, value in case.variables.items()]
    odd = {name for name, value in values if name == "question" and not (isinstance(value, str) and value)}
    return _RESERVED | odd | {name for name, value in values if name == "user" and isinstance(value, dict)}


def _changed(prompt: JsonDict, names: frozenset[str]) -> Any:
    if "user" not in prompt:
        messages = [{**one, "content": renamed(one["content"], names)} for one in prompt["messages"]]
        return {**prompt, "messages": messages}
    changed = {**prompt, "user": renamed(prompt["user"], names)}
    return changed if "name" in changed else changed["user"]


def _fields(carried: CarriedEvaluation, case: CarriedCase, names: frozenset[str]) -> JsonDict:
    """The fields of a case: its metadata and its variables, under names that mean nothing else."""
    taken = {*case.variables, *_RESERVED, "question", "user"}
    for name in case.metadata.keys() & taken:
        carried.leave_out(case.at.under("metadata", name), "a name that has another meaning in a case")
    metadata = {name: value for name, value in case.metadata.items() if name not in taken}
    own = {f"var_{name}" if name in names else name: value for name, value in case.variables.items()}
    return {"id": case.id, **metadata, **own, **case.fields, "graders": case.graders}
