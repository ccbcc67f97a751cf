"""An evaluation of another tool, carried over: the files that it becomes, and what could not be carried. No I/O."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from quintain.config.yaml_file import Place, YamlDocument

JsonDict = dict[str, Any]

#: Assertions that `assertions.py` checks, by the name that promptfoo and AgentV share.
CHECKED_ASSERTIONS = frozenset(
    {"equals", "contains", "contains-any", "contains-all", "starts-with", "ends-with", "regex", "is-json"}
)

#: Assertions that a model decides, by their names there.
JUDGED_ASSERTIONS = frozenset({"llm-rubric", "llm-grader", "rubric", "rubrics", "model-graded-closedqa", "g-eval"})

_NAME_CHARACTERS = re.compile(r"[^A-Za-z0-9._-]+")
_FILE_VALUE = re.compile(r"file://|\.{0,2}/[^\s]+$")
_ANY_CASE = re.compile(r"^i(contains.*)$")


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A part of the other tool's file that was not carried: its line (from 1, 0 if unknown), its place, and why."""

    line: int
    place: str
    reason: str


@dataclass(slots=True, kw_only=True)
class CarriedEvaluation:
    """What was read of another tool's evaluation, in the shape of our files."""

    document: YamlDocument
    targets: dict[str, JsonDict] = field(default_factory=dict)
    evaluated: list[str] | None = None
    prompts: list[object] = field(default_factory=list)
    cases: list[JsonDict] = field(default_factory=list)
    graders: list[JsonDict] = field(default_factory=list)
    repeats: int | None = None
    left_out: list[LeftOut] = field(default_factory=list)

    def leave_out(self, place: Place, reason: str) -> None:
        """Note that the part at this place is not carried."""
        self.left_out.append(LeftOut(self.document.line(place), _place_text(place), reason))

    def leave_out_unknown(self, value: Mapping[str, object], place: Place, known: Iterable[str]) -> None:
        """Note every key of a mapping that is not known."""
        for key in value.keys() - set(known):
            self.leave_out((*place, key), "no counterpart")

    def add_target(self, name: str, target: JsonDict) -> None:
        """Add a target under a name that queues may have, made unique."""
        base = _NAME_CHARACTERS.sub("-", name).strip("-.") or "target"
        chosen, number = base, 2
        while chosen in self.targets:
            chosen, number = f"{base}-{number}", number + 1
        self.targets[chosen] = target

    def add_case(self, case: JsonDict) -> None:
        """Add a case; its id is made unique."""
        base, number = str(case.get("id") or f"case-{len(self.cases) + 1}"), 2
        case_id, ids = base, {one["id"] for one in self.cases}
        while case_id in ids:
            case_id, number = f"{base}-{number}", number + 1
        self.cases.append({**case, "id": case_id})

    def assertion(self, value: object, place: Place, *, any_case: bool = False) -> JsonDict | None:
        """Convert one assertion; None, with a note, if its type has no counterpart."""
        if not isinstance(value, dict) or not isinstance(value.get("type"), str):
            self.leave_out(place, "an assertion without a type")
            return None
        kind = value["type"]
        negate = kind.startswith("not-") or value.get("negate") is True
        kind = kind.removeprefix("not-")
        without_case = _ANY_CASE.match(kind)
        kind = without_case[1] if without_case else kind
        asserted = value.get("value", value.get("prompt", value.get("criteria")))
        if kind in JUDGED_ASSERTIONS:
            kind = "judge"
        elif kind not in CHECKED_ASSERTIONS:
            self.leave_out(place, f"no counterpart of the assertion {value['type']}; write a grader for it")
            return None
        if isinstance(asserted, str) and _FILE_VALUE.match(asserted):
            self.leave_out(place, "an assertion whose value is in a file")
            return None
        ignores_case = any_case or without_case is not None
        flags = {"negate": negate, "any_case": ignores_case and kind != "judge"}
        return {"type": kind, "value": asserted, **{name: True for name, is_set in flags.items() if is_set}}


def project_files(carried: CarriedEvaluation, assertions_source: str) -> dict[str, str]:
    """Return the files of a carried evaluation, by name."""
    targets = carried.targets or {"mock": {"provider": "mock"}}
    asks_judge = any(
        assertion["type"] == "judge" for case in carried.cases for assertion in case.get("assertions") or []
    )
    graders: list[JsonDict] = [
        {
            "name": "assertions",
            "function": "assertions:assertions",
            **({"target": {"max_calls": _most_judged(carried.cases)}} if asks_judge else {}),
        },
        *carried.graders,
    ]
    evaluation: JsonDict = {
        "dataset": "cases.jsonl",
        "targets": carried.evaluated or list(targets),
        **({"prompts": carried.prompts} if carried.prompts else {}),
        **({"repeats": carried.repeats} if carried.repeats else {}),
        "graders": graders,
    }
    return {
        "quintain.yaml": to_yaml({"targets": targets}),
        "eval.yaml": to_yaml(evaluation),
        "cases.jsonl": "".join(json.dumps(case, ensure_ascii=False) + "\n" for case in carried.cases),
        "assertions.py": assertions_source,
    }


def to_yaml(value: object) -> str:
    """Write a value as YAML, in the order of its keys."""
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=120)


def _most_judged(cases: Sequence[JsonDict]) -> int:
    return max(len([one for one in case.get("assertions") or [] if one["type"] == "judge"]) for case in cases)


def mapping(value: object) -> JsonDict:
    """Return the value if it is a mapping, else an empty one."""
    return value if isinstance(value, dict) else {}


def _place_text(place: Place) -> str:
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in place)
    return "".join(parts).removeprefix(".")
