"""Assertions of promptfoo and AgentV as graders of ours."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import floor, isfinite
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from quintain.config.file_errors import validation_messages
from quintain.config.yaml_file import parse_yaml
from quintain.errors import ConfigError
from quintain.runtime.text_files import read_text
from quintain_cli.init.carried import FILE_PREFIX, At, CarriedCase, CarriedEvaluation, Found, JsonDict, mapping
from quintain_cli.init.prompts import rendered
from quintain_cli.init.targets import add_provider
from quintain_runner.graders.builtin import build_validator
from quintain_runner.spec.grader_options import IS_DATA
from quintain_runner.spec.graders import GraderSpec
from quintain_runner.spec.right_answers import answer_text

_SPEC: TypeAdapter[object] = TypeAdapter(GraderSpec)

#: Assertions that a model decides: how they are judged there, if not by the criterion alone.
_JUDGED: Mapping[str, str] = {
    **dict.fromkeys(("llm-rubric", "llm-grader", "llm-judge", "rubric", "rubrics", "model-graded-closedqa"), ""),
    "g-eval": "in steps that a model writes first",
    "factuality": "by categories of how it differs from a right answer",
    "model-graded-factuality": "by categories of how it differs from a right answer",
    "agent-rubric": "by an agent with tools",
}
_RULE = "The answer passes if this statement about it is true:\n\n"
_FACTS = "It agrees in its facts with this answer: "

_KNOWN = frozenset(
    {"type", "value", "threshold", "weight", "metric", "assert", "name", "description", "negate", "provider"}
)
_KNOWN_OF_AGENTV = frozenset({"prompt", "criteria", "rubrics", "min_score", "target"})
_SCRIPTS, _KNOWN_OF_SCRIPTS = ("script", "code-grader", "code-judge"), frozenset({"command", "path", "cwd", "config"})

#: Keys that change what an assertion is applied to: without them it would check something else.
_CHANGING = ("transform", "contextTransform", "preprocessors", "postprocess", "flags")

#: What passes where an assertion does not say it, and what promptfoo embeds with and takes a schema for by itself.
_DEFAULTS: Mapping[str, float] = {"similar": 0.75, "similar:cosine": 0.75, "g-eval": 0.7, "levenshtein": 5}
_EMBEDDING = "openai:embedding:text-embedding-3-large"
_DRAFT = {"$schema": "http://json-schema.org/draft-07/schema#"}

#: The parts of a list in a text: what is between its pieces, and a piece with quotes or without.
_SEPARATORS = re.compile(r"[\s,]*")
_PIECE = re.compile(r'"(?P<quoted>(?:\\["\\]|""|[^"])*+)"\s*|(?!")(?P<plain>[^,]*)')


@dataclass(frozen=True, slots=True)
class Judged:
    """The test of an assertion: its variables, the provider that judges it, and by what if nothing else says it."""

    variables: Mapping[str, Any] = field(default_factory=dict)
    provider: object = None
    criteria: object = None


def add_graders(carried: CarriedEvaluation, asserted: list[Found], case: CarriedCase, test: Judged) -> None:
    """Add the graders of a case's assertions; its ``lost`` are the kinds of those without a counterpart, each noted."""
    for value, at in asserted:
        graders = graders_of(carried, value, at, test)
        case.graders += graders
        case.lost += [] if graders else [_kind_of(value)]


def graders_of(carried: CarriedEvaluation, value: object, at: At, test: Judged) -> list[JsonDict]:
    """Convert one assertion, filled with what its test has; none, with a note, if it has no counterpart."""
    try:
        return _convert(carried, value, at, test)
    except ValidationError as error:
        reason = "; ".join(validation_messages(error, {}))
    except (ValueError, ConfigError) as error:
        reason = str(error)
    carried.leave_out(at, f"{_kind_of(value)}: {reason}")
    return []


def _kind_of(value: object) -> str:
    return str(mapping(value).get("type", "assertion"))


def _convert(carried: CarriedEvaluation, value: Any, at: At, test: Judged) -> list[JsonDict]:
    if isinstance(value, str) and carried.is_agentv:
        value = {"type": "llm-rubric", "value": value}
    if not isinstance(value, dict) or not isinstance(value.get("type"), str):
        raise ValueError("it has no type")  # noqa: TRY004 -- a reason of a note
    if changing := [key for key in _CHANGING if key in value]:
        raise ValueError(f"its {changing[0]} changes what it is applied to")
    kind = value["type"].removeprefix("not-")
    kind = kind.replace("_", "-") if carried.is_agentv else kind
    judges = kind in _JUDGED
    graders = _judges(carried, kind, value, at, test) if judges else [_single(carried, kind, value, at, test)]
    known = _KNOWN | (_KNOWN_OF_AGENTV if carried.is_agentv else frozenset())
    carried.leave_out_unknown(value, at, known | (_KNOWN_OF_SCRIPTS if kind in _SCRIPTS else frozenset()))
    name = rendered(value.get("metric", value.get("name")), test.variables)
    if name is not None and not re.fullmatch(r"[^\x00-\x1f\x7f]{1,64}", str(name)):
        carried.leave_out(at.under("metric" if "metric" in value else "name"), "no name that a grader may have")
        name = None
    common = _given(name=name, weight=value.get("weight"), threshold=value.get("min_score"))
    if value["type"].startswith("not-") != (value.get("negate") is True):
        graders = [{**one, "not": not one.get("not", False)} for one in graders]
    graders = [{**one, **common} for one in graders]
    for grader in graders:
        _SPEC.validate_python({"name": "grader", **grader}, context={IS_DATA: True})
    return graders


