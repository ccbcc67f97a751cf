"""An evaluation of another tool, carried over: the files that it becomes, and what could not be carried. No I/O."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quintain.config.yaml_file import Place, YamlDocument, read_yaml, write_yaml
from quintain.errors import ConfigError

JsonDict = dict[str, Any]

#: Assertions that `assertions.py` checks, by the name that promptfoo and AgentV share.
CHECKED_ASSERTIONS = frozenset(
    {"equals", "contains", "contains-any", "contains-all", "starts-with", "ends-with", "regex", "is-json"}
)

#: Assertions that a model decides, by their names there.
JUDGED_ASSERTIONS = frozenset({"llm-rubric", "llm-grader", "rubric", "rubrics", "model-graded-closedqa", "g-eval"})

#: Keys of an assertion that are carried, and names, which change nothing.
_KNOWN_OF_ASSERTION = frozenset({"type", "value", "prompt", "criteria", "rubrics", "negate", "name", "description"})

#: Keys that change what an assertion is applied to: without them it would check something else.
_CHANGING_KEYS = frozenset({"transform", "contextTransform", "preprocessors", "flags"})

#: The target of an evaluation none of whose own targets could be carried.
STAND_IN = "mock"

_NAME_CHARACTERS = re.compile(r"[^A-Za-z0-9._-]+")
_FILE_VALUE = re.compile(r"(file://)?(?P<path>\.{0,2}/?[^\s]+\.(md|txt))$")
_ELSEWHERE = re.compile(r"file://|package:|\.{0,2}/[^\s]+$")
_ANY_CASE = re.compile(r"^i(contains.*)$")


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A part of the other tool's file that was not carried: its line (from 1, 0 if unknown), its place, and why.

    ``file`` is the name of a second file that it is in; empty for the evaluation's own.
    """

    line: int
    place: str
    reason: str
    file: str = ""


@dataclass(slots=True, kw_only=True)
class CarriedEvaluation:
    """What was read of another tool's evaluation, in the shape of our files; ``folder`` has the files that it names."""

    document: YamlDocument
    folder: Path
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
        for key in value:
            if key not in known:
                self.leave_out((*place, key), "no counterpart")

    def read_text(self, name: str, place: Place) -> str | None:
        """Return the text of a file that the evaluation names; None, with a note, if it cannot be carried."""
        if re.search(r"\.(py|[cm]?[jt]s|rb|go)(:|$)", name) or ":" in name:
            self.leave_out(place, f"a program that makes the text ({name})")
            return None
        try:
            return (self.folder / name).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            self.leave_out(place, f"{name} cannot be read: {getattr(error, 'strerror', None) or 'not UTF-8'}")
            return None

    def read_tests(self, name: str, place: Place) -> list[object]:
        """Return the tests in a file of YAML, JSON or JSON lines; none, with a note, if it cannot be carried."""
        text = self.read_text(name, place)
        if text is None:
            return []
        try:
            if name.endswith(".jsonl"):
                return [json.loads(line) for line in text.splitlines() if line.strip()]
            value = read_yaml(self.folder / name).value
        except (ValueError, ConfigError) as error:
            self.leave_out(place, f"{name} cannot be read: {error}")
            return []
        return list(value) if isinstance(value, list) else [value]

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

    def assertions(self, value: object, place: Place, *, criteria: object = None) -> list[JsonDict]:
        """Convert one assertion, or the criteria that one lists; what has no counterpart becomes a note.

        ``criteria``: what a model judges by where the assertion itself has no criterion.
        """
        if not isinstance(value, dict) or not isinstance(value.get("type"), str):
            self.leave_out(place, "an assertion without a type")
            return [_uncheckable("an assertion without a type")]
        kind = value["type"].removeprefix("not-")
        without_case = _ANY_CASE.match(kind)
        kind = "judge" if kind in JUDGED_ASSERTIONS else without_case[1] if without_case else kind
        reason = self._reason_to_leave_out(kind, value)
        if reason is not None:
            self.leave_out(place, reason)
            return [_uncheckable(value["type"])]
        self.leave_out_unknown(value, place, _KNOWN_OF_ASSERTION)
        flags = {
            "negate": value["type"].startswith("not-") or value.get("negate") is True,
            "any_case": without_case is not None,
        }
        asserted: list[object] = [value.get("value")]
        if kind == "judge":
            asserted = [self._criterion(one, place) for one in _criteria_of(value) or [criteria]]
        elif kind in ("contains-any", "contains-all") and isinstance(value.get("value"), str):
            # promptfoo takes a text with commas, too.
            asserted = [[one.strip() for one in value["value"].split(",")]]
        return [
            _uncheckable(value["type"])
            if kind == "judge" and one is None
            else {"type": kind, "value": one, **{name: True for name, is_set in flags.items() if is_set}}
            for one in asserted
        ]

    def _reason_to_leave_out(self, kind: str, value: JsonDict) -> str | None:
        asserted = value.get("value")
        if kind != "judge" and kind not in CHECKED_ASSERTIONS:
            return f"no counterpart of the assertion {value['type']}; write a grader for it"
        if changing := _CHANGING_KEYS & value.keys():
            return f"an assertion with {min(changing)}; write a grader for it"
        if kind == "is-json" and asserted is not None:
            return "is-json with a schema; use the built-in grader json-schema"
        if kind != "judge" and isinstance(asserted, str) and _ELSEWHERE.match(asserted):
            return "an assertion whose value is in a file"
        return None

    def _criterion(self, value: object, place: Place) -> str | None:
        """Return what a model judges by, read from its file if it is in one; None, with a note, without any."""
        text = (
            value
            if isinstance(value, str)
            else None
            if value is None
            else json.dumps(value, ensure_ascii=False, default=str)
        )
        if text is not None and (named := _FILE_VALUE.match(text)):
            text = self.read_text(named["path"], place)
        elif text is None or text.startswith("file://"):
            self.leave_out(place, "a judge without a criterion, or with one that a program makes")
            return None
        if text is not None and re.search(r"\{\{|\{%", text) and named:
            self.leave_out(place, f"the template of a judge's prompt ({named['path']}); write a grader for it")
            return None
        return text


