"""Validates the targets of a parsed configuration file and collects every error with its location. No I/O."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from quintain.config.nested_models import NESTED_MODELS
from quintain.config.targets import TARGET_MODELS, UNRESOLVED_CONTEXT_KEY, TargetConfig
from quintain.config.tree import format_path
from quintain.contracts.strings import TARGET_NAME_PATTERN

_TOP_LEVEL = ("targets",)

_NO_TARGETS = "targets: no target is configured; add one, such as targets: {demo: {provider: mock}}"

#: The default of ``api_key``, used if no ``base_url`` points to another server.
_DEFAULT_API_KEYS = {"openai": "${{ OPENAI_API_KEY }}", "anthropic": "${{ ANTHROPIC_API_KEY }}"}

RawTargets = dict[str, dict[str, object]]


def parse_targets(tree: object, errors: list[str]) -> RawTargets:
    """Return the unvalidated targets by name, from a map or AgentV's list of ``{name: …}``; appends to ``errors``."""
    if tree is None:
        tree = {}
    if not isinstance(tree, dict):
        errors.append(f"the file holds {_type_name(tree)}; it must be a map with targets:")
        return {}
    errors.extend(_unknown_key_message("", str(key), _TOP_LEVEL) for key in tree if key not in _TOP_LEVEL)
    targets = tree.get("targets")
    named_targets: Iterable[tuple[object, object]]
    if isinstance(targets, list):
        named_targets = _targets_from_list(targets, errors)
    elif targets is None or isinstance(targets, dict):
        named_targets = (targets or {}).items()
    else:
        errors.append(f"targets: {_type_name(targets)}; it must be a map, or a list of {{name: …}}")
        return {}
    if not targets:
        errors.append(_NO_TARGETS)
    return _check_names(named_targets, errors)


def validate_targets(
    raw_targets: RawTargets, errors: list[str], *, resolved: RawTargets | None = None
) -> dict[str, TargetConfig]:
    """Return the valid targets and append every mistake to ``errors``.

    ``resolved`` is the same tree after the substitution of environment variables.
    """
    targets: dict[str, TargetConfig] = {}
    for name, raw_target in raw_targets.items():
        values = None if resolved is None else resolved[name]
        target = _validate_target(name, raw_target, errors=errors, values=values)
        if target is not None:
            targets[name] = target.with_raw(raw_target)
    for name, target in targets.items():
        judge = target.judge_target
        if judge is not None and judge not in raw_targets:
            location = format_path(("targets", name, "judge_target"))
            shown = raw_targets[name]["judge_target"]
            errors.append(f"{location}: no target is named {shown!r}{_did_you_mean(judge, raw_targets)}")
    return targets


def _targets_from_list(targets: list[object], errors: list[str]) -> list[tuple[object, object]]:
    named_targets: list[tuple[object, object]] = []
    for index, target in enumerate(targets):
        location = format_path(("targets", index))
        if not isinstance(target, dict):
            errors.append(f"{location}: {_type_name(target)}; it must be a map")
        elif "name" not in target:
            errors.append(f"{location}: missing key 'name'")
        elif any(target["name"] == name for name, _ in named_targets):
            errors.append(f"{location}: the name {target['name']!r} is given twice")
        else:
            named_targets.append((target["name"], {key: value for key, value in target.items() if key != "name"}))
    return named_targets


def _check_names(named_targets: Iterable[tuple[object, object]], errors: list[str]) -> RawTargets:
    raw_targets: RawTargets = {}
    for name, target in named_targets:
        location = format_path(("targets", str(name)))
        if not isinstance(name, str):
            errors.append(f"{location}: a target's name is text; put it in quotes")
        elif not re.match(TARGET_NAME_PATTERN, name) or name.endswith("\n"):
            errors.append(f"{location}: not a target's name; letters, digits, '.', '_' and '-', at most 63")
        elif not isinstance(target, dict):
            errors.append(f"{location}: {_type_name(target)}; it must be a map with provider:")
        else:
            raw_targets[name] = _with_default_api_key({str(key): value for key, value in target.items()})
    return raw_targets


def _with_default_api_key(target: dict[str, object]) -> dict[str, object]:
    # With a base_url there is no default key: the vendor's key must not be sent to another server.
    key = _DEFAULT_API_KEYS.get(str(target.get("provider")))
    if key is None or target.get("api_key") is not None or target.get("base_url") is not None:
        return target
    return {**target, "api_key": key}


def _validate_target(
    name: str, raw_target: dict[str, object], *, errors: list[str], values: dict[str, object] | None
) -> TargetConfig | None:
    location = format_path(("targets", name))
    provider = raw_target.get("provider")
    if provider is None:
        errors.append(f"{location}: missing key 'provider'; known: {', '.join(TARGET_MODELS)}")
    elif not isinstance(provider, str) or provider not in TARGET_MODELS:
        hint = f"{_did_you_mean(str(provider), TARGET_MODELS) or '.'} Known: {', '.join(TARGET_MODELS)}"
        errors.append(f"{location}.provider: unknown provider {provider!r}{hint}")
    else:
        try:
            return TARGET_MODELS[provider].model_validate(
                raw_target if values is None else values, context={UNRESOLVED_CONTEXT_KEY: values is None}
            )
        except ValidationError as error:
            details = error.errors(include_url=False, include_input=False)
            errors.extend(_error_message(name, provider, detail) for detail in details)
    return None


def _error_message(name: str, provider: str, detail: ErrorDetails) -> str:
    parts = ("targets", name, *detail["loc"])
    if detail["type"] == "extra_forbidden":
        model = TARGET_MODELS[provider] if len(detail["loc"]) == 1 else NESTED_MODELS[str(detail["loc"][-2])]
        return _unknown_key_message(format_path(parts[:-1]), str(parts[-1]), model.model_fields)
    if detail["type"] == "missing":
        return f"{format_path(parts[:-1])}: missing key '{parts[-1]}'"
    message = detail["msg"].removeprefix("Value error, ")
    if detail["type"] == "string_type":
        message = "not a text; put it in quotes"
    return f"{format_path(parts)}: {message}"


def _unknown_key_message(location: str, key: str, known: Iterable[str]) -> str:
    known = tuple(known)
    hint = _did_you_mean(key, known) or f"; known: {', '.join(known)}"
    return f"{location}: unknown key {key!r}{hint}" if location else f"unknown key {key!r}{hint}"


def _did_you_mean(word: str, known: Iterable[str]) -> str:
    matches = get_close_matches(word, list(known), n=1)
    return f"; did you mean {matches[0]!r}?" if matches else ""


def _type_name(value: object) -> str:
    names = {dict: "a map", list: "a list", str: "a text", int: "a number", float: "a number"}
    return names.get(type(value), "nothing" if value is None else "a value")