def _value(carried: CarriedEvaluation, value: Any, at: At, test: Judged) -> Any:
    """The value of an assertion: read from its file, or filled with the variables."""
    if isinstance(value, list):
        return [_value(carried, one, at, test) for one in value]
    if isinstance(value, str) and value.startswith((FILE_PREFIX, "package:")):
        if (content := carried.content(value, at)) is None:
            raise ValueError(f"its value is in {value}")
        return content
    return rendered(value, test.variables)


def _given(**options: Any) -> JsonDict:
    """The options that are not null."""
    return {key: value for key, value in options.items() if value is not None}


def _text(value: Any) -> str:
    if isinstance(value, list | dict) or value is None:
        raise ValueError("its value is no text")
    return answer_text(value)


def _texts(value: Any) -> list[str]:
    texts = [_text(one) for one in (divided(value) if isinstance(value, str) else value or [])]
    if not texts or "" in texts:
        raise ValueError("its list is empty" if not texts else "its list has an empty text, which every answer has")
    return texts


def _all_of(options: JsonDict, value: Any) -> JsonDict:
    """Not one is missing: as there, the score is 0 or 1."""
    return {"any": [{**options, "value": text, "not": True} for text in _texts(value)], "not": True}


def _trimmed(value: Any) -> str:
    """The pattern of a text without white space around it."""
    return re.sub(r"([^\w\s])", r"\\\1", _text(value).strip())


def _exact(value: Any, *, strip: bool) -> JsonDict:
    if isinstance(value, dict | list):
        # A list in a list: the answer is that list, and not any of its items.
        return {"builtin": "exact", "value": [value]}
    return {"builtin": "exact", "strip": strip, "value": _text(value)}


def _whole(number: Any) -> Any:
    return floor(number) if isinstance(number, float) and isfinite(number) else number


_CONTAINS = {"builtin": "contains"}
_ICONTAINS = {"builtin": "contains", "ignore_case": True}

#: The graders of assertions about an answer, of their value and their threshold.
_GRADERS: Mapping[str, Callable[[Any, Any], JsonDict]] = {
    "equals": lambda value, _: _exact(value, strip=False),
    "contains": lambda value, _: {**_CONTAINS, "value": _text(value)},
    "icontains": lambda value, _: {**_ICONTAINS, "value": _text(value)},
    "contains-any": lambda value, _: {**_CONTAINS, "value": _texts(value)},
    "icontains-any": lambda value, _: {**_ICONTAINS, "value": _texts(value)},
    "contains-all": lambda value, _: _all_of(_CONTAINS, value),
    "icontains-all": lambda value, _: _all_of(_ICONTAINS, value),
    "starts-with": lambda value, _: {"builtin": "starts-with", "value": _text(value)},
    "ends-with": lambda value, _: {"builtin": "ends-with", "value": _text(value)},
    "regex": lambda value, _: {"builtin": "regex", "pattern": _text(value)},
    "is-json": lambda value, _: {"builtin": "json-schema", "schema": _schema(value)},
    "contains-json": lambda value, _: {"builtin": "contains-json", "schema": _schema(value)},
    "levenshtein": lambda value, most: {"builtin": "edit-distance", "value": _text(value), "max": _whole(most)},
    "latency": lambda _, most: {"builtin": "latency", "max_ms": most},
    "cost": lambda _, most: {"builtin": "cost", "max_usd": most},
}

#: Those that AgentV has otherwise: it compares without white space around the texts.
_GRADERS_OF_AGENTV: Mapping[str, Callable[[Any, Any], JsonDict]] = {
    **_GRADERS,
    "equals": lambda value, _: _exact(value, strip=True),
    "starts-with": lambda value, _: {"builtin": "regex", "pattern": rf"^\s*{_trimmed(value)}"},
    "ends-with": lambda value, _: {"builtin": "regex", "pattern": rf"{_trimmed(value)}\s*$"},
}