def _criteria_of(value: JsonDict) -> list[object]:
    """The criteria of a judge: one, or a list of texts or of mappings with an outcome."""
    for key in ("value", "prompt", "criteria", "rubrics"):
        found = value.get(key)
        if isinstance(found, list):
            return [one.get("outcome", one.get("description")) if isinstance(one, dict) else one for one in found]
        if found is not None:
            return [found]
    return []


def _uncheckable(kind: str) -> JsonDict:
    """Stand for an assertion that could not be carried, so that no answer passes for the lack of it."""
    return {"type": "not-carried", "value": kind}


def project_files(carried: CarriedEvaluation, assertions_source: str) -> dict[str, str]:
    """Return the files of a carried evaluation, by name."""
    targets = {**carried.targets}
    evaluated = carried.evaluated if carried.evaluated is not None else list(targets)
    if not evaluated:
        targets.setdefault(STAND_IN, {"provider": "mock"})
        evaluated = [STAND_IN]
        carried.leave_out((), f"its target: {STAND_IN}, which repeats the question, stands in; edit quintain.yaml")
    kinds = {assertion["type"] for case in carried.cases for assertion in case.get("assertions") or []}
    graders: list[JsonDict] = [
        {
            "name": "assertions",
            "function": "assertions:assertions",
            **({"target": {"max_calls": _most_judged(carried.cases)}} if "judge" in kinds else {}),
        },
        *([{"name": "carried", "function": "assertions:carried", "weight": 0}] if "not-carried" in kinds else []),
        *carried.graders,
    ]
    evaluation: JsonDict = {
        "dataset": "cases.jsonl",
        "targets": evaluated,
        **({"prompts": carried.prompts} if carried.prompts else {}),
        **({"repeats": carried.repeats} if carried.repeats else {}),
        "graders": graders,
    }
    return {
        "quintain.yaml": to_yaml({"targets": targets}),
        "eval.yaml": to_yaml(evaluation),
        "cases.jsonl": "".join(json.dumps(case, ensure_ascii=False, default=str) + "\n" for case in carried.cases),
        "assertions.py": assertions_source,
    }


def to_yaml(value: object) -> str:
    """Write a value as YAML, in the order of its keys."""
    return write_yaml(value)


def _most_judged(cases: Sequence[JsonDict]) -> int:
    return max(len([one for one in case.get("assertions") or [] if one["type"] == "judge"]) for case in cases)


def mapping(value: object) -> JsonDict:
    """Return the value if it is a mapping, else an empty one."""
    return value if isinstance(value, dict) else {}


def _place_text(place: Place) -> str:
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in place)
    return "".join(parts).removeprefix(".")