def _single(carried: CarriedEvaluation, kind: str, value: JsonDict, at: At, test: Judged) -> JsonDict:
    """The grader of an assertion that is not judged. Raises `ValueError` if there is none."""
    if kind == "assert-set":
        return _set(carried, value, at, test)
    asked, threshold = _value(carried, value.get("value"), at, test), value.get("threshold", _DEFAULTS.get(kind))
    if carried.is_agentv and kind in ("latency", "cost"):
        threshold = value.get("threshold", value.get("budget", asked))
    if (grader_of := (_GRADERS_OF_AGENTV if carried.is_agentv else _GRADERS).get(kind)) is not None:
        return grader_of(asked, threshold)
    if kind in ("similar", "similar:cosine") and not carried.is_agentv:
        embeds = value.get("provider") or mapping(test.provider).get("embedding", _EMBEDDING)
        if (target := add_provider(carried, embeds, at)) is None:
            raise ValueError("what embeds its texts has no counterpart")
        return {"builtin": "similar", "embedding_target": target, "value": asked, "threshold": threshold}
    if kind in _SCRIPTS and carried.is_agentv:
        command, limits = value.get("command", value.get("path")), value.get("target", value.get("provider"))
        words = ["sh", "-c", command] if isinstance(command, str) else command
        folder = carried.relative(str(value.get("cwd", ".")))
        return {"command": words, "cwd": folder, **_given(target=limits, config=value.get("config"))}
    raise ValueError("no counterpart; write a grader for it")


def divided(text: str) -> list[str]:
    """Divide a text at commas, by promptfoo's rule: quoted pieces have a quote doubled or behind a backslash.

    Raises `ValueError` for a quote that is not closed, or that something follows.
    """
    pieces: list[str] = []
    place = len(_SEPARATORS.match(text)[0])  # type: ignore[index]
    while place < len(text):
        piece = _PIECE.match(text, place)
        if piece is None or text[piece.end() : piece.end() + 1] not in ("", ","):
            raise ValueError("a quote of its list is never closed, or has no comma behind it")
        quoted = piece["quoted"]
        pieces.append(piece["plain"].strip() if quoted is None else re.sub(r'\\(["\\])|"(")', r"\1\2", quoted))
        place = _SEPARATORS.match(text, piece.end()).end()  # type: ignore[union-attr]
    return pieces


def _schema(value: Any) -> JsonDict:
    """The schema of an assertion about JSON, which may be a text of YAML; promptfoo's is of draft 7 by itself."""
    given = parse_yaml(value, "its schema").value if isinstance(value, str) else value
    if given and not isinstance(given, dict):
        raise ValueError("its value is no schema")
    schema = {**_DRAFT, **mapping(given)} if given else {}
    build_validator(schema, Path())
    return schema


def _set(carried: CarriedEvaluation, value: JsonDict, at: At, test: Judged) -> JsonDict:
    listed = at.under("assert").items(value.get("assert"))
    parts = [graders_of(carried, one, place, test) for one, place in listed]
    if not parts or not all(parts) or any("command" in one for graders in parts for one in graders):
        raise ValueError("some of it could not be carried")
    return {"all": [grader for graders in parts for grader in graders], **_given(threshold=value.get("threshold"))}


def _prompt(carried: CarriedEvaluation, prompt: object, at: At) -> str:
    """The criterion that AgentV's prompt of a judge is, or the file that it names. Raises `ValueError` for another."""
    paths = carried.files(prompt, at) if isinstance(prompt, str) else []
    if paths is not None and len(paths) != 1:
        raise ValueError("its prompt is a program" if not isinstance(prompt, str) else f"its prompt is in {prompt}")
    text = str(prompt) if paths is None else read_text(paths[0]).strip()
    if "{{" in text:
        raise ValueError("its prompt is a template that the answer is filled into; write its criterion")
    return text


def _judges(carried: CarriedEvaluation, kind: str, value: JsonDict, at: At, test: Judged) -> list[JsonDict]:
    """The judges of an assertion, one for each criterion that it lists."""
    keys = ("value", "prompt", "criteria", "rubrics") if carried.is_agentv else ("value",)
    given = {key: value[key] for key in keys if value.get(key) is not None}
    asked = next(iter(given.values()), test.criteria)
    for key in list(given)[1:]:
        carried.leave_out(at.under(key), f"criteria beside its {next(iter(given))}")
    if "prompt" in given and "value" not in given:
        asked = _prompt(carried, asked, at.under("prompt"))
    provider = value.get("provider") or test.provider
    provider = mapping(provider).get("text", provider)
    provider = value.get("target", provider) if carried.is_agentv else provider
    judge = None if provider is None else add_provider(carried, provider, at)
    graders = []
    for one, place in at.items(asked):
        fields = mapping(one) if carried.is_agentv else {}
        text = next((fields[key] for key in ("outcome", "criteria", "description", "text") if key in fields), one)
        criterion = _value(carried, text, place, test)
        carried.leave_out_unknown(
            fields, place, ("outcome", "criteria", "description", "text", "id", "weight", "min_score")
        )
        if not criterion:
            raise ValueError("it has no criterion")
        text = f"{_FACTS if 'factuality' in kind else ''}{answer_text(criterion)}"
        threshold = fields.get("min_score", value.get("threshold", _DEFAULTS.get(kind)))
        options = _given(judge_target=judge, threshold=threshold, weight=fields.get("weight"))
        graders.append({"builtin": "llm-judge", "instructions": _RULE + text, **options})
    if not graders:
        raise ValueError("it has no criterion")
    if _JUDGED[kind]:
        carried.leave_out(at, f"{kind}: how it is judged there ({_JUDGED[kind]}); our own judge takes its criterion")
    return graders
